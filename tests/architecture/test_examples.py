"""What a docstring shows of a function, the function does."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOWING = [
    path.relative_to(ROOT)
    for place in ("shared", "edge_agent", "aggregator")
    for path in sorted((ROOT / place).rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("path", SHOWING, ids=str)
def test_examples_in_docstrings_hold(path: Path) -> None:
    result = doctest.testmod(import_module(".".join(path.with_suffix("").parts)))
    assert result.failed == 0
    assert result.attempted

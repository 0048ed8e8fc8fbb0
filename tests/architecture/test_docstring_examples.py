"""What the docstrings show as examples is what the code does."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = ("edge_agent", "aggregator", "shared")
SHOWN = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_of_a_module_are_true(name: str) -> None:
    results = doctest.testmod(import_module(name))
    assert (results.attempted > 0, results.failed) == (True, 0)

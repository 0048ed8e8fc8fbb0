"""What docstrings show as examples is what the code does, and modules that they name exist."""

import doctest
import re
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PACKAGES = ("edge_agent", "aggregator", "shared")
TEXTS = {path: path.read_text() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
SHOWN = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path, text in TEXTS.items() if ">>> " in text
)


@pytest.mark.parametrize("name", SHOWN)
def test_examples_of_a_module_are_true(name: str) -> None:
    results = doctest.testmod(import_module(name))
    assert (results.attempted > 0, results.failed) == (True, 0)


def test_modules_that_are_named_exist() -> None:
    there = {path.name for path in TEXTS}
    named = {(path.name, name) for path, text in TEXTS.items() for name in re.findall(r"``(\w+\.py)``", text)}
    assert len(named) > 10
    assert [each for each in named if each[1] not in there] == []

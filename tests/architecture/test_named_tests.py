"""Tests that documents name are there: a table that points nowhere proves nothing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:[a-z]+/)+test_\w+\.py)(?:::(test_\w+))?`")


def named() -> list[tuple[str, str]]:
    text = (ROOT / "docs" / "howto" / "contributor" / "tests.md").read_text(encoding="utf-8")
    found = {(path.removeprefix("tests/"), name) for path, name in NAMED.findall(text)}
    return sorted(found)


def test_the_tables_name_tests() -> None:
    assert named()


@pytest.mark.parametrize(("path", "name"), named(), ids=lambda part: part or "all of it")
def test_a_test_that_the_documents_name_is_there(path: str, name: str) -> None:
    source = (ROOT / "tests" / path).read_text(encoding="utf-8")
    assert re.search(rf"^(async )?def {name or 'test_'}", source, re.MULTILINE)

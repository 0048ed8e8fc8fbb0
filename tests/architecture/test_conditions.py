"""Every kind of condition has its section in the manual, and a test that provokes it."""

import ast
import re
from collections import Counter
from pathlib import Path

from edge_agent.observability import conditions
from edge_agent.observability.conditions import CATALOGUE, Kind
from tests.support.documents.condition_reference import condition_reference
from tests.support.documents.reference import FOLDER

TESTS = Path(__file__).resolve().parents[1]


def provoked() -> set[str]:
    """Name the kinds that tests say they provoke: ``pytest.mark.provokes("...")``, on a test or on one of its cases."""
    return {
        argument.value
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "provokes"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_the_page_of_conditions_is_what_the_catalogue_says() -> None:
    assert (FOLDER / "conditions.md").read_text() == condition_reference(), "run: make docs"


def test_every_kind_of_condition_is_provoked_by_a_test() -> None:
    assert provoked() == CATALOGUE.keys()


def test_no_two_kinds_have_one_name_and_each_says_what_it_means_and_what_helps() -> None:
    kinds = [each for each in vars(conditions).values() if isinstance(each, Kind)]
    assert not [name for name, count in Counter(kind.name for kind in kinds).items() if count > 1]
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.name) for kind in kinds)
    assert all(kind.meaning.endswith(".") and kind.meaning.count(". ") == 0 for kind in kinds), "one sentence"
    assert not [kind.name for kind in kinds if not kind.remedy or kind.remedy.endswith(".")]

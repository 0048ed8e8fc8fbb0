"""Everything that ``check`` can find has one name, a remedy, and its section in the manual."""

import re
from pathlib import Path

from aggregator.topology.report import findings
from aggregator.topology.report.findings import CheckKind
from tests.support.documents.hub_condition_reference import hub_condition_reference
from tests.support.documents.reference import FOLDER

TOPOLOGY = Path(findings.__file__).parents[1]


def test_the_page_of_what_check_finds_is_what_the_catalogue_says() -> None:
    assert (FOLDER / "hub_conditions.md").read_text(encoding="utf-8") == hub_condition_reference(), "run: make docs"


def test_every_kind_has_a_name_of_its_own_and_is_found_somewhere() -> None:
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.stable_name) for kind in CheckKind)
    assert all(kind.meaning.endswith(".") and kind.remedy and not kind.remedy.endswith(".") for kind in CheckKind)
    used = "".join(path.read_text(encoding="utf-8") for path in TOPOLOGY.rglob("check*.py"))
    # An Enum lets no two members have one name.
    assert [kind.name for kind in CheckKind if f"CheckKind.{kind.name}" not in used] == []

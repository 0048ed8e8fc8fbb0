"""What the documents speak of is there: links, commands, targets, tables, the picture."""

import re
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest

from aggregator.cli import cli as aggregator_cli
from edge_agent.cli import cli as agent_cli
from tests.support.table_reference import PATH as TABLES_PATH
from tests.support.table_reference import table_reference

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCUMENTS += sorted((ROOT / "docs" / "reference").glob("*.md"))

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CODE = re.compile(r"```.*?```", re.DOTALL)
_COMMAND = re.compile(r"\b(muster-agent|muster-aggregator) ([a-z][a-z-]*)(?: (history|html)\b)?")
_TARGET = re.compile(r"(?:`|^)make ([a-z][a-z-]*)", re.MULTILINE)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=[path.name for path in DOCUMENTS])


def anchors(path: Path) -> set[str]:
    """Give the anchors of a document's headings as code forges make them."""
    headings = _HEADING.findall(_CODE.sub("", path.read_text()))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_every_relative_link_resolves(document: Path) -> None:
    broken = []
    for target in _LINK.findall(document.read_text()):
        path, _, anchor = target.partition("#")
        found = (document.parent / path).resolve() if path else document
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(target)
    assert not broken


@every_document
def test_every_command_that_is_mentioned_exists(document: Path) -> None:
    groups = {"muster-agent": agent_cli, "muster-aggregator": aggregator_cli}
    unknown = []
    for program, name, below in _COMMAND.findall(document.read_text()):
        command = groups[program].get_command(click.Context(groups[program]), name)
        if below and isinstance(command, click.Group):
            command = command.get_command(click.Context(command), below)
        if command is None:
            unknown.append(f"{program} {name} {below}".strip())
    assert not unknown


@every_document
def test_every_make_target_that_is_mentioned_exists(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(_TARGET.findall(document.read_text())) <= targets


def test_every_folder_of_the_code_has_its_place_in_the_guide() -> None:
    text = (ROOT / "docs" / "contributors.md").read_text()
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("edge_agent", "aggregator", "shared")
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert {folder for folder in folders if f"`{folder}`" not in text} == set()


def test_the_table_reference_is_what_the_schemas_say() -> None:
    assert TABLES_PATH.read_text() == table_reference(), "run: make docs"


def test_the_picture_can_be_read_as_text_too() -> None:
    picture = ET.parse(ROOT / "docs" / "muster.svg").getroot()  # noqa: S314 - our own file
    described = {child.tag.rpartition("}")[2]: child.text or "" for child in picture}
    assert described["title"]
    assert len(described["desc"]) > 200


@every_document
def test_documented_installs_are_locked_and_take_the_place_of_an_older_version(document: Path) -> None:
    blocks = [block.replace("\\\n", "") for block in _CODE.findall(document.read_text())]
    for block in blocks:
        installs = [line.split() for line in block.splitlines() if "/pip install " in line]
        locks = [words[-1] for words in installs if words[-1].endswith(".txt")]
        for words in installs:
            if words[-1].endswith(".whl"):
                assert {"--force-reinstall", "--no-deps"} <= set(words), "pip leaves what has the same version"
                assert words[-1] == f"dist/muster-{version('muster')}-py3-none-any.whl"
            elif "requirements-build" in words[-1]:
                assert "--require-hashes" in words
            else:
                assert {"--require-hashes", "--no-build-isolation", "--only-binary", ":all:"} <= set(words)
                assert locks[0] == "packaging/requirements-build.txt", "what is built is built with what is locked"


def test_the_documented_unit_keeps_the_stores_directory_to_the_agent_and_its_group() -> None:
    (unit,) = re.findall(r"^\[Unit\]\n.*?^```", (ROOT / "docs" / "operators.md").read_text(), re.DOTALL | re.MULTILINE)
    assert {"User=muster-agent", "StateDirectory=muster-agent", "StateDirectoryMode=0750"} <= set(unit.splitlines())

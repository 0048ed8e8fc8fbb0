"""What the documents speak of is there: links, commands, targets, tables, the picture."""

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree as ET

import click
import pytest

from aggregator.cli import cli as aggregator_cli
from edge_agent.cli import cli as agent_cli
from tests.support.documents.reference import FOLDER, PAGES

ROOT = Path(__file__).resolve().parents[2]
MANUAL = ROOT / "docs"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(MANUAL.rglob("*.md"))]

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_CODE = re.compile(r"```.*?```", re.DOTALL)
# `sudo -u muster-agent` names a user.
_COMMAND = re.compile(r"(?<!-u )\b(muster-agent|muster-aggregator) ([a-z][a-z-]*)(?: (history|html)\b)?")
_MODULE = re.compile(r"`((?:edge_agent|aggregator|shared|tests|packaging)/[\w./-]*\w)/?`")
_TARGET = re.compile(r"(?:`|^)make ([a-z][a-z-]*)", re.MULTILINE)

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=[str(path.relative_to(ROOT)) for path in DOCUMENTS])


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


@every_document
def test_every_file_of_the_code_that_is_mentioned_exists(document: Path) -> None:
    assert {name for name in _MODULE.findall(document.read_text()) if not (ROOT / name).exists()} == set()


def test_every_folder_of_the_code_has_its_place_in_the_guide() -> None:
    text = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    folders = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("edge_agent", "aggregator", "shared")
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert {folder for folder in folders if f"`{folder}`" not in text} == set()


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_what_the_code_says(name: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name](), "run: make docs"


def test_the_manual_and_the_man_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    for builder in ("html", "man"):
        command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-b", builder]
        command += ["-d", str(tmp_path / "read"), str(MANUAL), str(tmp_path / builder)]
        built = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert built.returncode == 0, built.stderr
    for page in ("html/index.html", "html/tutorial/first-site.html", "man/man1/muster-agent.1"):
        assert (tmp_path / page).stat().st_size > 1_000


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
    (unit,) = re.findall(
        r"^\[Unit\]\n.*?^```", (MANUAL / "howto" / "agent" / "install.md").read_text(), re.DOTALL | re.MULTILINE
    )
    assert {"User=muster-agent", "StateDirectory=muster-agent", "StateDirectoryMode=0750"} <= set(unit.splitlines())


def documented_sql_unit() -> str:
    page = (MANUAL / "howto" / "hub" / "sql-servers.md").read_text()
    (unit,) = re.findall(r"^```ini\n(\[Service\]\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(unit)


def test_the_documented_sql_server_is_hardened_as_the_packaged_units_are() -> None:
    hardening = (ROOT / "packaging" / "aggregator" / "hardening.conf").read_text().splitlines()
    wanted = {line for line in hardening if not line.startswith("#")}
    assert len(wanted) > 20
    assert wanted <= set(documented_sql_unit().splitlines())


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_the_documented_sql_server_little_exposed(tmp_path: Path) -> None:
    unit = tmp_path / "muster-sql.service"
    unit.write_text(documented_sql_unit())
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=15", str(unit)]
    judged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert judged.returncode == 0, judged.stdout + judged.stderr

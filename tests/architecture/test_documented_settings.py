"""Operators are told of every key of every settings file, where it stands and what its default is; of nothing else."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec import inspect

from aggregator.config import AggregatorSettings
from aggregator.topology.desired.settings import TopologySettings
from edge_agent.config.agent import AgentSettings
from edge_agent.observability.metrics import COUNTED
from edge_agent.simulator.script import Script
from edge_agent.simulator.site_stream import FleetConnection
from shared.settings import Duration, FilePath, Size, parse_settings
from tests.support.documents.metric_reference import cause_notes
from tests.support.documents.reference import FOLDER
from tests.support.documents.settings_reference import FILES, NOTES, SettingsFile, keys_of

DOCS = Path(__file__).resolve().parents[2] / "docs"
HOWTO = DOCS / "howto"
MODES = HOWTO / "agent" / "modes.md"
# Whole files in the manual, in the order in which a page has them.
WHOLE_FILES: list[tuple[Path, list[type[msgspec.Struct]]]] = [
    (DOCS / "tutorial" / "first-site.md", [TopologySettings, AgentSettings, FleetConnection, AggregatorSettings]),
    (HOWTO / "agent" / "install.md", [AgentSettings]),
    (HOWTO / "agent" / "from-choria.md", [AgentSettings]),
    (MODES, [AgentSettings] * 3),
    (HOWTO / "agent" / "thresholds.md", [AgentSettings] * 2),
    (HOWTO / "hub" / "topologies.md", [TopologySettings]),
    (HOWTO / "hub" / "rollup.md", [AggregatorSettings]),
    (HOWTO / "hub" / "alerts.md", [AggregatorSettings]),
    (HOWTO / "hub" / "streams.md", [TopologySettings] * 2),
    (HOWTO / "hub" / "live.md", [AggregatorSettings]),
]
BY_HAND: list[tuple[str, type[msgspec.Struct]]] = [
    ("agent.toml", AgentSettings),
    ("topology.toml", TopologySettings),
    ("aggregator.toml", AggregatorSettings),
    ("outages.toml", Script),
]
_CONNECTION = ("servers", "domain", "auth", "tls")
# Tables that are described once, where they stand first.
_AS = {
    "region.fleet": "fleet",
    "stream.mirror": "stream.source",
    "stream.mirror.transforms": "stream.source.transforms",
}

every_file = pytest.mark.parametrize("file", FILES, ids=[file.name for file in FILES])
Row = dict[str, str]


class Setting(NamedTuple):
    """One key of a model: its table as ``stream.policy``, its name, and its default (UNSET: required)."""

    table: str
    name: str
    default: Any


def settings_of(node: inspect.Type, table: str = "") -> Iterator[Setting]:
    """Walk a model: every key of every table."""
    if isinstance(node, inspect.Metadata):
        yield from settings_of(node.type, table)
    elif isinstance(node, inspect.UnionType):
        for option in node.types:
            yield from settings_of(option, table)
    elif isinstance(node, inspect.VarTupleType):
        yield from settings_of(node.item_type, table)
    elif isinstance(node, inspect.StructType):
        # Of tables of several kinds each kind has a table of its own.
        table += "" if node.tag is None else f" {node.tag}"
        for field in node.fields:
            default = msgspec.UNSET if field.default is msgspec.NODEFAULT else field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            yield Setting(table, field.encode_name, default)
            yield from settings_of(field.type, f"{table}.{field.encode_name}" if table else field.encode_name)


def documented(path: Path) -> dict[str, dict[str, Row]]:
    """Read the tables that begin with ``key``: by heading without brackets, then key, then the column's title."""
    found: dict[str, dict[str, Row]] = {}
    heading = ""
    titles: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            heading = re.sub(r']]` with `kind = "(\w+)"$', r" \1", line.lstrip("# ").strip("`[")).strip("]")
        elif line.startswith("| key |"):
            titles = _cells(line)
        elif not line.startswith("|"):
            titles = []
        elif line.startswith("| `") and titles:
            row = dict(zip(titles, _cells(line), strict=True))
            found.setdefault(heading, {})[row["key"].strip("`")] = row
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def row_of(setting: Setting, known: dict[str, dict[str, Row]]) -> Row | None:
    """Find where a key is described: below its table, or once for all connections."""
    table = _AS.get(setting.table, setting.table)
    heading = table.rpartition(".")[2] if table.endswith((".auth", ".tls")) else table or "The top of the file"
    rows = known.get(heading, {})
    return rows.get(setting.name) or (known["Connections"].get(setting.name) if setting.name in _CONNECTION else None)


def stated(cell: str) -> Any:
    """Read a default as it stands in a cell: ``required``, or TOML in backquotes."""
    if cell == "required":
        return msgspec.UNSET
    match = re.fullmatch(r"`([^`]*)`", cell)
    assert match, f"no default in {cell!r}"
    return tomllib.loads(f"value = {match[1]}")["value"]


def is_same(default: Any, cell: str) -> bool:
    """Compare a default with what stands in a cell; tables, and what follows from other keys, have words only."""
    if default is None or isinstance(default, msgspec.Struct | dict):
        return True
    if isinstance(default, tuple) and not cell:
        return not default
    written = stated(cell)
    if isinstance(default, Duration):
        return Duration.of(written) == int(default)
    if isinstance(default, Size):
        return int(default) == (written if isinstance(written, int) else Size.of(written))
    if isinstance(default, FilePath):
        return str(default) == str(written)
    return repr(list(default) if isinstance(default, tuple) else default) == repr(written)


@every_file
def test_operators_are_told_of_every_key_and_its_default(file: SettingsFile) -> None:
    known = documented(FOLDER / file.page)
    missing, wrong = [], []
    for setting in settings_of(inspect.type_info(file.model)):
        row = row_of(setting, known)
        if row is None or not row["meaning"]:
            missing.append(f"{setting.table} {setting.name}")
        elif not is_same(setting.default, row["default"]):
            wrong.append(f"{setting.table} {setting.name}: {row['default']}, but it is {setting.default!r}")
    assert not missing
    assert not wrong


@every_file
def test_operators_are_told_of_no_key_that_is_not_there(file: SettingsFile) -> None:
    keys = {setting.name for setting in settings_of(inspect.type_info(file.model))}
    assert {key for rows in documented(FOLDER / file.page).values() for key in rows} <= keys


def test_every_note_is_about_a_key_that_is_there() -> None:
    notes = tomllib.loads(NOTES.read_text(encoding="utf-8"))
    assert notes.keys() == {"causes", "connection"} | {file.name.removesuffix(".toml") for file in FILES}
    for file in FILES:
        assert file.notes.keys() <= set(keys_of(file))


def test_every_note_is_about_a_cause_that_is_counted() -> None:
    noted = {(what, cause) for what, causes in cause_notes().items() for cause in causes}
    assert noted <= {(what, cause) for what, counted in COUNTED.items() for cause in counted.causes}


@pytest.mark.parametrize(("page", "models"), WHOLE_FILES, ids=[page.stem for page, _ in WHOLE_FILES])
def test_the_settings_files_in_the_manual_are_good(page: Path, models: list[type[msgspec.Struct]]) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", page.read_text(), re.DOTALL)
    for block, model in zip(blocks, models, strict=True):
        parse_settings(block, model, page)


def test_no_page_has_a_settings_file_that_is_not_tried() -> None:
    places = (DOCS / "tutorial", HOWTO / "agent", HOWTO / "hub")
    pages = {page for place in places for page in place.glob("*.md") if "```toml\n" in page.read_text()}
    assert pages == {page for page, _ in WHOLE_FILES}


def test_the_settings_files_of_every_mode_are_shown() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", MODES.read_text(), re.DOTALL)
    read = [parse_settings(block, AgentSettings, MODES) for block in blocks]
    assert [settings.stream[0].mode for settings in read] == ["copy", "copy", "relay"]
    (smallest,) = re.findall(r"```toml\n(.*?)```", (HOWTO / "agent" / "install.md").read_text(), re.DOTALL)
    assert parse_settings(smallest, AgentSettings, MODES).stream[0].mode == "sample"


@pytest.mark.parametrize(("name", "model"), BY_HAND, ids=[name for name, _ in BY_HAND])
def test_the_files_to_try_by_hand_are_good(name: str, model: type[msgspec.Struct]) -> None:
    path = DOCS / "by-hand" / name
    parse_settings(path.read_text(), model, path)

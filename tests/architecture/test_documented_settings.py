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
from aggregator.topology.settings import TopologySettings
from edge_agent.config.agent import AgentSettings
from edge_agent.simulator.script import Script
from shared.settings import Duration, FilePath, Size, parse_settings

DOCS = Path(__file__).resolve().parents[2] / "docs"
OPERATORS = DOCS / "operators.md"
MODES = DOCS / "modes.md"
TOPOLOGIES = DOCS / "topologies.md"
FILES: list[tuple[type[msgspec.Struct], str]] = [
    (AgentSettings, "The top of the agent's file"),
    (TopologySettings, "The top of the topology file"),
    (AggregatorSettings, "The top of the aggregator's file"),
]
BY_HAND: list[tuple[str, type[msgspec.Struct]]] = [
    ("agent.toml", AgentSettings),
    ("topology.toml", TopologySettings),
    ("aggregator.toml", AggregatorSettings),
    ("outages.toml", Script),
]
_REPEATED = ("stream", "region", "site", "relay")
_STREAMS = ("fleet", "archive", "report", "policy", "site.registration")
_FREE = {
    "account": "[[account]]",
    "stream": "[[stream]]",
    "stream.placement": "[stream.placement]",
    "stream.source": "[[stream.source]]` and `[stream.mirror]",
    "stream.mirror": "[[stream.source]]` and `[stream.mirror]",
    "stream.source.transforms": "Transforms",
    "stream.mirror.transforms": "Transforms",
}
_CONNECTION = ("servers", "domain", "auth", "tls")

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
        for field in node.fields:
            default = msgspec.UNSET if field.default is msgspec.NODEFAULT else field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            yield Setting(table, field.encode_name, default)
            yield from settings_of(field.type, f"{table}.{field.encode_name}" if table else field.encode_name)


def documented(path: Path) -> dict[str, dict[str, Row]]:
    """Read the tables that begin with ``key``: by heading, then key, then the column's title."""
    found: dict[str, dict[str, Row]] = {}
    heading = ""
    titles: list[str] = []
    for line in path.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ").strip("`")
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


def place_of(setting: Setting, top: str) -> tuple[str, str]:
    """Give the heading and the column in which a key's default stands."""
    table = setting.table.replace("region.fleet", "fleet")
    if table in _STREAMS:
        return "Streams", f"`[{table}]`"
    if table.endswith((".auth", ".tls")) or (setting.name in _CONNECTION and table not in _REPEATED):
        return "Connections", "default"
    if not table:
        return top, "default"
    return f"[[{table}]]" if table in _REPEATED else f"[{table}]", "default"


def stated(cell: str) -> Any:
    """Read a default as it stands in a cell: ``required``, or TOML in backquotes before any words."""
    if cell == "required":
        return msgspec.UNSET
    match = re.match(r"`([^`]*)`", cell)
    assert match, f"no default in {cell!r}"
    return tomllib.loads(f"value = {match[1]}")["value"]


def is_same(default: Any, cell: str) -> bool:
    """Compare a default with what stands in a cell; tables, and what follows from other keys, have words only."""
    if default is None or isinstance(default, msgspec.Struct):
        return True
    written = stated(cell)
    if isinstance(default, Duration):
        return Duration.of(written) == int(default)
    if isinstance(default, Size):
        return int(default) == (written if isinstance(written, int) else Size.of(written))
    if isinstance(default, FilePath):
        return str(default) == str(written)
    return repr(list(default) if isinstance(default, tuple) else default) == repr(written)


@pytest.mark.parametrize(("model", "top"), FILES, ids=[model.__name__ for model, _ in FILES])
def test_operators_are_told_of_every_key_and_its_default(model: type[msgspec.Struct], top: str) -> None:
    known = {path: documented(path) for path in (OPERATORS, TOPOLOGIES)}
    missing, wrong = [], []
    for setting in settings_of(inspect.type_info(model)):
        free = model is TopologySettings and setting.table in _FREE
        heading, column = (_FREE[setting.table], "default") if free else place_of(setting, top)
        row = known[TOPOLOGIES if free else OPERATORS].get(heading, {}).get(setting.name)
        if row is None or not row["meaning"]:
            missing.append(f"{heading} {setting.name}")
        elif not is_same(setting.default, row[column]):
            wrong.append(f"{heading} {setting.name}: {row[column]}, but it is {setting.default!r}")
    assert not missing
    assert not wrong


def test_operators_are_told_of_no_key_that_is_not_there() -> None:
    keys = {setting.name for model, _ in FILES for setting in settings_of(inspect.type_info(model))}
    told = [rows for path in (OPERATORS, TOPOLOGIES) for rows in documented(path).values()]
    assert {key for rows in told for key in rows} <= keys


def test_the_settings_files_in_the_document_are_good() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", OPERATORS.read_text(), re.DOTALL)
    for block, (model, _) in zip(blocks, FILES, strict=True):
        parse_settings(block, model, OPERATORS)


def test_the_settings_files_of_every_mode_are_good() -> None:
    blocks = re.findall(r"```toml\n(.*?)```", MODES.read_text(), re.DOTALL)
    read = [parse_settings(block, AgentSettings, MODES) for block in blocks]
    assert [settings.stream[0].mode for settings in read] == ["sample", "copy", "copy", "relay"]


@pytest.mark.parametrize(("name", "model"), BY_HAND, ids=[name for name, _ in BY_HAND])
def test_the_files_to_try_by_hand_are_good(name: str, model: type[msgspec.Struct]) -> None:
    path = DOCS / "by-hand" / name
    parse_settings(path.read_text(), model, path)

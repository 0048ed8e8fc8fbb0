"""Describe a settings file key by key, out of the Structs that it is read into.

What a key means stands beside it in the code, and errors repeat it; what takes more than that sentence stands in
docs/reference/notes.toml.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect

from aggregator.config import AggregatorSettings
from aggregator.topology.desired.settings import TopologySettings
from edge_agent.config.agent import AgentSettings
from shared.instants import format_duration
from shared.nats.settings import ConnectionSettings
from shared.settings import Duration, FilePath, Size
from shared.sizes import format_size

NOTES = Path(__file__).resolve().parents[3] / "docs" / "reference" / "notes.toml"
_CUSTOM = {Duration: "duration", Size: "size", FilePath: "file"}
_PLAIN: dict[type[inspect.Type], str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.IntType: "whole number",
    inspect.FloatType: "number",
    inspect.DateTimeType: "instant",
    inspect.StructType: "table",
    inspect.DictType: "table",
}
_CONNECTION = tuple(field.encode_name for field in msgspec.structs.fields(ConnectionSettings))


class SettingsFile(NamedTuple):
    """One file: the page that describes it, its name, its model, and whom it is for."""

    page: str
    name: str
    model: type[msgspec.Struct]
    meaning: str

    @property
    def notes(self) -> dict[str, str]:
        """Give what else is to be said of its keys, by their places."""
        return _notes("connection") | _notes(self.name.removesuffix(".toml"))


FILES = (
    SettingsFile("agent-toml.md", "agent.toml", AgentSettings, "The settings of one edge agent."),
    SettingsFile(
        "topology-toml.md",
        "topology.toml",
        TopologySettings,
        "Hub, regions, sites, and the streams that there shall be. Everything has a default but the hub and the names.",
    ),
    SettingsFile(
        "aggregator-toml.md", "aggregator.toml", AggregatorSettings, "Where rollups read, and where the tables are."
    ),
)
_INTRODUCTION = """\
# Settings in `{name}`

{meaning}
Written from the code by `make docs`.

Durations are texts such as `"90s"`, `"12m"`, `"1h30m"`, `"7d"`. Sizes are numbers of bytes, or texts such as `"500MB"`
(1,000s) and `"2GiB"` (1,024s). Paths are relative to the settings file; `~` is the home directory. A secret is the path
of a file, never a value. A key that does not exist is an error that names the nearest one.
`{check}` says what is wrong with the file. Changes take effect at the next start.
"""


class Table(NamedTuple):
    """One table of a file: its place (``stream.policy``), its model, and how many of it there may be."""

    place: str
    model: inspect.StructType
    is_repeated: bool

    @property
    def heading(self) -> str:
        """Give it as the file writes it."""
        written = f"[[{self.place}]]" if self.is_repeated else f"[{self.place}]"
        kind = "" if self.model.tag is None else f'` with `{self.model.tag_field} = "{self.model.tag}"'
        return written + kind


def settings_reference(file: SettingsFile) -> str:
    """Give the page of a file."""
    return "\n".join(_page(file))


def keys_of(file: SettingsFile) -> Iterator[str]:
    """Name every place about which there may be a note: a table's key as ``stream.policy.stale_after``."""
    for table in [*_tables(file), *_connection_tables()]:
        yield from (_place(table, field) for field in table.model.fields)


def _page(file: SettingsFile) -> Iterator[str]:
    check = "muster-agent check-config" if file.model is AgentSettings else "muster-aggregator check-config"
    yield _INTRODUCTION.format(name=file.name, meaning=file.meaning, check=check)
    tables = list(_tables(file))
    described: dict[type, str] = {}
    for table in tables:
        yield f"## {'The top of the file' if not table.place else f'`{table.heading}`'}\n"
        if table.place:
            yield f"{_first_line(table.model.cls)}\n"
        earlier = described.setdefault(table.model.cls, table.heading)
        if earlier != table.heading:
            yield f"The keys are those of `{earlier}`.\n"
            continue
        yield from _rows(table, file.notes)
    yield "## Connections\n"
    yield "How every table that has `servers` is written; `auth` and `tls` are tables below it, as `[hub.auth]`.\n"
    for table in _connection_tables():
        if table.place:
            yield f"### `{table.place}`\n\n{_first_line(table.model.cls)}\n"
        yield from _rows(table, file.notes, is_connection=True)


def _rows(table: Table, notes: dict[str, str], *, is_connection: bool = False) -> Iterator[str]:
    fields = [field for field in table.model.fields if is_connection or not _is_of_connection(table.model, field)]
    if len(fields) < len(table.model.fields):
        yield "The keys of every [connection](#connections)" + (", and:\n" if fields else ".\n")
    if not fields:
        return
    yield "| key | meaning | type | default |\n| --- | --- | --- | --- |"
    for field in fields:
        note = notes.get(_place(table, field), "")
        meaning = _cell(_description(field.type)) + (f". {note}" if note else "")
        yield f"| `{field.encode_name}` | {meaning} | {_type(field.type)} | {_default(field)} |"
    yield ""


def _tables(file: SettingsFile) -> Iterator[Table]:
    root = inspect.type_info(file.model)
    assert isinstance(root, inspect.StructType)
    yield from _below(Table("", root, is_repeated=False))


def _connection_tables() -> Iterator[Table]:
    root = inspect.type_info(ConnectionSettings)
    assert isinstance(root, inspect.StructType)
    yield from _below(Table("", root, is_repeated=False), with_connections=True)


def _below(table: Table, *, with_connections: bool = False) -> Iterator[Table]:
    yield table
    for field in table.model.fields:
        if _is_of_connection(table.model, field) and not with_connections:
            continue
        place = f"{table.place}.{field.encode_name}" if table.place else field.encode_name
        models, is_repeated = _structs(field.type)
        for model in models:
            yield from _below(Table(place, model, is_repeated), with_connections=with_connections)


def _is_of_connection(model: inspect.StructType, field: inspect.Field) -> bool:
    return issubclass(model.cls, ConnectionSettings) and field.encode_name in _CONNECTION


def _structs(node: inspect.Type) -> tuple[list[inspect.StructType], bool]:
    """Find the tables behind a key's type, one of each kind, and whether there may be several."""
    if isinstance(node, inspect.Metadata):
        return _structs(node.type)
    if isinstance(node, inspect.UnionType):
        found = [_structs(option) for option in node.types]
        return [model for models, _ in found for model in models], any(is_repeated for _, is_repeated in found)
    if isinstance(node, inspect.VarTupleType):
        return _structs(node.item_type)[0], True
    return ([node], False) if isinstance(node, inspect.StructType) else ([], False)


def _type(node: inspect.Type) -> str:
    match node:
        case inspect.Metadata():
            name = _type(node.type)
        case inspect.UnionType():
            options = (_type(each) for each in node.types if not isinstance(each, inspect.NoneType))
            name = " or ".join(dict.fromkeys(options))
        case inspect.LiteralType():
            name = ", ".join(f'`"{value}"`' for value in node.values)
        case inspect.CustomType():
            name = _CUSTOM[node.cls]
        case inspect.VarTupleType():
            name = "tables" if _structs(node)[0] else f"list of {_type(node.item_type)}s"
        case _:
            name = _PLAIN[type(node)]
    return name


def _default(field: inspect.Field) -> str:
    if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT:
        return "required"
    value: Any = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    if value is None or _structs(field.type)[0] or isinstance(value, dict):
        return ""
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, Duration):
        return f'"{format_duration(int(value)).replace(" ", "")}"'
    if isinstance(value, Size):
        return f'"{format_size(int(value)).replace(" ", "")}"' if value else '"0"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return str(value) if isinstance(value, int | float) else f'"{value}"'


def _description(node: inspect.Type) -> str:
    if not isinstance(node, inspect.Metadata):
        return ""
    return (node.extra_json_schema or {}).get("description", "") or _description(node.type)


def _place(table: Table, field: inspect.Field) -> str:
    return f"{table.place}.{field.encode_name}" if table.place else field.encode_name


def _first_line(model: type) -> str:
    text = (model.__doc__ or "").strip().split("\n\n")[0]
    line = " ".join(text.split()).partition("``: ")
    sentence = (line[2] or line[0]).replace("``", "`")
    return f"{sentence[0].upper()}{sentence[1:]}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def _notes(name: str) -> dict[str, str]:
    notes: dict[str, str] = tomllib.loads(NOTES.read_text(encoding="utf-8"))[name]
    return notes

"""Read one TOML file into one frozen Struct, or say in one line what is wrong, where, and what was meant.

A model derives from ``Settings``; its fields carry their meaning as ``Annotated[..., Meta(description="...")]``,
which an error repeats. Checks across keys stand in ``__post_init__`` and raise ValueError. Nothing is read from the
environment, and secrets are paths to files, never values.
"""

import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec
from msgspec import inspect

from shared.instants import InvalidInstant, parse_duration
from shared.sizes import InvalidSize, parse_size

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<key>.*)`)?", re.DOTALL)
_UNKNOWN_KEY = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_MISSING_KEY = re.compile(r"Object missing required field `(.*)`")
_TOO_LONG = "a whole number has no more than 64 bits"
_INDEX = re.compile(r"\[\d*\]")
_LINE = re.compile(r"\(at line (\d+), ")
_HEADER = re.compile(r"\s*\[\[?([\w.-]+)\]")
_TOML_TYPES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text in quotes",
    "bool": "true or false",
    "array": "a list in [ ]",
    "object": "a table",
    "datetime": "a date and time",
    "date": "a date",
    "time": "a time",
}


class SettingsError(ValueError):
    """A settings file cannot be used. Its text is one line: file, key, what is wrong, what the key means."""


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of a settings file: immutable, and no key in it is ignored."""


class Duration(int):
    """Microseconds; in a settings file a text such as ``"12m"``."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read ``"12m"``, ``"1h30m"``, ``"0"``; raise InvalidInstant for anything else."""
        return cls(0 if text.strip() == "0" else parse_duration(text))


class Size(int):
    """Bytes; in a settings file a text such as ``"2GiB"``, or a whole number."""

    @classmethod
    def of(cls, text: str) -> Self:
        """Read ``"2GiB"``, ``"500MB"``, ``"0"``; raise InvalidSize for anything else."""
        return cls(parse_size(text))


class FilePath(str):
    """The path of a file: relative ones count from the settings file's directory, ``~`` is the home; "" is not set."""


class _Key(NamedTuple):
    """One key that a model knows: its table without indexes (``stream[].policy``), its name, its meaning."""

    table: str
    name: str
    meaning: str

    @property
    def place(self) -> str:
        return _key_path(self.table, self.name)


T = TypeVar("T", bound=msgspec.Struct)


def quoted(value: object) -> str:
    """Write a text as TOML and the configuration of nats-server have it, for ours as JSON does."""
    return msgspec.json.encode(str(value)).decode()


def load_settings(path: Path, model: type[T]) -> T:
    """Read the TOML file at ``path`` as ``model``; raise SettingsError, whose text is one clear line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from None
    except OSError as error:
        raise SettingsError(f"{path}: cannot be read: {error.strerror or error}") from error
    return parse_settings(text, model, path)


def parse_settings(text: str, model: type[T], path: Path) -> T:
    """Read TOML as ``model``; ``path`` is named in errors, and relative paths count from its directory."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        remedy = _header_remedy(str(error), text, model)
        raise SettingsError(f"{path}: not valid TOML: {_decapitalize(str(error))}{remedy}") from None
    except ValueError:
        # Python reads no decimal number of thousands of digits.
        raise SettingsError(f"{path}: not valid TOML: {_TOO_LONG}") from None
    except RecursionError:
        raise SettingsError(f"{path}: not valid TOML: it is nested too deeply") from None

    def convert_text(wanted: type, found: object) -> Any:
        return _from_text(wanted, found, path.parent)

    if place := _place_beyond(tables):
        raise SettingsError(f"{path}: {_explain(f'{_TOO_LONG} - at `$.{place}`', model)}")
    try:
        return msgspec.convert(tables, model, dec_hook=convert_text)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {_explain(str(error), model)}") from None


def _place_beyond(tables: object) -> str:
    """Name the first whole number that does not have the 64 bits that TOML promises, "" where all have."""
    waiting = [("", tables)]
    while waiting:
        place, found = waiting.pop()
        if isinstance(found, dict):
            waiting += [(_key_path(place, key), each) for key, each in reversed(found.items())]
        elif isinstance(found, list):
            waiting += [(f"{place}[{index}]", each) for index, each in reversed([*enumerate(found)])]
        elif isinstance(found, int) and not -(1 << 63) <= found < 1 << 63:
            return place
    return ""


def _from_text(wanted: type, found: object, directory: Path) -> Any:
    """Read a duration, a size or a path; msgspec adds the place to the ValueError or TypeError raised here."""
    if wanted is Size and isinstance(found, int) and not isinstance(found, bool):
        if found < 0:
            raise ValueError(f"a size is not negative: {found}")
        return Size(found)
    if not isinstance(found, str):
        examples = {Duration: 'a duration in quotes such as "12m"', Size: 'a size such as "2GiB"'}
        raise TypeError(f"expected {examples.get(wanted, 'text in quotes')}, found {found!r}")
    try:
        if wanted is Duration:
            return Duration.of(found)
        if wanted is Size:
            return Size.of(found)
    except (InvalidInstant, InvalidSize) as error:
        raise ValueError(str(error)) from None
    assert wanted is FilePath, wanted
    return _whole_path(found, directory) if found else FilePath()


def _whole_path(found: str, directory: Path) -> FilePath:
    if "\0" in found:
        raise ValueError(f"a path has no NUL in it: {found!r}")
    try:
        return FilePath(directory.absolute() / Path(found).expanduser())
    except RuntimeError:
        raise ValueError(f"whose home is meant by {found!r} is not known: write the whole path") from None


def _header_remedy(message: str, text: str, model: type[msgspec.Struct]) -> str:
    """Return how to begin each table of an array if the line of a syntax error begins one of them; else ""."""
    line = _LINE.search(message)
    header = _HEADER.match(text.splitlines()[int(line[1]) - 1]) if line else None
    name = header[1] if header else ""
    is_array = any(key.table.endswith("[]") and _header(key.table) == f"[{name}]" for key in _model_keys(model))
    return f"; begin each {name} with [[{name}]]" if is_array else ""


def _explain(message: str, model: type[msgspec.Struct]) -> str:
    """Turn msgspec's ``what - at `$.where``` into ours."""
    match = _PLACE.fullmatch(message)
    what, key = (match["what"], match["key"] or "") if match else (message, "")
    # Whether a key may be left out is no matter of its type: TOML has no null.
    what, known = what.replace(" | null`", "`"), _model_keys(model)
    unknown = _UNKNOWN_KEY.fullmatch(what)
    if unknown:
        return f"{_key_path(key, unknown[1])}: there is no such key{_suggestion(key, unknown[1], known)}"
    missing = _MISSING_KEY.fullmatch(what)
    if missing:
        key, what = _key_path(key, missing[1]), "is required, but missing"
    place = _INDEX.sub("[]", key)
    if not missing:
        what = _in_toml_words(what) + _table_remedy(what, place, known)
    meaning = next((each.meaning for each in known if each.place in (place, place.removesuffix("[]"))), "")
    return (f"{key}: {what}" if key else what) + (f" ({meaning})" if meaning else "")


def _table_remedy(what: str, place: str, known: list[_Key]) -> str:
    """Return how to write the header of a table that stands for an array of tables, or the other way round; else ""."""
    tables = {key.table for key in known}
    name = place.replace("[]", "")
    if what == "Expected `array`, got `object`" and f"{place}[]" in tables:
        return f"; write [[{name}]] instead of [{name}]"
    if what == "Expected `object`, got `array`" and place in tables:
        return f"; write [{name}] instead of [[{name}]]"
    return ""


def _suggestion(table: str, name: str, known: list[_Key]) -> str:
    """Name what was probably meant: the same key in another table, or the nearest name in this one."""
    here = {key.name: key for key in known if key.table == _INDEX.sub("[]", table)}
    elsewhere = [key for key in known if key.name == name]
    nearest = difflib.get_close_matches(name, here, n=1)
    if nearest:
        key = here[nearest[0]]
        return f", did you mean {key.name}?" + (f" ({key.meaning})" if key.meaning else "")
    if len(elsewhere) == 1:
        table = elsewhere[0].table
        return f" here, it belongs to {f'[{_header(table)}]' if table else 'the top of the file'}"
    return f"; known here: {', '.join(sorted(here))}" if here else ""


def _header(table: str) -> str:
    """Write ``stream[].policy`` as it stands in the file: ``stream.policy``, and ``stream[]`` as ``[stream]``."""
    bare = table.replace("[]", "")
    return f"[{bare}]" if table.endswith("[]") else bare


def _model_keys(model: type[msgspec.Struct]) -> list[_Key]:
    """Return every key of every table of a model."""
    return list(_keys(inspect.type_info(model)))


def _keys(node: inspect.Type, table: str = "") -> Iterator[_Key]:
    """Walk a model: every key of every table, depth first."""
    if isinstance(node, inspect.Metadata):
        yield from _keys(node.type, table)
    elif isinstance(node, inspect.UnionType):
        for option in node.types:
            yield from _keys(option, table)
    elif isinstance(node, inspect.VarTupleType | inspect.ListType):
        yield from _keys(node.item_type, f"{table}[]")
    elif isinstance(node, inspect.StructType):
        for field in node.fields:
            yield _Key(table, field.encode_name, _meaning(field.type))
            yield from _keys(field.type, _key_path(table, field.encode_name))


def _meaning(node: inspect.Type) -> str:
    if isinstance(node, inspect.Metadata):
        return str((node.extra_json_schema or {}).get("description", "")) or _meaning(node.type)
    return ""


def _in_toml_words(what: str) -> str:
    """Say ``Expected `int`, got `str``` in the words of someone who writes TOML."""
    words = re.sub(r"`([a-z]+)`", lambda match: _TOML_TYPES.get(match[1], match[0]), what)
    return _decapitalize(words.replace(", got ", ", found "))


def _key_path(table: str, name: str) -> str:
    return f"{table}.{name}" if table else name


def _decapitalize(text: str) -> str:
    return text[:1].lower() + text[1:]

"""Read the configuration and the state of choria-io/stream-replicator 0.9, as its ``config`` and ``idtrack`` have them.

Pure: texts in, values out.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from types import UnionType
from typing import Any, get_args

import msgspec

from shared.decoding import Decoder, WireError
from shared.instants import HOUR, MINUTE, SECOND, InvalidInstant, parse_instant


class MigrationRefused(ValueError):
    """Nothing was written. The text is one line: the fault, its place, the remedy."""


class PeerTls(msgspec.Struct):
    """``tls``, ``source_tls`` or ``target_tls``."""

    ca: str = ""
    cert: str = ""
    key: str = ""


class PeerChoria(msgspec.Struct):
    """``choria``, ``source_choria`` or ``target_choria``: how to log in with Choria's own tokens."""

    seed_file: str = ""
    jwt_file: str = ""
    collective: str = ""


class PeerAdvisory(msgspec.Struct):
    """The subject of advisories, at the source."""

    subject: str = ""
    reliable: bool = False


class PeerStream(msgspec.Struct):
    """One of ``streams``."""

    name: str = ""
    stream: str = ""
    filter_subject: str = ""
    target_stream: str = ""
    target_subject_prefix: str = ""
    target_subject_remove: str = ""
    source_url: str = ""
    target_url: str = ""
    no_target_create: bool = False
    ephemeral: bool = False
    target_initiated: bool = False
    start_sequence: int = 0
    start_time: str = ""
    start_delta: str = ""
    start_at_end: bool = False
    tls: PeerTls | None = None
    source_tls: PeerTls | None = None
    target_tls: PeerTls | None = None
    choria: PeerChoria | None = None
    source_choria: PeerChoria | None = None
    target_choria: PeerChoria | None = None
    max_age: str = ""
    inspect_field: str = ""
    inspect_force_field: str = ""
    inspect_header: str = ""
    inspect_subject_token: int = 0
    inspect_duration: str = ""
    warn_duration: str = ""
    size_trigger: float = 0
    leader_election_name: str = ""
    advisory: PeerAdvisory | None = None


class PeerSubject(msgspec.Struct):
    """A subject on which heartbeats are published."""

    subject: str = ""
    interval: str = ""
    headers: dict[str, str] = {}


class PeerHeartbeats(msgspec.Struct):
    """``heartbeats``."""

    leader_election: bool = False
    interval: str = ""
    headers: dict[str, str] = {}
    subjects: tuple[PeerSubject, ...] = ()
    tls: PeerTls | None = None
    choria: PeerChoria | None = None
    url: str = ""


class PeerSettings(msgspec.Struct):
    """The whole file."""

    name: str = ""
    streams: tuple[PeerStream, ...] = ()
    state_store: str = ""
    tls: PeerTls | None = None
    choria: PeerChoria | None = None
    monitor_port: int = 0
    profiling: bool = False
    logfile: str = ""
    loglevel: str = ""
    heartbeats: PeerHeartbeats | None = None

    def consumer_of(self, stream: PeerStream) -> str:
        name = stream.name or self.name
        # Its test for the prefix has its arguments the other way round.
        return name if "SR_".startswith(name) else f"SR_{name}"

    def state_file_of(self, stream: PeerStream) -> str:
        """Return the path, in ``state_store``, of the file with its state of senders."""
        return f"{stream.stream}_{stream.name or self.name}.json"


class PeerSender(msgspec.Struct):
    """Its state of a sender: when it was seen and copied last, its size then, whether it was advised."""

    seen: str
    copied: str
    size: float = 0
    advised: bool = False


class _State(msgspec.Struct, rename={"items": "Items"}):
    items: dict[str, PeerSender] = {}


_state = Decoder(_State, "a state file of stream-replicator")


def read_settings(text: bytes) -> tuple[PeerSettings, list[str]]:
    """Read YAML or JSON; give it with the keys that the peer does not know either. Raise MigrationRefused."""
    try:
        found = _as_go_reads(msgspec.yaml.decode(text))
        return msgspec.convert(found, PeerSettings, strict=True), [*_unknown(found, PeerSettings, "")]
    except (ValueError, RecursionError) as error:
        raise MigrationRefused(f"it is no configuration of stream-replicator: {' '.join(str(error).split())}") from None


def read_senders(text: bytes) -> dict[str, PeerSender]:
    """Read a state file; raise MigrationRefused."""
    try:
        return _state(text).items
    except WireError as error:
        raise MigrationRefused(f"it is {error}") from None


def instant(text: str) -> int:
    """Return an instant of Go's in microseconds; its zero, as anything before 1970, is 0. Raise MigrationRefused."""
    try:
        return max(parse_instant(text), 0)
    except InvalidInstant as error:
        raise MigrationRefused(str(error)) from None


_LONG_UNITS = {"w": 7 * 24, "W": 7 * 24, "d": 24, "D": 24, "M": 30 * 24, "Y": 365 * 24, "y": 365 * 24}
"""In hours."""
_SHORT_UNITS = {"h": HOUR, "m": MINUTE, "s": SECOND, "ms": 1_000, "us": 1, "µs": 1, "ns": 0.001}
_SHORT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|us|µs|ns|s)")


def duration(text: str, key: str) -> int:
    """Read a duration as the peer does, in microseconds: ``1w``, ``90m``, ``1h30m``; whole hours where in days.

    Raise MigrationRefused, which names ``key``.

    >>> duration("1.5d", "max_age") // HOUR, duration("1m30s", "max_age") // SECOND
    (36, 90)
    """
    text = text.strip()
    try:
        if text[-1:] in _LONG_UNITS:
            return int(float(text[:-1]) * _LONG_UNITS[text[-1]]) * HOUR
    except ValueError:
        pass
    parts = _SHORT.findall(text)
    if not parts or "".join(map("".join, parts)) != text:
        raise MigrationRefused(f"{key}: {text!r} is no duration that stream-replicator reads")
    return round(sum(float(number) * _SHORT_UNITS[unit] for number, unit in parts))


def _as_go_reads(found: object) -> Any:
    """Return decoded data with keys in lower case, which Go accepts in any, and YAML's instants as text."""
    if isinstance(found, dict):
        return {str(key).lower(): _as_go_reads(value) for key, value in found.items()}
    if isinstance(found, datetime):
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()
    return [_as_go_reads(each) for each in found] if isinstance(found, list) else found


def _unknown(found: object, model: type[msgspec.Struct], place: str) -> Iterator[str]:
    """Name the keys of a table, and of those below it, that its model does not have."""
    if not isinstance(found, dict):
        return
    types = {field.encode_name: _model_in(field.type) for field in msgspec.structs.fields(model)}
    for key, value in found.items():
        below = f"{place}.{key}".lstrip(".")
        if key not in types:
            yield below
        elif (inner := types[key]) is not None:
            listed = isinstance(value, list)
            for number, each in enumerate(value if listed else [value]):
                yield from _unknown(each, inner, f"{below}[{number}]" if listed else below)


def _model_in(annotation: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a field holds, or a tuple of them; None if it holds none."""
    inner = get_args(annotation) if isinstance(annotation, UnionType) or get_args(annotation) else (annotation,)
    return next((each for each in inner if isinstance(each, type) and issubclass(each, msgspec.Struct)), None)

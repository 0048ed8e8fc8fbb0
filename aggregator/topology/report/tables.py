"""Show how the streams are and how far each copy has come. Pure: tables from what was found.

A source that is down shows ``active`` -1, ``lag`` 0 and no error, so ``behind`` compares what a copy has taken with the
origin's own last sequence.
"""

from collections.abc import Iterable

import msgspec

from aggregator.topology.desired.confinement import is_confined, taken_subjects
from aggregator.topology.desired.model import Config, Desired, DesiredStream, StreamKey
from aggregator.topology.observed.state import (
    External,
    Found,
    FoundStream,
    Replication,
    api_of,
    beyond,
    is_same_source,
    sealed,
    silence,
    sources_of,
)
from aggregator.topology.plan.differences import source_pairs
from aggregator.topology.plan.harmful_fields import found_harms
from shared.instants import format_instant
from shared.nats.jetstream_api import api_prefix, domain_of

CopyKey = tuple[str, str, str, str, tuple[str, ...]]

SILENT_AFTER = 15_000_000
_SECOND = 1_000_000


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """One stream that should be; ``error`` says why the rest is empty. Sizes in bytes, ``created`` RFC 3339.

    ``deleted`` counts holes between first and last message, ``lost`` what the server misses in its own store;
    ``servers`` are those of a cluster that hold it.
    """

    name: str
    place: str
    kind: str
    storage: str = ""
    replicas: int = 0
    messages: int = 0
    bytes: int = 0
    first_sequence: int = 0
    last_sequence: int = 0
    consumers: int = 0
    deleted: int = 0
    lost: int = 0
    placement: tuple[str, ...] = ()
    servers: tuple[str, ...] = ()
    leader: str = ""
    created: str = ""
    error: str = ""

    @property
    def cluster(self) -> str:
        """Name the servers that hold it, the leader with a star; "" where there is no choice."""
        return ", ".join(f"{name}*" if name == self.leader else name for name in self.servers)


class ReplicationRow(msgspec.Struct, frozen=True, kw_only=True):
    """One copying of one stream into another.

    ``silent_us``: microseconds since the origin was last heard of, -1 for never. ``taken`` and ``origin_last`` are the
    origin's sequences, the latter of its last message that this copying takes; ``behind`` their difference. The latter
    two are None where the origin did not answer; ``taken`` is where the server does not tell (before 2.15, of what is
    not durable), and ``behind`` is ``lag`` then. ``beyond``: by how much a copy is
    ahead of its origin, whose past it then holds.
    ``confined``: what it brings is stored below its region, whatever its subjects.
    ``takes`` says which of the origin's subjects, where not all. ``missing``: it should be, but the stream knows
    nothing of it, nor how far it had come; so an ``apply`` leaves it that ended before it took up what it set aside.
    """

    stream: str
    place: str
    kind: str
    api: str
    source: str
    source_place: str
    silent_us: int
    lag: int
    taken: int | None
    origin_last: int | None
    behind: int | None
    beyond: int = 0
    confined: bool = False
    missing: bool = False
    takes: tuple[str, ...] = ()
    error: str = ""

    @property
    def key(self) -> CopyKey:
        return self.place, self.stream, self.api, self.source, self.takes

    @property
    def healthy(self) -> bool:
        """Tell whether the copy is heard of, has no error, and copies what its origin is."""
        return not self.error and not self.beyond and 0 <= self.silent_us <= SILENT_AFTER


class SourceSilence(msgspec.Struct, frozen=True):
    """A stream, or with ``consumer`` one of its consumers, that gave no answer; ``text`` says so in one line."""

    place: str
    stream: str
    consumer: str
    text: str


class StreamReport(msgspec.Struct, frozen=True):
    """Both tables, and what did not answer: places, and streams and consumers of places that did.

    ``harms``: what somebody set that breaks what a stream promises, by place.
    """

    streams: tuple[StreamRow, ...]
    replication: tuple[ReplicationRow, ...]
    unreachable: dict[str, str]
    silent: tuple[SourceSilence, ...] = ()
    harms: tuple[tuple[str, str], ...] = ()

    @property
    def complete(self) -> bool:
        """Tell whether everything answered, and every stream and copy is there."""
        is_all_there = not any(row.error for row in self.streams) and not any(row.missing for row in self.replication)
        return not self.unreachable and not self.silent and is_all_there


def report(wanted: Iterable[Desired], found: Found) -> StreamReport:
    """Gather both tables, streams in the order in which records pass them."""
    wanted = tuple(wanted)
    streams = [each for each in wanted if isinstance(each, DesiredStream)]
    is_sealed = {key for key, stream in found.streams.items() if stream.is_sealed}
    harms = [(str(each.place), sealed(each.key)) for each in streams if each.key in is_sealed]
    harms += [(str(each.place), f"{each.name} {harm.text}") for each, harm in found_harms(wanted, found)]
    return StreamReport(
        tuple(_stream_row(each, found) for each in streams),
        tuple(row for each in streams for row in _replication_rows(each, found)),
        {str(place): reason for place, reason in found.unreachable.items()},
        tuple(SourceSilence(str(key[0]), *key[1:], silence(key, found)) for key in sorted(found.silent)),
        tuple(harms),
    )


def _stream_row(wanted: DesiredStream, found: Found) -> StreamRow:
    kind = "mirror" if wanted.config.get("mirror") else "sourced" if wanted.config.get("sources") else "origin"
    stream = found.streams.get(wanted.key)
    if stream is None:
        silent = silence((wanted.place, wanted.name, ""), found).removeprefix(f"{wanted.name} ")
        missing = silent or "is missing: apply creates it"
        missing = "unreachable" if wanted.place in found.unreachable else missing
        return StreamRow(name=wanted.name, place=str(wanted.place), kind=kind, error=missing)
    members = {*(replica.name for replica in stream.cluster.replicas), stream.cluster.leader}
    return StreamRow(
        name=wanted.name,
        place=str(wanted.place),
        kind=kind,
        storage=stream.config["storage"],
        replicas=stream.config["num_replicas"],
        messages=stream.state.messages,
        bytes=stream.state.bytes,
        first_sequence=stream.state.first_seq,
        last_sequence=stream.state.last_seq,
        consumers=stream.state.consumer_count,
        deleted=stream.state.num_deleted,
        lost=len(stream.state.lost.msgs),
        placement=tuple((stream.config.get("placement") or {}).get("tags") or ()),
        servers=tuple(sorted(members - {""})) if stream.cluster.name else (),
        leader=stream.cluster.leader,
        created=format_instant(stream.created // _SECOND * _SECOND),
    )


def _replication_rows(wanted: DesiredStream, found: Found) -> Iterable[ReplicationRow]:
    stream = found.streams.get(wanted.key)
    if stream is None:
        return
    if stream.mirror is not None:
        yield _replication_row(wanted, found, stream.mirror, "mirror", stream.state.last_seq)
    for source, config in _in_order(stream):
        kind = "durable source" if config.get("consumer") else "source"
        form = config or source.source
        taken = found.taken(wanted.key, form) if found.is_taken_known(wanted.key, form) else None
        yield _replication_row(wanted, found, source, kind, taken)
    yield from _missing_rows(wanted, found, stream)


def _missing_rows(wanted: DesiredStream, found: Found, stream: FoundStream) -> Iterable[ReplicationRow]:
    pairs = source_pairs(wanted.config.get("sources") or [], sources_of(stream))
    missing = [("source", source) for current, source in pairs if current is None and source is not None]
    if wanted.config.get("mirror") and not stream.config.get("mirror"):
        missing.append(("mirror", wanted.config["mirror"]))
    for kind, source in missing:
        transforms = [{"src": subject} for subject, _ in taken_subjects(source)]
        copied = Replication(source["name"], External(api_of(source)), subject_transforms=transforms)
        row = _replication_row(wanted, found, copied, kind, 0)
        yield msgspec.structs.replace(row, behind=None, beyond=0, missing=True)


def _in_order(stream: FoundStream) -> Iterable[tuple[Replication, Config]]:
    """Give the sources with their configuration, in its order: the server tells of them in any."""
    configs = sources_of(stream)
    found = []
    for source in stream.sources:
        position = next((n for n, each in enumerate(configs) if is_same_source(source.source, each)), len(configs))
        found.append((position, source))
    for position, source in sorted(found, key=lambda each: each[0]):
        yield source, configs[position] if position < len(configs) else {}


def _replication_row(
    wanted: DesiredStream, found: Found, copied: Replication, kind: str, taken: int | None
) -> ReplicationRow:
    api = copied.external.api or wanted.place.api
    origin = origin_of(found, wanted, copied)
    last = _last(found, wanted, copied)
    copier = found.streams[wanted.key]
    silent_us = copied.active // 1000 if copied.active >= 0 else -1
    lag = copied.lag if 0 <= silent_us <= SILENT_AFTER else None
    return ReplicationRow(
        stream=wanted.name,
        place=str(wanted.place),
        kind=kind,
        api=api,
        source=copied.name,
        source_place=str(origin[0][0]) if origin is not None else _place_of(api),
        silent_us=silent_us,
        lag=copied.lag,
        taken=taken,
        origin_last=last,
        behind=None if last is None else lag if taken is None else max(0, last - taken),
        beyond=beyond(copier, origin[1] if origin is not None else None)
        if kind == "mirror"
        else found.ahead(wanted.key, copied.source, origin),
        confined=is_confined(copied.source),
        takes=copied.subjects,
        error=copied.error.description if copied.error is not None else "",
    )


def _last(found: Found, copier: DesiredStream, copied: Replication) -> int | None:
    """Give the origin's sequence that a copy shall come to; None where the origin, or the filter's last, is unknown."""
    origin = origin_of(found, copier, copied)
    if origin is None or not copied.subjects:
        return origin[1].state.last_seq if origin is not None else None
    matching = [found.last_matching.get((origin[0], subject)) for subject in copied.subjects]
    return None if None in matching else max(each for each in matching if each is not None)


def origin_of(found: Found, copier: DesiredStream, copied: Replication) -> tuple[StreamKey, FoundStream] | None:
    """Find the stream that is copied: of the same connection, or where the topology says, by the API of its reading."""
    api = copied.external.api or copier.place.api
    for origin in copier.origins:
        if (origin.api, origin.name) == (api, copied.name) and origin.key in found.streams:
            return origin.key, found.streams[origin.key]
    for (place, name), stream in found.streams.items():
        same_api = api_prefix(place.domain) == api
        if name == copied.name and same_api and place.connection == copier.place.connection:
            return (place, name), stream
    return None


def _place_of(api: str) -> str:
    """Name the domain of an API, or the API where it is another account's."""
    return domain_of(api) or (api if api != api_prefix() else "hub")

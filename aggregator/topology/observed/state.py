"""Hold what was found: JetStream's own answers as they came, so that nothing in them is lost on the way back."""

import msgspec

from aggregator.topology.desired.confinement import filters_of, is_confined, taken_subjects
from aggregator.topology.desired.model import Config, ConsumerKey, Place, StreamKey
from shared.decoding import Count, Nanoseconds, ReportedInstant
from shared.nats.jetstream_api import domain_of
from shared.nats.server_version import Release

_REPORTS_SEQUENCES = 5
"""JetStream's API level that says how far each source has come (nats-server 2.15)."""


class LostMessages(msgspec.Struct, frozen=True):
    """What the server found missing in its own store."""

    msgs: list[int] = []


class StreamState(msgspec.Struct, frozen=True):
    """How full a stream is; instants in microseconds."""

    messages: Count = 0
    bytes: Count = 0
    first_seq: Count = 0
    first_ts: ReportedInstant = 0
    last_seq: Count = 0
    num_deleted: Count = 0
    consumer_count: Count = 0
    lost: LostMessages = LostMessages()


class External(msgspec.Struct, frozen=True):
    """Whose API a source or mirror reads from."""

    api: str = ""


class ApiFailure(msgspec.Struct, frozen=True):
    """Why a source or mirror does not work, where the server knows."""

    description: str = ""


class Replication(msgspec.Struct, frozen=True):
    """One source or the mirror of a stream, as the server reports on it.

    ``active`` is nanoseconds since it was last heard of, -1 for never; ``seq`` the origin's sequence it has come to
    (not reported for mirrors, which keep sequences); ``lag`` is what the last word from the origin said was pending.
    """

    name: str
    external: External = External()
    filter_subject: str = ""
    subject_transforms: list[dict[str, str]] = []
    active: Nanoseconds = -1
    lag: Count = 0
    seq: Count = 0
    error: ApiFailure | None = None

    @property
    def source(self) -> Config:
        """Say what is copied as a stream's configuration says it."""
        return {
            "name": self.name,
            "external": {"api": self.external.api},
            "filter_subject": self.filter_subject,
            "subject_transforms": self.subject_transforms,
        }

    @property
    def subjects(self) -> tuple[str, ...]:
        """Which of the origin's subjects are taken; none: all."""
        return tuple(filters_of(self.source))


class Replica(msgspec.Struct, frozen=True):
    """One of a stream's followers; ``active`` is nanoseconds since it was last heard of."""

    name: str
    current: bool = False
    offline: bool = False
    active: Nanoseconds = 0
    lag: Count = 0


class StreamCluster(msgspec.Struct, frozen=True):
    """The cluster and leader of a stream; "" for no leader."""

    name: str = ""
    leader: str = ""
    replicas: list[Replica] = []


class FoundStream(msgspec.Struct, frozen=True):
    """A stream as STREAM.INFO describes it; ``config`` is the server's, untouched."""

    config: Config
    created: ReportedInstant
    state: StreamState = StreamState()
    sources: list[Replication] = []
    mirror: Replication | None = None
    cluster: StreamCluster = StreamCluster()
    ts: ReportedInstant = 0

    @property
    def is_sealed(self) -> bool:
        return bool(self.config.get("sealed"))


class AckFloor(msgspec.Struct, frozen=True):
    """How far a consumer was acknowledged without a gap, by its stream's sequence."""

    stream_seq: Count = 0


class FoundConsumer(msgspec.Struct, frozen=True):
    """A consumer as CONSUMER.INFO describes it."""

    config: Config
    ack_floor: AckFloor = AckFloor()
    paused: bool = False


class Room(msgspec.Struct, frozen=True):
    """How many bytes all streams of an account hold in files, and may hold: 0 where only its servers bound it."""

    taken: int
    limit: int = 0


class Found(msgspec.Struct, frozen=True):
    """What there is. What is not there has no entry; ``unreachable`` places say why in one line.

    ``silent``: streams (with "" for the consumer) and consumers about which no answer came, at places that did answer;
    why, in one line.
    ``away``: places that only a source or a consumer names, and that do not answer; why, in one line.
    ``last_matching``: the last sequence of a stream (its key and a subject) that a source with a filter could take.
    ``orphans``: consumers with names such as we give, beside those that are wanted.
    ``again``: what somebody wants to be taken whole once more: who copies, and what.
    ``rooms``: of each place, how much its streams take.
    ``releases``: of each place, its nats-server, where a stream or the connection tells it.
    """

    streams: dict[StreamKey, FoundStream]
    consumers: dict[ConsumerKey, FoundConsumer]
    levels: dict[Place, int]
    unreachable: dict[Place, str]
    last_matching: dict[tuple[StreamKey, str], int] = {}
    orphans: dict[ConsumerKey, FoundConsumer] = {}
    away: dict[Place, str] = {}
    silent: dict[ConsumerKey, str] = {}
    again: frozenset[tuple[StreamKey, StreamKey]] = frozenset()
    rooms: dict[Place, Room] = {}
    releases: dict[Place, Release] = {}

    def taken(self, copier: StreamKey, source: Config) -> int:
        """Give the origin's sequence that a source of ``copier``, as it was found, has come to, 0 for none.

        What it was told to start behind counts as taken: until its first message the server reports 0, and before
        2.15 always; then what its consumer was acknowledged counts, too. Not so where the copy never had a message:
        the consumer may be left from one before it.
        """
        stream = self.streams[copier]
        sequences = [each.seq for each in stream.sources if is_same_source(source, each.source)]
        is_reported = any(sequences) or not stream.state.last_seq
        for each in sources_of(stream):
            if is_same_source(source, each):
                sequences.append(each.get("opt_start_seq", 1) - 1)
                place = origin_place(copier[0], each)
                key = place, each["name"], consumer_name_of(each)
                consumer = self.consumers.get(key) or self.orphans.get(key)
                if consumer is not None:
                    sequences.append(consumer.config.get("opt_start_seq", 1) - 1)
                    sequences.append(0 if is_reported else consumer.ack_floor.stream_seq)
        return max(sequences, default=0)

    def is_taken_known(self, copier: StreamKey, source: Config) -> bool:
        """Tell whether anybody knows how far a source has come: before 2.15 only the consumer that it reads through."""
        stream = self.streams[copier]
        reports = self.levels.get(copier[0], _REPORTS_SEQUENCES) >= _REPORTS_SEQUENCES
        said = any(each.seq for each in stream.sources if is_same_source(source, each.source))
        return reports or said or bool(consumer_name_of(source)) or not stream.state.last_seq

    def ahead(self, copier: StreamKey, source: Config, at: tuple[StreamKey, FoundStream] | None = None) -> int:
        """Count the sequences by which what a source has taken is ahead of its origin: of what that was before.

        Whatever such an origin stores up to there the server takes for old, and leaves out, without an error. Of one
        that is empty it has left out nothing yet; of one that stopped answering nothing can be done about it now.
        ``at`` is the origin where it is in another account.
        """
        origin = at[1] if at is not None else self.origin(copier, source)
        held = origin.state.last_seq if origin is not None else 0
        if not held or (at[0][0] if at is not None else origin_place(copier[0], source)) in self.unreachable:
            return 0
        taken = [each.seq for each in self.streams[copier].sources if is_same_source(source, each.source)]
        return max(0, max(taken, default=0) - held)

    def is_wanted_again(self, copier: StreamKey, source: Config) -> bool:
        """Tell whether somebody wants all of a source once more, and its place answers."""
        place = origin_place(copier[0], source)
        return (copier, (place, source["name"])) in self.again and place not in self.unreachable

    def resumes_behind(self, copier: StreamKey, source: Config) -> int:
        """Give the origin's sequence behind which another source shall go on in the place of one that was found.

        0 where the origin ends before that: it counts anew. A purge leaves it its last sequence. 0 also where all of it
        is wanted again.
        """
        if self.is_wanted_again(copier, source):
            return 0
        origin, taken = self.origin(copier, source), self.taken(copier, source)
        return 0 if origin is not None and origin.state.last_seq < taken else taken

    def origin(self, copier: StreamKey, source: Config) -> FoundStream | None:
        """Give the stream that a source reads, None where it was not found or is another account's."""
        if api_of(source) and not domain_of(api_of(source)):
            return None
        return self.streams.get((origin_place(copier[0], source), source["name"]))


def silence(key: ConsumerKey, found: Found) -> str:
    """Say that nothing is known of a stream or consumer, and why; "" where it was answered for."""
    _, stream, consumer = key
    what = f"{stream}'s consumer {consumer}" if consumer else stream
    return f"{what} is not available: {found.silent[key]}" if key in found.silent else ""


def sealed(key: StreamKey) -> str:
    """Say of a stream that is sealed what that means, and what helps."""
    place, name = key
    command = f"nats{f' --js-domain {place.domain}' if place.domain else ''} stream rm {name}"
    return (
        f"{name} is sealed: it takes neither messages nor changes, and nobody can undo that: unless it is meant so,"
        f" copy what it holds to another stream, then {command}, and apply makes it again"
    )


def beyond(mirror: FoundStream, origin: FoundStream | None) -> int:
    """Count the sequences by which a mirror is ahead of its origin: of what that was before.

    Such an origin was made anew, or restored from an older copy. The mirror waits at its own last sequence, and the
    server shows neither an error nor a lag.
    """
    return max(0, mirror.state.last_seq - origin.state.last_seq) if origin is not None else 0


def sources_of(stream: FoundStream) -> list[Config]:
    return stream.config.get("sources") or []


def copies_of(config: Config) -> list[Config]:
    """Give all that a stream's configuration copies: its sources, or its mirror."""
    return [*(config.get("sources") or []), *filter(None, [config.get("mirror")])]


def api_of(source: Config) -> str:
    """Give the API that a source or mirror reads from, "" for that of its own domain."""
    return str((source.get("external") or {}).get("api", ""))


def consumer_name_of(source: Config) -> str:
    """Name the consumer through which a source or mirror reads, "" where it is plain."""
    return str((source.get("consumer") or {}).get("name", ""))


def origin_place(copier: Place, source: Config) -> Place:
    """Give the place that a source without another account's API reads from."""
    return Place(copier.connection, domain_of(api_of(source)) or copier.domain)


def is_same_source(wanted: Config, found: Config) -> bool:
    """Tell whether two configurations are one source to the server: another filter or transform makes another one.

    Where ``wanted`` does not speak of filters, any will do: that is the operator's. A durable source is taken for the
    plain one that takes the same, and one that is confined for one that is not.
    """
    if (wanted["name"], api_of(wanted)) != (found["name"], api_of(found)):
        return False
    spoken = [field for field in ("filter_subject", "subject_transforms") if field in wanted]
    if spoken and (wanted.get("consumer") or found.get("consumer") or is_confined(wanted)):
        return taken_subjects(wanted) == taken_subjects(found)
    return all((wanted[field] or None) == (found.get(field) or None) for field in spoken)

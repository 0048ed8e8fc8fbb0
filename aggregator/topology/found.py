"""Hold what was found: JetStream's own answers as they came, so that nothing in them is lost on the way back."""

from typing import Any

import msgspec

from aggregator.topology.desired import Config, Place

StreamKey = tuple[Place, str]
ConsumerKey = tuple[Place, str, str]


class StreamState(msgspec.Struct, frozen=True):
    """How full a stream is; instants as RFC 3339, as the server wrote them."""

    messages: int = 0
    bytes: int = 0
    first_seq: int = 0
    first_ts: str = ""
    last_seq: int = 0
    last_ts: str = ""


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
    active: int = -1
    lag: int = 0
    seq: int = 0
    error: ApiFailure | None = None


class FoundStream(msgspec.Struct, frozen=True):
    """A stream as STREAM.INFO describes it; ``config`` is the server's, untouched."""

    config: Config
    created: str
    state: StreamState = StreamState()
    sources: list[Replication] = []
    mirror: Replication | None = None
    ts: str = ""


class FoundConsumer(msgspec.Struct, frozen=True):
    """A consumer as CONSUMER.INFO describes it."""

    config: Config
    created: str


class Found(msgspec.Struct, frozen=True):
    """What there is. What is not there has no entry; ``unreachable`` places say why in one line."""

    streams: dict[StreamKey, FoundStream]
    consumers: dict[ConsumerKey, FoundConsumer]
    levels: dict[Place, int]
    unreachable: dict[Place, str]

    def taken(self, archive: FoundStream, key: "SourceKey") -> int:
        """Give the origin's sequence that a source of ``archive`` has come to, 0 for none.

        What it was told to start behind counts as taken: until its first message the server reports 0.
        """
        sequences = [source.seq for source in archive.sources if (source.name, source.external.api) == key]
        for source in archive.config.get("sources") or []:
            if source_key(source) == key:
                sequences.append(source.get("opt_start_seq", 1) - 1)
                consumer_name = (source.get("consumer") or {}).get("name", "")
                sequences += [
                    consumer.config.get("opt_start_seq", 1) - 1
                    for (place, stream, name), consumer in self.consumers.items()
                    if (stream, place.api) == key and name == consumer_name
                ]
        return max(sequences, default=0)


SourceKey = tuple[str, str]


def source_key(source: dict[str, Any]) -> SourceKey:
    """Tell sources of one name apart by the API they read from."""
    return str(source["name"]), str((source.get("external") or {}).get("api", ""))

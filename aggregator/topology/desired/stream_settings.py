"""Say how streams are written in ``topology.toml``: what every stream has, and the freely laid out ``[[stream]]``.

``[[stream]]`` describes any stream of the hub, a region or a site, with the streams that it copies: several sources, or
one mirror. Where it says nothing, the server's own default holds.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.identifiers import InvalidIdentifier, validated_token
from shared.settings import Duration, Settings, Size
from shared.subjects import is_readable, overlap

Storage = Literal["file", "memory"]
Retention = Literal["limits", "workqueue", "interest"]
Sourcing = Literal["durable", "plain"]
HUB_PLACE = "hub"
_SHORTEST = 100_000
_LARGEST_LIMIT = 2**31 - 1


def check_name(name: str, what: str) -> None:
    """Raise ValueError unless ``name`` can stand in a subject."""
    try:
        validated_token(name, what)
    except InvalidIdentifier as error:
        raise ValueError(str(error)) from None


def refuse_repeated(what: str, names: Iterable[str]) -> None:
    """Raise ValueError where a name stands twice."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} stands here more than once")


class StreamOptions(Settings, frozen=True):
    """What every stream has. Messages go when they are older than ``max_age`` or beyond ``max_bytes``."""

    name: Annotated[str, Meta(description="the stream's name")]
    storage: Annotated[Storage, Meta(description="file or memory")] = "file"
    replicas: Annotated[int, Meta(ge=1, le=5, description="copies within the cluster")] = 1
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration(0)
    max_bytes: Annotated[Size, Meta(description="how much is kept; 0 = no limit of its own")] = Size(0)
    duplicate_window: Annotated[
        Duration, Meta(description="how long a message id is remembered; 0s = the server's default")
    ] = Duration(0)
    compression: Annotated[Literal["none", "s2"], Meta(description="of files: none or s2")] = "none"

    def __post_init__(self) -> None:
        check_name(self.name, "stream")
        for name, duration in (("max_age", self.max_age), ("duplicate_window", self.duplicate_window)):
            if 0 < duration < _SHORTEST:
                raise ValueError(f"{name} is at least 100ms, or 0s")
        if self.max_age and self.duplicate_window > self.max_age:
            raise ValueError("duplicate_window must not exceed max_age")


class TransformSettings(Settings, frozen=True):
    """One subject transform: takes what matches ``source``, and stores it as ``destination``."""

    source: Annotated[str, Meta(min_length=1, description="the origin's subjects that are taken")]
    destination: Annotated[str, Meta(description="the subjects under which they are stored; default: as they are")] = ""


class OriginSettings(Settings, frozen=True):
    """A stream that is copied, as a source or as the mirror's origin. All of it is set up at the receiving side."""

    name: Annotated[str, Meta(description="the origin's name")]
    domain: Annotated[str, Meta(description="the origin's JetStream domain; default: the stream's own")] = ""
    api: Annotated[str, Meta(description="another account's API, as this stream's account imports it")] = ""
    deliver: Annotated[
        str, Meta(description="the imported subject below which it sends; with api, for this copy alone")
    ] = ""
    place: Annotated[str, Meta(description="with api: where in this file the origin is, so that reports find it")] = ""
    start_sequence: Annotated[
        int, Meta(ge=0, description="the origin's first sequence to take; 0 = from the start")
    ] = 0
    start_time: Annotated[
        Annotated[datetime, Meta(tz=True)] | None,
        Meta(description="take what the origin stored at this time or later, such as 2026-01-31T00:00:00Z"),
    ] = None
    filter_subject: Annotated[str, Meta(description="take only what matches; not together with transforms")] = ""
    transforms: Annotated[
        tuple[TransformSettings, ...], Meta(description="take and rename; not together with filter_subject")
    ] = ()
    sourcing: Annotated[
        Sourcing | None,
        Meta(description="durable (a source's default, where servers know it) or plain (a mirror's, and with api)"),
    ] = None
    allow: Annotated[
        bool, Meta(description="copy an interest origin, or a workqueue origin behind a leaf link, all the same")
    ] = False

    def __post_init__(self) -> None:
        check_name(self.name, "stream")
        if self.domain:
            check_name(self.domain, "domain")
        if self.domain and self.api:
            raise ValueError("domain and api exclude each other: an API of another account names its domain itself")
        if bool(self.api) != bool(self.deliver):
            raise ValueError("api and deliver belong together, one is missing")
        if self.api and self.sourcing == "durable":
            raise ValueError("an origin of another account is copied plainly: leave out sourcing, or api and deliver")
        if self.place and not self.api:
            raise ValueError("place says where an origin of another account is: it needs api and deliver")
        if self.filter_subject and self.transforms:
            raise ValueError(
                "filter_subject and transforms exclude each other: a transform takes only what matches its source"
            )
        if self.start_sequence and self.start_time is not None:
            raise ValueError("start_sequence and start_time exclude each other, keep one")

    @property
    def identity(self) -> str:
        """Tell apart what a stream copies: to the server, a source with another filter or transform is another one."""
        renamed = ",".join(f"{each.source}>{each.destination}" for each in self.transforms)
        return f"{self.api or self.domain}/{self.name} {self.filter_subject}{renamed}".rstrip()


class PlacementSettings(Settings, frozen=True):
    """Where in a cluster or supercluster the replicas may be."""

    cluster: Annotated[str, Meta(description="the cluster's name")] = ""
    tags: Annotated[tuple[str, ...], Meta(description="tags that every server with a replica must have")] = ()


class FreeStreamSettings(StreamOptions, frozen=True):
    """Any stream: where it is, what it takes from publishers, what it copies, what it keeps, what it forbids."""

    place: Annotated[str, Meta(description='"hub", a region, a site with a server, or an account')] = HUB_PLACE
    domain: Annotated[str, Meta(description="a JetStream domain that the hub reaches, where it is no region's")] = ""
    subjects: Annotated[tuple[str, ...], Meta(description="what it listens to; none: it only copies")] = ()
    retention: Annotated[Retention, Meta(description="when messages go: limits, workqueue or interest")] = "limits"
    discard: Annotated[Literal["old", "new"], Meta(description="at a limit, drop the oldest or refuse the newest")] = (
        "old"
    )
    max_messages: Annotated[int, Meta(ge=0, description="how many are kept; 0 = unlimited")] = 0
    max_messages_per_subject: Annotated[int, Meta(ge=0, description="of one subject; 0 = unlimited")] = 0
    max_message_size: Annotated[Size, Meta(description="larger messages are refused; 0 = unlimited")] = Size(0)
    allow_direct: Annotated[bool, Meta(description="every replica answers direct gets")] = True
    mirror_direct: Annotated[bool, Meta(description="a mirror answers direct gets for its origin")] = False
    allow_atomic: Annotated[bool, Meta(description="take atomic batches (nats-server 2.12)")] = False
    allow_rollup: Annotated[bool, Meta(description="a message may replace those before it (Nats-Rollup)")] = False
    deny_delete: Annotated[bool, Meta(description="refuse to delete single messages, for good")] = False
    deny_purge: Annotated[bool, Meta(description="refuse to purge, for good")] = False
    description: Annotated[str, Meta(description="for people")] = ""
    placement: Annotated[PlacementSettings | None, Meta(description="where the replicas may be")] = None
    sources: Annotated[tuple[OriginSettings, ...], Meta(description="streams that it copies, in one table each")] = (
        msgspec.field(default=(), name="source")
    )
    mirror: Annotated[OriginSettings | None, Meta(description="the one stream that it is a copy of")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.domain:
            check_name(self.domain, "domain")
            if self.place != HUB_PLACE:
                raise ValueError(f"domain and place exclude each other: {self.place!r} has its own domain")
        refuse_repeated("source", (source.identity for source in self.sources))
        if self.mirror is not None and self.sources:
            raise ValueError("mirror and source exclude each other: a stream is a copy of one, or gathers several")
        if self.mirror is not None and self.subjects:
            raise ValueError("a mirror listens to no subjects: leave out subjects, or use a source")
        if self.mirror is None and self.mirror_direct:
            raise ValueError("mirror_direct needs a mirror")
        if self.max_messages_per_subject and not self.allow_direct:
            raise ValueError(
                "with max_messages_per_subject the server always answers direct gets: not allow_direct = false"
            )
        if self.mirror is None and not self.sources and not self.subjects:
            raise ValueError(f"stream {self.name!r} takes nothing: give it subjects, a source or a mirror")
        self._refuse_what_servers_refuse()

    def _refuse_what_servers_refuse(self) -> None:
        """Raise ValueError here already, before an apply has done half of its steps."""
        for number, subject in enumerate(self.subjects):
            if subject == ">" or not is_readable(subject):
                raise ValueError(f"no stream can listen to {subject!r}")
            other = next((each for each in self.subjects[:number] if overlap(each, subject)), None)
            if other is not None:
                raise ValueError(f"subjects {other!r} and {subject!r} overlap")
        if self.max_message_size > _LARGEST_LIMIT:
            raise ValueError("max_message_size is below 2GiB, or 0")
        if self.allow_rollup and self.deny_purge:
            raise ValueError("allow_rollup and deny_purge exclude each other: a rollup removes messages")
        if self.mirror is not None and self.allow_atomic:
            raise ValueError("a mirror takes no batches: leave out allow_atomic")

    @property
    def origins(self) -> tuple[OriginSettings, ...]:
        return self.sources if self.mirror is None else (self.mirror,)

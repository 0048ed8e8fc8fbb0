"""Name what is wanted, where it is, and what it copies: the words that plan, report and check share. Pure."""

from collections.abc import Iterable
from typing import Any

import msgspec

from shared.nats.jetstream_api import api_prefix

Config = dict[str, Any]

HUB = ""
EVERYTHING: Config = {"deliver_policy": "all"}


class Place(msgspec.Struct, frozen=True, order=True):
    """One JetStream API: ``connection`` is HUB or a site's name, ``domain`` "" where it is the connection's own."""

    connection: str
    domain: str

    @property
    def api(self) -> str:
        """``$JS.<domain>.API``, or ``$JS.API``."""
        return api_prefix(self.domain)

    def __str__(self) -> str:
        return self.connection or self.domain or "hub"


StreamKey = tuple[Place, str]
ConsumerKey = tuple[Place, str, str]


class Origin(msgspec.Struct, frozen=True):
    """A stream that another copies; ``allow`` where it may be one that cannot be copied safely.

    ``subjects`` are those of it that are taken; none: all. ``api`` is another account's, as the copy's imports it.
    """

    place: Place
    name: str
    subjects: tuple[str, ...] = ()
    allow: bool = False
    api: str = ""

    @property
    def key(self) -> StreamKey:
        return self.place, self.name


class DesiredStream(msgspec.Struct, frozen=True):
    """A stream that should be; ``config`` holds the managed fields, ``origins`` what it copies.

    ``carries``: the subjects of our records that are to be found there; none for one that is freely laid out.
    """

    place: Place
    name: str
    config: Config
    origins: tuple[Origin, ...] = ()
    carries: tuple[str, ...] = ()

    @property
    def key(self) -> StreamKey:
        return self.place, self.name


class Copying(msgspec.Struct, frozen=True):
    """What of which stream is copied through a consumer: the stream that copies, and its source or mirror.

    ``source`` is that as a stream's configuration has it where the copy is plain.
    """

    place: Place
    stream: str
    source: Config
    deliver_subject: str

    @property
    def key(self) -> StreamKey:
        return self.place, self.stream


class DesiredConsumer(msgspec.Struct, frozen=True):
    """A durable consumer, made at the origin: what a stream copies through, or without ``copying`` a site's, of policy.

    ``start`` says where a new one begins. One that is copied through is not ``wanted`` where the copy is plain.
    """

    place: Place
    stream: str
    name: str
    config: Config
    start: Config = msgspec.field(default_factory=EVERYTHING.copy)
    copying: Copying | None = None
    wanted: bool = True

    @property
    def key(self) -> ConsumerKey:
        return self.place, self.stream, self.name

    @property
    def stream_key(self) -> StreamKey:
        return self.place, self.stream


Desired = DesiredStream | DesiredConsumer


def lines_by_place(said: Iterable[tuple[Place | str, str]]) -> list[str]:
    """Write a line for each thing that is said, and name there all the places of which it is."""
    places: dict[str, list[str]] = {}
    for place, text in said:
        places.setdefault(text, []).append(str(place))
    return [f"{', '.join(dict.fromkeys(names))}: {text}" for text, names in places.items()]

"""Name what is wanted, where it is, and what it copies: the words that plan, report and check share. Pure."""

from typing import Any

import msgspec

from shared.jetstream_api import api_prefix

Config = dict[str, Any]

HUB = ""


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


class Origin(msgspec.Struct, frozen=True):
    """A stream that another copies; ``allow`` where it may be one that cannot be copied safely.

    ``subjects`` are those of it that are taken; none: all. ``api`` is another account's, as the copy's imports it.
    """

    place: Place
    name: str
    subjects: tuple[str, ...] = ()
    allow: bool = False
    api: str = ""


class DesiredStream(msgspec.Struct, frozen=True):
    """A stream that should be; ``config`` holds the managed fields, ``origins`` what it copies."""

    place: Place
    name: str
    config: Config
    origins: tuple[Origin, ...] = ()


class DesiredConsumer(msgspec.Struct, frozen=True):
    """A durable consumer: of a region's FLEET, from which ``archive`` sources, or without that a site's, of policy.

    The archive's is not ``wanted`` where sourcing is plain.
    """

    place: Place
    stream: str
    name: str
    config: Config
    archive: tuple[Place, str] | None = None
    wanted: bool = True


Desired = DesiredStream | DesiredConsumer

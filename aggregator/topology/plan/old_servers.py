"""Servers that are older than what is wanted of them: what to leave out there, and what to report. Pure."""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.desired.model import Desired, DesiredStream, Place
from aggregator.topology.observed.state import Found
from shared.nats.server_version import doubts, unusable
from shared.policy import STREAM as POLICY

_LEVELS = {"allow_atomic": 2}
"""Fields of streams, and the API level that knows them: an older server leaves them out of what it answers."""


def without_unknown_fields(wanted: Iterable[Desired], found: Found) -> tuple[Desired, ...]:
    """Take out of streams the fields that the server of their place does not know."""
    return tuple(_known(each, found) if isinstance(each, DesiredStream) else each for each in wanted)


def _known(stream: DesiredStream, found: Found) -> DesiredStream:
    level = found.levels.get(stream.place)
    unknown = {field for field, since in _LEVELS.items() if level is not None and level < since}
    config = {field: value for field, value in stream.config.items() if field not in unknown}
    return msgspec.structs.replace(stream, config=config)


def unusable_servers(found: Found) -> Iterator[tuple[Place, str]]:
    """Yield the places whose servers cannot be used, and why."""
    for place, release in sorted(found.releases.items()):
        if why := unusable(release):
            yield place, why


def server_doubts(wanted: Iterable[Desired], found: Found) -> Iterator[tuple[Place, str]]:
    """Yield the places whose servers are to be upgraded, and why."""
    copied_from = {
        origin.place
        for each in wanted
        if isinstance(each, DesiredStream) and each.name == POLICY
        for origin in each.origins
        if origin.place != each.place
    }
    for place, release in sorted(found.releases.items()):
        yield from ((place, why) for why in doubts(release, is_policys_hub=place in copied_from))

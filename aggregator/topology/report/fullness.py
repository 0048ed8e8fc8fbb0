"""Tell which streams and places are near the room that they have, and by whom they were filled. Pure.

A FLEET that is full refuses what is new. ARCHIVE and REPORT let go of their oldest: that is no news where they are made
so that they keep less than ``max_age``, but for who fills them faster than anybody meant.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.desired.model import DesiredStream, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import hub_place, region_place
from aggregator.topology.observed.state import Found, FoundStream
from shared.instants import MINUTE, format_duration
from shared.sizes import format_size


class Fullness(msgspec.Struct, frozen=True):
    """How much of its room is taken, from 0 to 1. ``refuses``: where it is full, it takes nothing more."""

    place: Place
    share: float
    text: str
    refuses: bool


def fullnesses(topology: TopologySettings, wanted: Iterable[DesiredStream], found: Found) -> Iterator[Fullness]:
    hub = hub_place(topology)
    for each in wanted:
        stream = found.streams.get(each.key)
        limit = stream.config.get("max_bytes") or -1 if stream is not None else -1
        if stream is None or limit <= 0:
            continue
        share = stream.state.bytes / limit
        text = f"{each.name} holds {share:.0%} of its max_bytes ({format_size(limit)})"
        if stream.config.get("discard") == "new":
            see = f"nats stream subjects {each.name}{f' --js-domain {each.place.domain}' if each.place.domain else ''}"
            then = f"then it refuses what is new, and publishers keep it: see who fills it ({see})"
            yield Fullness(each.place, share, f"{text}: {then}, or raise max_bytes", refuses=True)
        elif each.place == hub and each.name in (topology.archive.name, topology.report.name) and _is_fast(stream):
            kept = f"all of it came within {format_duration(_kept(stream))}"
            then = f"then it lets go of the oldest: raise max_bytes, or shorten max_age{_most(topology, found)}"
            yield Fullness(each.place, share, f"{text}, {kept}; {then}", refuses=False)
    for place, servers in _servers(topology).items():
        limit = found.rooms[place].limit if place in found.rooms else 0
        limit = limit if limit > 0 else int(topology.render.max_store) * servers
        if place in found.rooms and limit > 0:
            held = f"holds {format_size(found.rooms[place].taken)} of {format_size(limit)} that its servers may"
            then = "then no stream there takes anything: raise max_store, or give streams a max_bytes"
            then += _most(topology, found)
            yield Fullness(place, found.rooms[place].taken / limit, f"JetStream {held}: {then}", refuses=True)


def _servers(topology: TopologySettings) -> dict[Place, int]:
    regions = {region_place(each): max(1, len(each.servers)) for each in topology.regions}
    return {hub_place(topology): max(1, len(topology.hub.servers))} | regions


def _is_fast(stream: FoundStream) -> bool:
    """Tell whether a stream fills so that it will keep less than half of what its ``max_age`` says."""
    max_age = (stream.config.get("max_age") or 0) // 1000
    limit = stream.config["max_bytes"]
    return not max_age or _kept(stream) * limit < stream.state.bytes * max_age / 2


def _kept(stream: FoundStream) -> int:
    """Say how old the oldest message is, a minute at least."""
    if not stream.state.first_ts:
        return MINUTE
    return max(MINUTE, stream.ts - stream.state.first_ts)


def _most(topology: TopologySettings, found: Found) -> str:
    """Name the region whose FLEET takes the most for each second."""
    rates = []
    for region in topology.regions:
        fleet = found.streams.get((region_place(region), topology.fleet_of(region).name))
        if fleet is not None and fleet.state.bytes:
            rates.append((fleet.state.bytes / _kept(fleet), region.name, fleet))
    if not rates:
        return ""
    _, name, fleet = max(rates, key=lambda each: each[:2])
    return f" (most comes from {name}: {format_size(fleet.state.bytes)} within {format_duration(_kept(fleet))})"

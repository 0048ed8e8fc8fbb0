"""Write topologies for tests, and answer as servers would on which they were applied."""

from pathlib import Path
from typing import Any

import msgspec

from aggregator.topology.desired.model import HUB, Desired, DesiredStream, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import Found, FoundConsumer, FoundStream, Replication, StreamState
from aggregator.topology.plan.changes import Change, plan
from aggregator.topology.plan.durable_sources import with_durable_sources
from shared.instants import parse_instant
from shared.settings import parse_settings

HUB_PLACE = Place(HUB, "hub")
EU, US = Place(HUB, "eu-west"), Place(HUB, "us-east")
LEVEL = 5
DAY = 86_400 * 10**9
TWO_REGIONS = """
    [hub]
    servers = ["nats://hub:4222"]
    domain = "hub"
    [[region]]
    name = "eu-west"
    [[region]]
    name = "us-east"
"""


def topology(text: str = "") -> TopologySettings:
    return parse_settings(TWO_REGIONS + text, TopologySettings, Path("topology.toml"))


def nothing(*places: Place) -> Found:
    return Found({}, {}, dict.fromkeys(places or (HUB_PLACE, EU, US), LEVEL), {})


def as_applied(wanted: tuple[Desired, ...], **changed: dict[str, Any]) -> Found:
    """Answer as a server would after ``wanted`` was applied; ``changed`` lays other configuration over a stream's."""
    found = nothing(*{each.place for each in wanted})
    for each in with_durable_sources(wanted, found):
        if isinstance(each, DesiredStream):
            config = {"placement": {"tags": ["operator's"]}, **each.config, **changed.get(each.name, {})}
            created, asked_at = map(parse_instant, ("2026-01-01T00:00:00Z", "2026-01-31T00:00:00Z"))
            found.streams[each.place, each.name] = FoundStream(config, created, ts=asked_at)
        elif each.wanted:
            found.consumers[each.place, each.stream, each.name] = FoundConsumer(each.config | each.start)
    return found


def with_state(found: Found, place: Place, name: str, state: StreamState, *sources: Replication) -> None:
    stream = found.streams[place, name]
    found.streams[place, name] = FoundStream(stream.config, stream.created, state, list(sources), ts=stream.ts)


def applied(text: str, **changed: dict[str, Any]) -> Found:
    """Answer as servers do: what is not set is not told."""
    found = as_applied(desired(topology(text)), **changed)
    for key, each in found.streams.items():
        config = {name: value for name, value in each.config.items() if value is not None}
        for name in ("sources", "mirror"):
            copied = config.get(name)
            if isinstance(copied, list):
                config[name] = [{k: v for k, v in source.items() if v is not None} for source in copied]
            elif copied:
                config[name] = {k: v for k, v in copied.items() if v is not None}
        found.streams[key] = msgspec.structs.replace(each, config=config)
    return found


def changes(text: str, found: Found) -> tuple[Change, ...]:
    todo = plan(desired(topology(text)), found)
    assert not todo.refused
    return todo.changes

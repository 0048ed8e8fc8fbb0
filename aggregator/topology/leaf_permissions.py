"""Say what may pass the link between a region's servers and the hub, seen from the hub. Pure.

A region's servers can be taken too. What they may send is what the hub copies from them, under subjects that name the
copy; answers to what they were asked, in an inbox that is for their domain alone; and, for what they copy from the hub,
a word to the consumer that the hub keeps for just that copy. They make and delete nothing at the hub, and hear nothing
that is for other regions.

Plain copies are wider: their servers make consumers at the origin for themselves, under subjects that nobody foresees.
"""

from collections.abc import Iterator
from typing import NamedTuple

from aggregator.topology.desired import desired
from aggregator.topology.permissions import LEAVES, Grant
from aggregator.topology.settings import RegionSettings, TopologySettings
from aggregator.topology.stream_settings import HUB_PLACE
from aggregator.topology.words import DesiredConsumer, DesiredStream
from shared.jetstream_api import api_prefix, domain_inbox

_ANSWERS = "$JSC.R"
"""Where servers hear the answers to their requests: with ``js_api_reply_v2``, by domain, account, stream, consumer."""

_PLAIN_SOURCES, _PLAIN_MIRRORS = "$JS.S.>", "$JS.M.>"


def leaf_of_region(topology: TopologySettings, region: RegionSettings) -> Grant:
    """Let a region's servers answer for their own domain, send what the hub copies, and copy what is theirs to copy."""
    hub, here = topology.hub.domain or HUB_PLACE, region.jetstream_domain
    api = api_prefix(hub)
    coming, going = [domain_inbox("_INBOX", here, ">")], [f"{api_prefix(here)}.>"]
    for link in _links(topology):
        name = f"{link.origin}.{link.consumer or '*'}"
        if (link.place, link.copier) == (here, hub):
            coming += [link.deliveries, f"{_ANSWERS}.{here}.*.{name}.>"]
            going.append(f"$JS.FC.{name}.>")
        elif (link.place, link.copier) == (hub, here):
            asked = (f"RESET.{name}",) if link.consumer else (f"CREATE.{link.origin}", f"CREATE.{link.origin}.>")
            coming += [*(f"{api}.CONSUMER.{each}" for each in asked), f"$JS.FC.{name}.>"]
            going += [link.deliveries, f"{_ANSWERS}.{hub}.*.{name}.>"]
    return Grant(f"{region.name}-leaf", tuple(dict.fromkeys(coming)), tuple(dict.fromkeys(going)), LEAVES)


class _Link(NamedTuple):
    """One copying: of ``origin`` of one domain in the domain ``copier``; ``consumer`` is "" where it is plain."""

    place: str
    origin: str
    copier: str
    consumer: str
    deliveries: str


def _links(topology: TopologySettings) -> Iterator[_Link]:
    wanted = desired(topology)
    own = topology.hub.domain or HUB_PLACE
    durable = set()
    for each in wanted:
        if isinstance(each, DesiredConsumer) and each.copying is not None and each.wanted:
            durable.add((each.copying.key, each.place, each.stream))
            place, copier = each.place.domain or own, each.copying.place.domain or own
            yield _Link(place, each.stream, copier, each.name, each.copying.deliver_subject)
    for each in wanted:
        for origin in each.origins if isinstance(each, DesiredStream) else ():
            if not origin.api and ((each.place, each.name), origin.place, origin.name) not in durable:
                deliveries = _PLAIN_MIRRORS if each.config.get("mirror") else _PLAIN_SOURCES
                place, copier = origin.place.domain or own, each.place.domain or own
                yield _Link(place, origin.name, copier, "", deliveries)

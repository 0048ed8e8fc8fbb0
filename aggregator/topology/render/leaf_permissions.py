"""Say what may pass the link between a region's servers and the hub, seen from the hub. Pure.

A region's servers can be taken too. At the hub their link has an account of its own, which takes of the account with
the streams a word to the consumers that the hub keeps for just what the region copies, and lends it the region's own
API. In one account with the streams, the answer to the one request that a region may make goes to whatever subject the
region names for it, MUSTER_POLICY's among them, and its acknowledgements to whatever consumer it names: ``$JS.ACK.>``
passes every leaf link, whatever permissions say (tried on 2.15.1). Across accounts both end in the region's own.

Beside that they send what the hub copies from them, under subjects that name the copy. They make and delete nothing at
the hub, and hear nothing that is for other regions.

Plain copies are wider: their servers make consumers at the origin for themselves, under subjects that nobody foresees.
"""

from collections.abc import Iterator
from typing import NamedTuple

from aggregator.topology.desired.model import DesiredConsumer, DesiredStream
from aggregator.topology.desired.settings import RegionSettings, TopologySettings
from aggregator.topology.desired.stream_settings import HUB_PLACE
from aggregator.topology.desired.streams import desired
from aggregator.topology.render.permissions import AGGREGATOR, LEAVES, Account, Grant
from shared.nats.jetstream_api import api_prefix

_ANSWERS = "$JSC.R.>"
"""Where servers hear the answers to what they asked for the sake of a copy."""
_SERVICE_ANSWERS = "_R_.>"
"""Where answers go to what came from another account."""

_PLAIN_SOURCES, _PLAIN_MIRRORS = "$JS.S.>", "$JS.M.>"


def account_of_region(topology: TopologySettings, region: RegionSettings) -> Account:
    """Let a region's servers answer for their own domain, send what the hub copies, and copy what is theirs to copy."""
    hub, here = topology.hub.domain or HUB_PLACE, region.jetstream_domain
    api = api_prefix(hub)
    asked, delivered, confirmed, copied, lent = [], [], [], [], []
    for link in _links(topology):
        name = f"{link.origin}.{link.consumer or '*'}"
        flow = f"$JS.FC.{name}.>"
        requests = (f"RESET.{name}",) if link.consumer else (f"CREATE.{link.origin}", f"CREATE.{link.origin}.>")
        if (link.place, link.copier) == (here, hub):
            lent += [f"{api_prefix(here)}.CONSUMER.{each}" for each in requests]
            delivered.append(link.deliveries)
            confirmed.append(flow)
        elif (link.place, link.copier) == (hub, here):
            asked += [*(f"{api}.CONSUMER.{each}" for each in requests), flow]
            copied.append(link.deliveries)
    own, lender = f"{api_prefix(here)}.>", topology.render.account
    heard = dict.fromkeys((own, *confirmed, *copied, *([_ANSWERS] if asked else [])))
    grant = Grant(leaf_key(region), tuple(dict.fromkeys((_SERVICE_ANSWERS, *delivered, *asked))), tuple(heard), LEAVES)

    def with_lender(subjects: list[str]) -> tuple[tuple[str, str], ...]:
        return tuple((subject, lender) for subject in dict.fromkeys(subjects))

    return Account(
        name=account_name(region),
        grants=(grant,),
        jetstream=False,
        lends=((own, AGGREGATOR), *with_lender(lent)),
        takes=with_lender(asked),
        sends=with_lender(delivered),
        hears=with_lender([*confirmed, *copied]),
    )


def account_name(region: RegionSettings) -> str:
    return f"REGION_{region.name}"


def leaf_key(region: RegionSettings) -> str:
    return f"{region.name}-leaf"


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
            if not origin.api and (each.key, origin.place, origin.name) not in durable:
                deliveries = _PLAIN_MIRRORS if each.config.get("mirror") else _PLAIN_SOURCES
                place, copier = origin.place.domain or own, each.place.domain or own
                yield _Link(place, origin.name, copier, "", deliveries)

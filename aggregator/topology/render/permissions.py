"""Say what each user of the servers may do, and no more. Pure.

A site's key can be stolen with its machine. In the region it lets its holder publish as that site, hear the
acknowledgements, and see its own last watermarks; every other subject, stream, consumer and inbox is closed to it.
Permissions protect the subject of a record, from which readers take whose it is.

Each site has an account of its own there, which lends nothing and takes one service: storing what lies below its own
subject. In one account with the stream, whoever publishes may name any subject as the one for the server's answer, and
have it stored as another site's record (tried on 2.15.1). Across accounts answers come back to the asking one. The
account also bounds the site's connections: a server has a number of them for all, and one key could take them all.

A region's servers can be taken too. At the hub their link has an account of its own. It takes, from the account with
the streams, requests to the consumers that the hub keeps for the copies of this region, and lends it the region's own
API. In one account with the streams, the answer to the one request that a region may make goes to any subject that the
region names for it, MUSTER_POLICY's among them, and its acknowledgements to any consumer it names: ``$JS.ACK.>`` passes
every leaf link, whatever permissions say (tried on 2.15.1). Across accounts both end in the region's own. In addition
a region sends the messages that the hub copies from it, under subjects that name the copy. It makes and deletes nothing
at the hub, and hears nothing that is for other regions. Plain copies are wider: their servers make consumers at the
origin for themselves, under subjects that cannot be foreseen.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec

from aggregator.topology.desired.model import DesiredConsumer, DesiredStream
from aggregator.topology.desired.settings import RegionSettings, RelaySettings, SiteSettings, TopologySettings
from aggregator.topology.desired.stream_settings import HUB_PLACE
from aggregator.topology.desired.streams import desired, relay_consumer
from shared.identifiers import BlockId
from shared.nats.jetstream_api import api_prefix
from shared.policy import EVERY_REVISION, STREAM, consumer_name
from shared.subjects import ROOT, RecordType, probe_subject, watermark_subject

CLIENTS, LEAVES = "STANDARD", "LEAFNODE"
AGGREGATOR, READER = "AGGREGATOR", "READER"
CONNECTIONS_OF_A_SITE = 16
"""In its region: of an agent or two, of their doctors, and of what a cut link left open until it is missed."""


class Grant(msgspec.Struct, frozen=True):
    """What one user may publish, and subscribe to; by which kind of connection. ``key`` is the name of its key."""

    key: str
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    connection: str = CLIENTS


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Users who meet nobody else. ``lends``: subjects, and who may ask there; ``takes``: subjects, and who answers.

    ``sends``: subjects, and who hears what is published there; ``hears``: subjects, and who sends there.
    ``mapped``: subjects that stand for others.
    ``most_connections`` bounds how many they may have open at once, 0 leaves that to the server.
    """

    name: str
    grants: tuple[Grant, ...] = ()
    jetstream: bool = True
    most_connections: int = 0
    lends: tuple[tuple[str, str], ...] = ()
    takes: tuple[tuple[str, str], ...] = ()
    sends: tuple[tuple[str, str], ...] = ()
    hears: tuple[tuple[str, str], ...] = ()
    mapped: tuple[tuple[str, str], ...] = ()

    def beside(self, *others: "Account") -> "Account":
        """Let it lend what the others take of it, take what they lend it, and so on."""

        def met(mine: str, theirs: str) -> tuple[tuple[str, str], ...]:
            found = [
                (subject, each.name) for each in others for subject, of in getattr(each, theirs) if of == self.name
            ]
            return tuple(dict.fromkeys((*getattr(self, mine), *found)))

        return msgspec.structs.replace(
            self,
            lends=met("lends", "takes"),
            takes=met("takes", "lends"),
            sends=met("sends", "hears"),
            hears=met("hears", "sends"),
        )


def aggregator(
    streams: str, domain: str, regions: Iterable[tuple[str, str]] = (), *, sets_policy: bool = False
) -> Account:
    """Let the aggregator lay out and read the account ``streams``, and ``regions`` (domain, account); publish policy.

    From an account of its own: no answer that it asks for becomes a record, and what is in the account with the streams
    reaches no region's API.
    """
    takes = [
        (f"{api_prefix()}.>", streams),
        *((f"{api_prefix(each)}.>", account) for each, account in regions),
        *([(EVERY_REVISION, streams)] if sets_policy else []),
    ]
    grant = Grant("aggregator", tuple(subject for subject, _ in takes), ("_INBOX.>",))
    mapped = ((f"{api_prefix(domain)}.>", f"{api_prefix()}.>"),) if domain else ()
    return Account(name=AGGREGATOR, grants=(grant,), jetstream=False, takes=tuple(takes), mapped=mapped)


def reader(streams: str, domain: str, read: Iterable[str]) -> Account:
    """Let rollups read the streams ``read`` of the account ``streams``, without a consumer, and do nothing else.

    Who may make a consumer may have it deliver anywhere, and take messages of the archive for orders that way.
    """
    actions = ("STREAM.INFO", "STREAM.MSG.GET", "DIRECT.GET")
    asked = [f"{action}.{stream}" for stream in read for action in actions]
    return Account(
        name=READER,
        grants=(Grant("reader", tuple(f"{api_prefix()}.{each}" for each in asked), ("_INBOX.>",)),),
        jetstream=False,
        takes=tuple((f"{api_prefix()}.{each}", streams) for each in asked),
        mapped=tuple((f"{api_prefix(domain)}.{each}", f"{api_prefix()}.{each}") for each in asked),
    )


def accounts_in_region(
    fleet: str, stream: str, sites: Iterable[SiteSettings], *, with_policy: bool = False
) -> Iterator[Account]:
    """Let each site's agent publish as its site, from an account of its own into the account ``fleet``.

    And see in its ``stream`` the last watermark of each of its own blocks: who else publishes there as it does.
    ``with_policy`` lets it pull what its own consumer of the policy shows, and begin that again.
    """
    yield Account(name=fleet)
    for site in sites:
        watermarks = [watermark_subject(BlockId(site.region, site.name, block)) for block in site.blocks]
        asked = [f"{ROOT}.{site.region}.{site.name}.>"]
        asked += [f"{api_prefix()}.DIRECT.GET.{stream}.{subject}" for subject in watermarks]
        # Which stream has a subject, and whether most servers are down: what the agent reports where no stream answers.
        asked.append(f"{api_prefix()}.STREAM.NAMES")
        if with_policy:
            consumer = f"{STREAM}.{consumer_name(site.name)}"
            asked += [f"{api_prefix()}.CONSUMER.{action}.{consumer}" for action in ("INFO", "MSG.NEXT", "RESET")]
        yield _own_account("SITE", site.name, "agent", asked, fleet)


def relay_below(relay: RelaySettings, fleet: str, lender: str) -> Account:
    """Let a relay read in its region, from an account that takes its own consumers' services of ``lender``.

    Its key can be stolen as a site's can: answers, and what it pulls, come to itself alone.
    """
    api = api_prefix()
    asked = [f"{api}.STREAM.{action}.{fleet}" for action in ("INFO", "MSG.GET")]
    for block in relay.blocks:
        consumer = f"{fleet}.{relay_consumer(relay, block)}"
        asked += [f"{api}.CONSUMER.{action}.{consumer}" for action in ("INFO", "RESET", "MSG.NEXT")]
        asked.append(f"$JS.ACK.{consumer}.>")
    return _own_account("RELAY", relay.name, "relay", asked, lender)


def relay_above(relay: RelaySettings, lender: str) -> Account:
    """Let a relay publish registrations of the region that it reads, and nothing else."""
    asked = [f"{ROOT}.{relay.region}.*.*.{RecordType.REGISTRATION}"]
    return _own_account("RELAY", relay.name, "relay", asked, lender)


def _own_account(kind: str, site: str, role: str, asked: Sequence[str], lender: str) -> Account:
    """Give an account of one user, who asks and publishes nothing but what it takes of ``lender``."""
    return Account(
        name=f"{kind}_{site}",
        grants=(Grant(f"{site}-{role}", tuple(asked), (_inbox(site),)),),
        jetstream=False,
        most_connections=CONNECTIONS_OF_A_SITE,
        takes=tuple((subject, lender) for subject in asked),
    )


def agent_at_site(site: SiteSettings) -> Grant:
    """Let a site's agent read its stream through consumers of its own; two that are a pair, keep a log besides."""
    stream, api = site.registration.name, api_prefix()
    subjects = [f"{api}.STREAM.INFO.{stream}", f"{api}.STREAM.MSG.GET.{stream}"]
    subjects += [probe_subject(site.region, site.name, block) for block in site.blocks]
    for block in site.blocks:
        for member in site.members or ("",):
            consumer = f"{stream}.muster-{site.name}-{block}" + (f"-{member}" if member else "")
            actions = ("INFO", "CREATE", "RESET", "MSG.NEXT")
            subjects += [*(f"{api}.CONSUMER.{action}.{consumer}" for action in actions), f"$JS.ACK.{consumer}.>"]
    heard = [_inbox(site.name)]
    if site.members:
        log, own = f"MUSTER_PAIR_{site.name}", f"muster.pair.{site.region}.{site.name}.>"
        # Into the inbox, too: the one that leads answers the other.
        subjects += [
            *(f"{api}.STREAM.{action}.{log}" for action in ("INFO", "CREATE", "MSG.GET")),
            own,
            _inbox(site.name),
        ]
        heard.append(own)
    return Grant(f"{site.name}-agent", tuple(subjects), tuple(heard))


def nodes_at_site(site: SiteSettings) -> Grant:
    return Grant(f"{site.name}-nodes", site.registration.subjects, (_inbox("nodes"),))


def _inbox(name: str) -> str:
    """Where answers come to a user, and to nobody else."""
    return f"_INBOX_{name}.>"


_ANSWERS = "$JSC.R.>"
"""Where servers hear the answers to what they asked for the sake of a copy."""
_SERVICE_ANSWERS = "_R_.>"
"""Where answers go to what came from another account."""

_PLAIN_SOURCES, _PLAIN_MIRRORS = "$JS.S.>", "$JS.M.>"


def account_of_region(topology: TopologySettings, region: RegionSettings) -> Account:
    """Return the permissions of a region's link: its own domain's answers, the hub's copies of it, and its copies."""
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


class _CopyLink(NamedTuple):
    """One copying: of ``origin`` of one domain in the domain ``copier``; ``consumer`` is "" where it is plain."""

    place: str
    origin: str
    copier: str
    consumer: str
    deliveries: str


def _links(topology: TopologySettings) -> Iterator[_CopyLink]:
    wanted = desired(topology)
    own = topology.hub.domain or HUB_PLACE
    durable = set()
    for each in wanted:
        if isinstance(each, DesiredConsumer) and each.copying is not None and each.wanted:
            durable.add((each.copying.key, each.place, each.stream))
            place, copier = each.place.domain or own, each.copying.place.domain or own
            yield _CopyLink(place, each.stream, copier, each.name, each.copying.deliver_subject)
    for each in wanted:
        for origin in each.origins if isinstance(each, DesiredStream) else ():
            if not origin.api and (each.key, origin.place, origin.name) not in durable:
                deliveries = _PLAIN_MIRRORS if each.config.get("mirror") else _PLAIN_SOURCES
                place, copier = origin.place.domain or own, each.place.domain or own
                yield _CopyLink(place, origin.name, copier, "", deliveries)

"""Say what each user of the servers may do, and no more. Pure.

A site's key can be stolen with its machine. In the region it lets its holder publish as that site, hear the
acknowledgements, and see its own last watermarks; every other subject, stream, consumer and inbox is closed to it.
Permissions protect the subject of a record, from which readers take whose it is.

Each site has an account of its own there, which lends nothing and takes one service: storing what lies below its own
subject. In one account with the stream, whoever publishes may name any subject as the one for the server's answer, and
have it stored as another site's record (tried on 2.15.1). Across accounts answers come back to the asking one. The
account also bounds the site's connections: a server has a number of them for all, and one key could take them all.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from aggregator.topology.desired.settings import RelaySettings, SiteSettings
from aggregator.topology.desired.streams import relay_consumer
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

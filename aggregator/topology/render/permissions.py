"""Say what each user of the servers may do, and no more. Pure.

A site's key can be stolen with its machine. In the region it lets its holder publish as that site, hear the
acknowledgements, and see its own last watermarks; every other subject, stream, consumer and inbox is closed to it.
Permissions protect the subject of a record, from which readers take whose it is.

Each site has an account of its own there, which lends nothing and takes one service: storing what lies below its own
subject. In one account with the stream, whoever publishes may name any subject as the one for the server's answer, and
have it stored as another site's record (tried on 2.15.1). Across accounts answers come back to the asking one. The
account also bounds the site's connections: a server has a number of them for all, and one key could take them all.
"""

from collections.abc import Iterable

from aggregator.topology.desired.grants import CONNECTIONS_OF_A_SITE, Account, Grant, inbox
from aggregator.topology.settings import SiteSettings
from shared.identifiers import BlockId
from shared.nats.jetstream_api import api_prefix
from shared.policy import EVERY_REVISION, STREAM, consumer_name
from shared.subjects import ROOT, probe_subject, watermark_subject

LEAVES = "LEAFNODE"
AGGREGATOR, READER = "AGGREGATOR", "READER"


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
) -> tuple[Account, ...]:
    """Let each site's agent publish as its site, from an account of its own into the account ``fleet``.

    And see in its ``stream`` the last watermark of each of its own blocks: who else publishes there as it does.
    ``with_policy`` lets it pull what its own consumer of the policy shows, and begin that again.
    """
    asks = {
        site.name: (
            _own_subject(site),
            *_own_last_watermarks(site, stream),
            *(_policy_requests(site) if with_policy else ()),
        )
        for site in sites
    }
    return (
        Account(name=fleet),
        *(
            Account(
                name=_account(site),
                grants=(Grant(f"{site}-agent", own, (inbox(site),)),),
                jetstream=False,
                most_connections=CONNECTIONS_OF_A_SITE,
                takes=tuple((subject, fleet) for subject in own),
            )
            for site, own in asks.items()
        ),
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
    heard = [inbox(site.name)]
    if site.members:
        log, own = f"MUSTER_PAIR_{site.name}", f"muster.pair.{site.region}.{site.name}.>"
        # Into the inbox, too: the one that leads answers the other.
        subjects += [
            *(f"{api}.STREAM.{action}.{log}" for action in ("INFO", "CREATE", "MSG.GET")),
            own,
            inbox(site.name),
        ]
        heard.append(own)
    return Grant(f"{site.name}-agent", tuple(subjects), tuple(heard))


def nodes_at_site(site: SiteSettings) -> Grant:
    """Let nodes, or what adapts them, register."""
    return Grant(f"{site.name}-nodes", site.registration.subjects, (inbox("nodes"),))


def _account(site: str) -> str:
    return f"SITE_{site}"


def _policy_requests(site: SiteSettings) -> tuple[str, ...]:
    consumer = f"{STREAM}.{consumer_name(site.name)}"
    return tuple(f"{api_prefix()}.CONSUMER.{action}.{consumer}" for action in ("INFO", "MSG.NEXT", "RESET"))


def _own_last_watermarks(site: SiteSettings, stream: str) -> tuple[str, ...]:
    watermarks = [watermark_subject(BlockId(site.region, site.name, block)) for block in site.blocks]
    return tuple(f"{api_prefix()}.DIRECT.GET.{stream}.{subject}" for subject in watermarks)


def _own_subject(site: SiteSettings) -> str:
    return f"{ROOT}.{site.region}.{site.name}.>"

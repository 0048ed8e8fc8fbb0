"""List the nats-servers that a topology speaks of: where they listen, whom they meet, who may do what there. Pure."""

from collections import Counter
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from aggregator.topology.desired.model import DesiredStream
from aggregator.topology.desired.settings import RegionSettings, SiteSettings, TopologySettings
from aggregator.topology.desired.stream_settings import HUB_PLACE
from aggregator.topology.desired.streams import desired, region_place
from aggregator.topology.render import permissions
from aggregator.topology.render.permissions import Account, Grant, account_name, account_of_region, leaf_key
from shared.nats.settings import DEFAULT_PORT


class NotRenderable(ValueError):
    """The settings do not say all that a server's configuration needs. The text says what to add."""


class Address(msgspec.Struct, frozen=True):
    """Where clients find a server."""

    host: str
    port: int

    def __str__(self) -> str:
        return authority(self.host, self.port)


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """One nats-server. ``uplinks`` are the hosts whose leaf it is, with its first account."""

    name: str
    address: Address
    peers: tuple[Address, ...] = ()
    cluster: str = ""
    domain: str = ""
    accounts: tuple[Account, ...] = ()
    takes_leaves: bool = False
    uplinks: tuple[str, ...] = ()
    uplink_key: str = ""

    @property
    def grants(self) -> tuple[Grant, ...]:
        return tuple(grant for account in self.accounts for grant in account.grants)

    @property
    def stands_alone(self) -> bool:
        """Tell whether what it acknowledges is on one disk only."""
        return not self.peers


def authority(host: str, port: int) -> str:
    """Write a host and a port as URLs and nats-server have them: an IPv6 address in brackets, once (RFC 3986)."""
    bare = host.removeprefix("[").removesuffix("]")
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def servers(topology: TopologySettings) -> tuple[Server, ...]:
    """List all servers: the hub's, the regions', the sites'; raise NotRenderable."""
    found: dict[str, Server] = {}
    for server in _servers(topology):
        other = found.setdefault(server.name, server)
        if other is not server:
            raise NotRenderable(
                f"two servers would be called {server.name}, at {other.address} and {server.address}: give the region"
                " or site another name"
            )
    return tuple(found.values())


def _servers(topology: TopologySettings) -> Iterator[Server]:
    _refuse_copies_between_regions(topology)
    hub = _addresses("[hub]", topology.hub.servers)
    with_policy, streams = topology.policy is not None, topology.render.account
    hub_domain = topology.hub.domain or HUB_PLACE
    domains = [(region.jetstream_domain, account_name(region)) for region in topology.regions]
    yield from _cluster(
        HUB_PLACE,
        hub,
        domain=hub_domain,
        accounts=_met(
            Account(name=streams),
            permissions.aggregator(streams, hub_domain, domains, sets_policy=with_policy),
            permissions.reader(streams, hub_domain, (topology.archive.name, topology.report.name)),
            *(account_of_region(topology, region) for region in topology.regions),
            *(permissions.relay_above(each, streams) for each in topology.relays if each.into == HUB_PLACE),
        ),
        takes_leaves=True,
    )
    for region in topology.regions:
        sites = [site for site in topology.sites if site.region == region.name]
        if region.jetstream_domain == hub_domain:
            raise NotRenderable(f"region {region.name} is in the hub's domain: render writes servers of their own")
        yield from _cluster(
            region.name,
            _addresses(f"[[region]] {region.name}", region.servers),
            domain=region.jetstream_domain,
            accounts=_met(
                *permissions.accounts_in_region(
                    streams, topology.fleet_of(region).name, sites, with_policy=with_policy
                ),
                *_relays_in(topology, region),
            ),
            uplinks=tuple(address.host for address in hub),
            uplink_key=leaf_key(region),
        )
    for site in topology.sites:
        if site.server is not None:
            yield from _cluster(
                site.name,
                _addresses(f"[[site]] {site.name}", site.server.servers),
                domain=site.server.domain,
                accounts=_met(*_accounts_at(site, site.server.domain)),
            )


def _refuse_copies_between_regions(topology: TopologySettings) -> None:
    """Refuse what would pass two leaf links: each carries what is the hub's and its own region's business alone."""
    regions = {region_place(region) for region in topology.regions}
    for each in desired(topology):
        for origin in each.origins if isinstance(each, DesiredStream) else ():
            if {each.place, origin.place} <= regions and each.place != origin.place and not origin.api:
                raise NotRenderable(
                    f"stream {each.name} of {each.place} copies {origin.name} of {origin.place}: no leaf link lets that"
                    " pass, gather it at the hub and copy it from there"
                )


def _relays_in(topology: TopologySettings, region: RegionSettings) -> Iterator[Account]:
    for relay in topology.relays:
        if relay.region == region.name:
            yield permissions.relay_below(relay, topology.fleet_of(region).name, topology.render.account)
        if relay.into == region.name:
            yield permissions.relay_above(relay, topology.render.account)


def _met(streams: Account, *others: Account) -> tuple[Account, ...]:
    """Let the account with the streams lend what the others take of it; raise NotRenderable for two of one name."""
    names = Counter(each.name for each in (streams, *others))
    name, count = names.most_common(1)[0]
    if count > 1:
        raise NotRenderable(f"two accounts would be called {name}: give account in [render] another name")
    return (streams.beside(*others), *others)


def _accounts_at(site: SiteSettings, domain: str) -> tuple[Account, ...]:
    own = Account(name=f"SITE_{site.name}", grants=(permissions.agent_at_site(site), permissions.nodes_at_site(site)))
    return own, permissions.aggregator(own.name, domain)


def _cluster(name: str, addresses: tuple[Address, ...], **common: object) -> Iterator[Server]:
    for number, address in enumerate(addresses, start=1):
        peers = addresses if len(addresses) > 1 else ()
        own_name = f"{name}-{number}" if peers else name
        yield Server(name=own_name, address=address, peers=peers, cluster=name if peers else "", **common)  # type: ignore[arg-type]


def _addresses(where: str, written: tuple[str, ...]) -> tuple[Address, ...]:
    if not written:
        raise NotRenderable(f'{where} says nothing of its servers: add servers = ["nats://its-name.example:4222"]')
    found = []
    for server in written:
        url = urlsplit(server if "://" in server else f"nats://{server}")
        found.append(Address(url.hostname or "", url.port or DEFAULT_PORT))
    return tuple(found)

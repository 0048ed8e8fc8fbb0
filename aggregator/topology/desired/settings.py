"""Say how ``topology.toml`` is written: hub, regions, sites, and the streams that carry records from one to the next.

Everything about streams has a default; a file that names the hub and the regions is complete. Where there is no region
there is no fleet, and only the streams are made that stand in the file.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from aggregator.topology.desired.stream_settings import (
    HUB_PLACE,
    FreeStreamSettings,
    Retention,
    Sourcing,
    StreamOptions,
    check_name,
    refuse_repeated,
)
from shared.nats.settings import ConnectionSettings, check_server
from shared.policy import STREAM
from shared.settings import Duration, Settings, Size
from shared.subjects import BLOCKS_PER_SITE


class FleetSettings(StreamOptions, frozen=True):
    """A region's FLEET stream: what its agents publish, kept while the hub is away.

    Full, it refuses what is new: agents keep it, and the hub is sent no more than there is room for.
    """

    name: Annotated[str, Meta(description="the stream's name")] = "FLEET"
    max_age: Annotated[Duration, Meta(description="how long the hub may be away; 0s = for ever")] = Duration.of("14d")
    duplicate_window: Annotated[Duration, Meta(description="how long a message id is remembered")] = Duration.of("10m")
    discard: Annotated[
        Literal["new", "old"], Meta(description="at max_bytes, refuse the newest or drop the oldest")
    ] = "new"


class ArchiveSettings(StreamOptions, frozen=True):
    """The hub's ARCHIVE: everything that every region's FLEET held. Nobody publishes into it.

    ``durable`` sourcing is back within seconds after an outage, ``plain`` after half a minute. Durable trusts the hub's
    disk: after a restore of an older copy, or a power cut without ``sync_interval: always``, the regions do not send
    again what the hub had acknowledged. Servers before 2.14 do not know it: from and to these sourcing is plain.
    """

    name: Annotated[str, Meta(description="the stream's name")] = "ARCHIVE"
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration.of("400d")
    sourcing: Annotated[Sourcing, Meta(description="durable (back within seconds) or plain (any server)")] = "durable"


class ReportSettings(StreamOptions, frozen=True):
    """The hub's REPORT: a mirror of ARCHIVE that rollups read, so that they do not slow the archive down."""

    name: Annotated[str, Meta(description="the stream's name")] = "REPORT"
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration.of("60d")


class PolicyStream(StreamOptions, frozen=True):
    """The hub's MUSTER_POLICY: what ``muster-aggregator policy`` says to the sites, kept for ever."""

    name: Annotated[Literal["MUSTER_POLICY"], Meta(description="the stream's name, by which agents know it")] = STREAM


class RegistrationSettings(StreamOptions, frozen=True):
    """A site's own stream: what its nodes publish and its agent reads."""

    name: Annotated[str, Meta(description="the stream's name")] = "REGISTRATION"
    subjects: Annotated[tuple[str, ...], Meta(min_length=1, description="what nodes publish on")] = ("registration.>",)
    retention: Annotated[Retention, Meta(description="when messages go")] = "limits"
    max_age: Annotated[Duration, Meta(description="how long the agent may be away; 0s = for ever")] = Duration.of("7d")


class RegionSettings(Settings, frozen=True):
    """A set of sites whose agents publish into one FLEET stream, in a JetStream domain of its own."""

    name: Annotated[str, Meta(description="the region's name, a subject token")]
    domain: Annotated[str, Meta(description="its JetStream domain; default: its name")] = ""
    servers: Annotated[tuple[str, ...], Meta(description="where its agents connect; only render asks for it")] = ()
    fleet: Annotated[FleetSettings | None, Meta(description="instead of the [fleet] of all regions")] = None

    def __post_init__(self) -> None:
        check_name(self.name, "region")
        check_name(self.jetstream_domain, "domain")
        for server in self.servers:
            check_server(server)

    @property
    def jetstream_domain(self) -> str:
        return self.domain or self.name


class SiteSettings(Settings, frozen=True):
    """Where one agent runs; with ``server``, its registration stream is managed too."""

    name: Annotated[str, Meta(description="the site's name, a subject token")]
    region: Annotated[str, Meta(description="the region it belongs to")]
    blocks: Annotated[tuple[str, ...], Meta(min_length=1, description="the blocks of its agent; for render")] = (
        "nodes",
    )
    members: Annotated[
        tuple[str, ...], Meta(description="the names of its agents where they are a pair; for render")
    ] = ()
    server: Annotated[ConnectionSettings | None, Meta(description="the site's own server")] = None
    registration: Annotated[RegistrationSettings, Meta(description="the stream its nodes publish into")] = (
        RegistrationSettings()
    )

    def __post_init__(self) -> None:
        check_name(self.name, "site")
        for block in self.blocks:
            check_name(block, "block")
        for member in self.members:
            check_name(member, "member")
        if self.members and len(set(self.members)) != 2:
            raise ValueError("members must be two names, as in pair.members of the agents")


class RelaySettings(Settings, frozen=True):
    """An agent with ``mode = "relay"``, between two levels of a tree: reads a region's FLEET, publishes above."""

    name: Annotated[str, Meta(description="the agent's site, which no [[site]] has")]
    region: Annotated[str, Meta(description="the region whose FLEET it reads")]
    into: Annotated[str, Meta(description='where it publishes what it passes on: "hub", or another region')] = HUB_PLACE
    blocks: Annotated[tuple[str, ...], Meta(min_length=1, description="the relaying blocks of its agent")] = ("up",)

    def __post_init__(self) -> None:
        check_name(self.name, "relay")
        for block in self.blocks:
            check_name(block, "block")
        if self.into == self.region:
            raise ValueError(f"relay {self.name!r} would publish into the region that it reads")


class RenderSettings(Settings, frozen=True):
    """What ``render`` puts into the configurations of nats-servers, beside what streams and names say."""

    account: Annotated[str, Meta(description="the account that hub and regions have in common")] = "FLEET"
    listen: Annotated[str, Meta(description="where servers listen; empty: at their own host")] = "0.0.0.0"  # noqa: S104
    store: Annotated[str, Meta(min_length=1, description="below it each server keeps its streams")] = "/var/lib/nats"
    files: Annotated[str, Meta(description="where the servers find what is rendered; default: where it is written")] = (
        ""
    )
    encrypt: Annotated[bool, Meta(description="encrypt clients, leaf links and routes, from the first byte")] = True
    leaf_port: Annotated[int, Meta(ge=1, le=65535, description="where the hub takes leaf links")] = 7422
    route_port: Annotated[int, Meta(ge=1, le=65535, description="where servers of one cluster meet")] = 6222
    max_store: Annotated[
        Size, Meta(description="how much streams may hold on each server; 0 = three quarters of the disk")
    ] = Size(0)
    max_connections: Annotated[int, Meta(ge=1, description="of clients, on each server")] = 1_000
    max_payload: Annotated[Size, Meta(description="of one message")] = Size(1 << 20)

    def __post_init__(self) -> None:
        check_name(self.account, "account")


class AccountSettings(Settings, frozen=True):
    """Another account, or the same one at other servers: a connection of its own, for streams that are placed there."""

    name: Annotated[str, Meta(description="what it is called here, a place for streams")]
    server: Annotated[ConnectionSettings, Meta(description="its servers, and who we are there")]

    def __post_init__(self) -> None:
        check_name(self.name, "account")


class TopologySettings(Settings, frozen=True):
    """The whole: one hub, its regions, their sites, other accounts, and whatever other streams there shall be."""

    hub: Annotated[ConnectionSettings, Meta(description="the hub's servers; regions are managed through them")]
    fleet: Annotated[FleetSettings, Meta(description="the FLEET stream of every region")] = FleetSettings()
    archive: Annotated[ArchiveSettings, Meta(description="the hub's archive")] = ArchiveSettings()
    report: Annotated[ReportSettings, Meta(description="the mirror that rollups read")] = ReportSettings()
    policy: Annotated[PolicyStream | None, Meta(description="lets the hub tell sites what to do")] = None
    blocks_per_site: Annotated[
        int, Meta(ge=1, le=10_000, description="the most stream blocks of one site that check and policy read")
    ] = BLOCKS_PER_SITE
    regions: Annotated[tuple[RegionSettings, ...], Meta(description="one table for each region")] = msgspec.field(
        default=(), name="region"
    )
    sites: Annotated[tuple[SiteSettings, ...], Meta(description="one table for each site")] = msgspec.field(
        default=(), name="site"
    )
    relays: Annotated[tuple[RelaySettings, ...], Meta(description="one table for each relay")] = msgspec.field(
        default=(), name="relay"
    )
    render: Annotated[RenderSettings, Meta(description="what render writes for nats-servers")] = RenderSettings()
    accounts: Annotated[tuple[AccountSettings, ...], Meta(description="one table for each further account")] = (
        msgspec.field(default=(), name="account")
    )
    streams: Annotated[tuple[FreeStreamSettings, ...], Meta(description="one table for each further stream")] = (
        msgspec.field(default=(), name="stream")
    )

    def __post_init__(self) -> None:
        refuse_repeated("region", (region.name for region in self.regions))
        refuse_repeated("site", [*(site.name for site in self.sites), *(relay.name for relay in self.relays)])
        known = {region.name for region in self.regions}
        for site in self.sites:
            if site.region not in known:
                raise ValueError(f"site {site.name!r} names the region {site.region!r}, there is no such [[region]]")
        for relay in self.relays:
            for named in (relay.region, relay.into):
                if named not in known | {HUB_PLACE} or relay.region == HUB_PLACE:
                    raise ValueError(f"relay {relay.name!r} names the region {named!r}, there is no such [[region]]")
        if self.archive.name == self.report.name:
            raise ValueError(f"archive and report cannot both be called {self.archive.name!r}")
        # A site without a server is no place, and may be called as its region.
        managed = [site.name for site in self.sites if site.server is not None]
        refuse_repeated("place", [HUB_PLACE, *(region.name for region in self.regions), *managed, *self._account_names])
        self._check_policy()
        self._check_streams()
        refuse_repeated("stream", self._streams_by_place())

    def _check_streams(self) -> None:
        domains = self._domains
        for stream in self.streams:
            for place in (stream.place, *(origin.place for origin in stream.origins if origin.place)):
                if place not in domains:
                    raise ValueError(
                        f"stream {stream.name!r} is placed at {place!r}: neither {HUB_PLACE!r}, nor a region,"
                        " nor a site with a server, nor an account"
                    )
            own = ("", stream.domain or domains[stream.place])
            if any(each.name == stream.name and not each.api and each.domain in own for each in stream.origins):
                raise ValueError(f"stream {stream.name!r} would copy itself")

    def _check_policy(self) -> None:
        if self.policy is None:
            return
        if not self.regions:
            raise ValueError("policy is for regions: add a [[region]], or leave out [policy]")
        if not self.hub.domain and any(region.jetstream_domain for region in self.regions):
            raise ValueError("policy is copied from the hub by its domain: say domain in [hub]")
        first: dict[str, str] = {}
        for region in self.regions:
            other = first.setdefault(region.jetstream_domain, region.name)
            if other != region.name and region.jetstream_domain != self.hub.domain:
                raise ValueError(
                    f"regions {other!r} and {region.name!r} are in one domain: with [policy] each needs its own, for"
                    " its copy of that"
                )

    @property
    def _domains(self) -> dict[str, str]:
        regions = {region.name: region.jetstream_domain for region in self.regions}
        return {name: each.domain for name, each in self.servers.items()} | {HUB_PLACE: self.hub.domain} | regions

    @property
    def _account_names(self) -> list[str]:
        return [account.name for account in self.accounts]

    @property
    def servers(self) -> dict[str, ConnectionSettings]:
        """Give the connections beside the hub's, by the names of their places."""
        sites = {site.name: site.server for site in self.sites if site.server is not None}
        return sites | {account.name: account.server for account in self.accounts}

    def _streams_by_place(self) -> Iterator[str]:
        """Name every stream by the JetStream that it is in."""
        domains = {HUB_PLACE: self.hub.domain} | {region.name: region.jetstream_domain for region in self.regions}
        for region in self.regions:
            yield f"{region.jetstream_domain}/{self.fleet_of(region).name}"
        if self.regions:
            yield f"{self.hub.domain}/{self.archive.name}"
            yield f"{self.hub.domain}/{self.report.name}"
        if self.policy is not None:
            yield from (f"{domain}/{self.policy.name}" for domain in dict.fromkeys(domains.values()))
        for site in self.sites:
            if site.server is not None:
                yield f"site {site.name}/{site.registration.name}"
        for stream in self.streams:
            yield f"{stream.domain or domains.get(stream.place, f'site {stream.place}')}/{stream.name}"

    def fleet_of(self, region: RegionSettings) -> FleetSettings:
        return region.fleet or self.fleet

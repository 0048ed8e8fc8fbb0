"""Say how ``topology.toml`` is written: hub, regions, sites, and the streams that carry records from one to the next.

Everything about streams has a default; a file that names the hub and the regions is complete.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from shared.identifiers import InvalidIdentifier, validated_token
from shared.nats_settings import ConnectionSettings
from shared.settings import Duration, Settings, Size

Storage = Literal["file", "memory"]
Sourcing = Literal["durable", "plain"]


def _check_name(name: str, what: str) -> None:
    try:
        validated_token(name, what)
    except InvalidIdentifier as error:
        raise ValueError(str(error)) from None


def _refuse_repeated(what: str, names: Iterable[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise ValueError(f"{what} {repeated[0]!r} stands here more than once")


class StreamSettings(Settings, frozen=True):
    """What every stream has. Messages go when they are older than ``max_age`` or beyond ``max_bytes``."""

    name: Annotated[str, Meta(description="the stream's name")]
    storage: Annotated[Storage, Meta(description="file or memory")] = "file"
    replicas: Annotated[int, Meta(ge=1, le=5, description="copies within the cluster")] = 1
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration(0)
    max_bytes: Annotated[Size, Meta(description="how much is kept; 0 = unlimited")] = Size(0)
    duplicate_window: Annotated[
        Duration, Meta(description="how long a message id is remembered; 0s = the server's default")
    ] = Duration(0)
    compression: Annotated[Literal["none", "s2"], Meta(description="of files: none or s2")] = "none"

    def __post_init__(self) -> None:
        _check_name(self.name, "stream")
        if self.max_age and self.duplicate_window > self.max_age:
            raise ValueError("duplicate_window must not exceed max_age")


class FleetSettings(StreamSettings, frozen=True):
    """A region's FLEET stream: what its agents publish, kept while the hub is away."""

    name: Annotated[str, Meta(description="the stream's name")] = "FLEET"
    max_age: Annotated[Duration, Meta(description="how long the hub may be away; 0s = for ever")] = Duration.of("14d")
    duplicate_window: Annotated[Duration, Meta(description="how long a message id is remembered")] = Duration.of("10m")


class ArchiveSettings(StreamSettings, frozen=True):
    """The hub's ARCHIVE: everything that every region's FLEET held. Nobody publishes into it.

    ``durable`` sourcing is back within seconds after an outage, ``plain`` after half a minute. Durable trusts the hub's
    disk: after a restore of an older copy, or a power cut without ``sync_interval: always``, the regions do not send
    again what the hub had acknowledged. It needs nats-server 2.14 in hub and regions.
    """

    name: Annotated[str, Meta(description="the stream's name")] = "ARCHIVE"
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration.of("400d")
    sourcing: Annotated[Sourcing, Meta(description="durable (back within seconds) or plain (any server)")] = "durable"


class ReportSettings(StreamSettings, frozen=True):
    """The hub's REPORT: a mirror of ARCHIVE that rollups read, so that they do not slow the archive down."""

    name: Annotated[str, Meta(description="the stream's name")] = "REPORT"
    max_age: Annotated[Duration, Meta(description="how long messages are kept; 0s = for ever")] = Duration.of("60d")


class RegistrationSettings(StreamSettings, frozen=True):
    """A site's own stream: what its nodes publish and its agent reads."""

    name: Annotated[str, Meta(description="the stream's name")] = "REGISTRATION"
    subjects: Annotated[tuple[str, ...], Meta(min_length=1, description="what nodes publish on")] = ("registration.>",)
    retention: Annotated[Literal["limits", "workqueue", "interest"], Meta(description="when messages go")] = "limits"
    max_age: Annotated[Duration, Meta(description="how long the agent may be away; 0s = for ever")] = Duration.of("7d")


class RegionSettings(Settings, frozen=True):
    """A set of sites whose agents publish into one FLEET stream, in a JetStream domain of its own."""

    name: Annotated[str, Meta(description="the region's name, a subject token")]
    domain: Annotated[str, Meta(description="its JetStream domain; default: its name")] = ""
    fleet: Annotated[FleetSettings | None, Meta(description="instead of the [fleet] of all regions")] = None

    def __post_init__(self) -> None:
        _check_name(self.name, "region")
        _check_name(self.jetstream_domain, "domain")

    @property
    def jetstream_domain(self) -> str:
        """Where its FLEET stream lives."""
        return self.domain or self.name


class SiteSettings(Settings, frozen=True):
    """Where one agent runs; with ``server``, its registration stream is managed too."""

    name: Annotated[str, Meta(description="the site's name, a subject token")]
    region: Annotated[str, Meta(description="the region it belongs to")]
    server: Annotated[ConnectionSettings | None, Meta(description="the site's own server")] = None
    registration: Annotated[RegistrationSettings, Meta(description="the stream its nodes publish into")] = (
        RegistrationSettings()
    )

    def __post_init__(self) -> None:
        _check_name(self.name, "site")


class TopologySettings(Settings, frozen=True):
    """The whole: one hub, its regions, their sites."""

    hub: Annotated[ConnectionSettings, Meta(description="the hub's servers; regions are managed through them")]
    fleet: Annotated[FleetSettings, Meta(description="the FLEET stream of every region")] = FleetSettings()
    archive: Annotated[ArchiveSettings, Meta(description="the hub's archive")] = ArchiveSettings()
    report: Annotated[ReportSettings, Meta(description="the mirror that rollups read")] = ReportSettings()
    regions: Annotated[tuple[RegionSettings, ...], Meta(description="one table for each region")] = msgspec.field(
        default=(), name="region"
    )
    sites: Annotated[tuple[SiteSettings, ...], Meta(description="one table for each site")] = msgspec.field(
        default=(), name="site"
    )

    def __post_init__(self) -> None:
        _refuse_repeated("region", (region.name for region in self.regions))
        _refuse_repeated("site", (site.name for site in self.sites))
        _refuse_repeated(
            "stream", (f"{region.jetstream_domain}/{self.fleet_of(region).name}" for region in self.regions)
        )
        known = {region.name for region in self.regions}
        for site in self.sites:
            if site.region not in known:
                raise ValueError(f"site {site.name!r} names the region {site.region!r}, there is no such [[region]]")
        if self.archive.name == self.report.name:
            raise ValueError(f"archive and report cannot both be called {self.archive.name!r}")

    def fleet_of(self, region: RegionSettings) -> FleetSettings:
        """Give the settings of a region's FLEET stream."""
        return region.fleet or self.fleet

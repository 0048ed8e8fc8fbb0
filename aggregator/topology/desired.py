"""Derive from the settings which streams and consumers there should be. Pure.

What is desired are fragments of JetStream's own configuration, under its own names (nanoseconds, ``num_replicas``):
only the fields that Muster manages. Everything else a stream has is the operator's, and stays as it is.

The region stands in the published subject, and each FLEET listens to its own region only: leaf nodes of one account
carry a message everywhere, and two streams that both listen to ``fleet.>`` would both store it.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from aggregator.topology.settings import RegionSettings, SiteSettings, StreamSettings, TopologySettings
from shared.jetstream_api import api_prefix
from shared.subjects import ROOT

Config = dict[str, Any]

HUB = ""
ARCHIVE_CONSUMER = "muster-archive"
DURABLE_SOURCING_LEVEL = 4
_HEARTBEAT = 1_000_000_000
_MOST_UNACKNOWLEDGED = 10_000


class Place(msgspec.Struct, frozen=True, order=True):
    """One JetStream API: ``connection`` is HUB or a site's name, ``domain`` "" where it is the connection's own."""

    connection: str
    domain: str

    @property
    def api(self) -> str:
        """``$JS.<domain>.API``, or ``$JS.API``."""
        return api_prefix(self.domain)

    def __str__(self) -> str:
        return self.connection or self.domain or "hub"


class DesiredStream(msgspec.Struct, frozen=True):
    """A stream that should be; ``config`` holds the managed fields."""

    place: Place
    name: str
    config: Config


class DesiredConsumer(msgspec.Struct, frozen=True):
    """The durable consumer on a region's FLEET from which ``archive`` sources; not wanted where sourcing is plain."""

    place: Place
    stream: str
    name: str
    config: Config
    archive: tuple[Place, str]
    wanted: bool = True


Desired = DesiredStream | DesiredConsumer


def desired(topology: TopologySettings) -> tuple[Desired, ...]:
    """List what should be, in the order of its making: from the sites to the hub, origins before what copies them."""
    hub = Place(HUB, topology.hub.domain)
    return (
        *(_registration(site) for site in topology.sites if site.server is not None),
        *(each for region in topology.regions for each in _region(topology, region)),
        DesiredStream(hub, topology.archive.name, _archive(topology)),
        DesiredStream(hub, topology.report.name, _report(topology)),
    )


def region_place(region: RegionSettings) -> Place:
    """Regions are managed over the hub's connection, by their domain."""
    return Place(HUB, region.jetstream_domain)


def _registration(site: SiteSettings) -> DesiredStream:
    assert site.server is not None
    wanted = site.registration
    extra = {"subjects": list(wanted.subjects), "retention": wanted.retention}
    return DesiredStream(Place(site.name, site.server.domain), wanted.name, _common(wanted) | extra)


def _region(topology: TopologySettings, region: RegionSettings) -> Iterator[Desired]:
    yield _fleet(topology, region)
    if region.jetstream_domain != topology.hub.domain:
        yield _archive_consumer(topology, region)


def _fleet(topology: TopologySettings, region: RegionSettings) -> DesiredStream:
    wanted = topology.fleet_of(region)
    extra = {
        "subjects": [f"{ROOT}.{region.name}.>"],
        "retention": "limits",
        "allow_atomic": True,
        "allow_direct": True,
    }
    return DesiredStream(region_place(region), wanted.name, _common(wanted) | extra)


def _archive_consumer(topology: TopologySettings, region: RegionSettings) -> DesiredConsumer:
    """Source: ADR-60. The consumer keeps the hub's place while the hub is away, and restarts delivery by itself."""
    config = {
        "durable_name": ARCHIVE_CONSUMER,
        "deliver_subject": _deliver_subject(topology, region),
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": _HEARTBEAT,
        "max_ack_pending": _MOST_UNACKNOWLEDGED,
        "max_deliver": -1,
    }
    stream = topology.fleet_of(region).name
    durable = topology.archive.sourcing == "durable"
    archive = (Place(HUB, topology.hub.domain), topology.archive.name)
    return DesiredConsumer(region_place(region), stream, ARCHIVE_CONSUMER, config, archive, wanted=durable)


def _archive(topology: TopologySettings) -> Config:
    sources = [_source(topology, region) for region in topology.regions]
    extra = {"subjects": [], "sources": sources, "retention": "limits", "allow_direct": True}
    return _common(topology.archive) | extra


def _report(topology: TopologySettings) -> Config:
    extra = {
        "mirror": {"name": topology.archive.name},
        "retention": "limits",
        "allow_direct": True,
        "mirror_direct": True,
    }
    return _common(topology.report) | extra


def _source(topology: TopologySettings, region: RegionSettings) -> Config:
    source: Config = {"name": topology.fleet_of(region).name}
    if region.jetstream_domain == topology.hub.domain:
        return source
    source["external"] = {"api": region_place(region).api}
    if topology.archive.sourcing == "durable":
        source["consumer"] = {"name": ARCHIVE_CONSUMER, "deliver_subject": _deliver_subject(topology, region)}
    return source


def _deliver_subject(topology: TopologySettings, region: RegionSettings) -> str:
    return f"muster.source.{region.name}.{topology.fleet_of(region).name}"


def _common(wanted: StreamSettings) -> Config:
    """Translate what every stream has into JetStream's words; durations from microseconds to nanoseconds."""
    config: Config = {
        "name": wanted.name,
        "storage": wanted.storage,
        "num_replicas": wanted.replicas,
        "max_age": wanted.max_age * 1000,
        "max_bytes": int(wanted.max_bytes) or -1,
        "discard": "old",
        "compression": wanted.compression,
    }
    if wanted.duplicate_window:
        config["duplicate_window"] = wanted.duplicate_window * 1000
    return config

"""Derive from the settings which streams and consumers there should be. Pure.

What is desired are fragments of JetStream's own configuration, under its own names (nanoseconds, ``num_replicas``):
only the fields that Muster manages. Everything else a stream has is the operator's, and stays as it is.

The region stands in the published subject, and each FLEET listens to its own region only: leaf nodes of one account
carry a message everywhere, and two streams that both listen to ``fleet.>`` would both store it.
"""

from collections.abc import Iterator

from aggregator.topology.confinement import confined_to
from aggregator.topology.desired.free_streams import free_fields, free_source
from aggregator.topology.desired.policy_streams import policy_at_hub, policy_in_region
from aggregator.topology.desired.relays import consumers_of_relays
from aggregator.topology.desired.room import archive_room, fleet_room, report_room
from aggregator.topology.model import HUB, Config, Desired, DesiredConsumer, DesiredStream, Origin, Place
from aggregator.topology.observed.durable_copies import archive_deliveries, consumer_of, through_consumer
from aggregator.topology.observed.state import StreamKey
from aggregator.topology.settings import RegionSettings, SiteSettings, TopologySettings
from aggregator.topology.stream_settings import HUB_PLACE, FreeStreamSettings, OriginSettings, StreamSettings
from shared.policy import EVERY_REVISION
from shared.subjects import ROOT, covers, probe_subject

ARCHIVE_CONSUMER = "muster-archive"
_CARRIES = (f"{ROOT}.>", EVERY_REVISION)


def desired(topology: TopologySettings) -> tuple[Desired, ...]:
    """List what should be, in the order of its making: from the sites to the hub, origins before what copies them."""
    return (
        *(_registration(site) for site in topology.sites if site.server is not None),
        *_policy(topology),
        *(each for region in topology.regions for each in _region(topology, region)),
        *(_hub_streams(topology) if topology.regions else ()),
        *_free_streams(topology),
    )


def region_place(region: RegionSettings) -> Place:
    """Regions are managed over the hub's connection, by their domain."""
    return Place(HUB, region.jetstream_domain)


def archiving_of(topology: TopologySettings, region: RegionSettings) -> tuple[StreamKey, StreamKey]:
    """Give the archive, and the FLEET of a region that it copies."""
    archive = Place(HUB, topology.hub.domain), topology.archive.name
    return archive, (region_place(region), topology.fleet_of(region).name)


def is_beside_the_archive(topology: TopologySettings, region: RegionSettings) -> bool:
    """Tell whether a region's FLEET is in the hub's own domain: what the archive takes from there is not confined."""
    return region.jetstream_domain == topology.hub.domain


def _registration(site: SiteSettings) -> DesiredStream:
    assert site.server is not None
    wanted = site.registration
    probed = [probe_subject(site.region, site.name, block) for block in site.blocks]
    added = [each for each in probed if not any(covers(pattern, each) for pattern in wanted.subjects)]
    subjects = [*wanted.subjects, *added]
    extra = {"subjects": subjects, "retention": wanted.retention}
    place = Place(site.name, site.server.domain)
    return DesiredStream(place, wanted.name, _common(wanted) | extra, carries=tuple(subjects))


def _hub_streams(topology: TopologySettings) -> Iterator[DesiredStream]:
    hub = Place(HUB, topology.hub.domain)
    origins = [Origin(region_place(region), topology.fleet_of(region).name) for region in topology.regions]
    if topology.policy is not None:
        origins.append(Origin(hub, topology.policy.name))
    yield DesiredStream(hub, topology.archive.name, _archive(topology), tuple(origins), _CARRIES)
    yield DesiredStream(hub, topology.report.name, _report(topology), (Origin(hub, topology.archive.name),), _CARRIES)


def _policy(topology: TopologySettings) -> Iterator[Desired]:
    if topology.policy is not None:
        common = _common(topology.policy)
        yield policy_at_hub(Place(HUB, topology.hub.domain), topology.policy, common)
        for region in topology.regions:
            yield from policy_in_region(topology, region, region_place(region), common)


def _free_streams(topology: TopologySettings) -> Iterator[Desired]:
    """List streams, and the consumers that their copies may have: each where both its stream and its copy allow it."""
    streams = [_free_stream(topology, each) for each in topology.streams]
    consumers = [each for wanted in topology.streams for each in free_consumers(topology, wanted)]
    waiting = {(each.place, each.name) for each in streams}
    for stream in _origins_first(streams):
        waiting.remove((stream.place, stream.name))
        ready = [each for each in consumers if (each.place, each.stream) not in waiting]
        consumers = [each for each in consumers if each not in ready]
        own = (stream.place, stream.name)
        yield from (each for each in ready if (each.place, each.stream) != own)
        yield stream
        yield from (each for each in ready if (each.place, each.stream) == own)


def _free_stream(topology: TopologySettings, wanted: FreeStreamSettings) -> DesiredStream:
    place = free_place(topology, wanted)
    origins = tuple(_origin(topology, place, each) for each in wanted.origins if each.place or not each.api)
    return DesiredStream(place, wanted.name, _common(wanted) | free_fields(wanted, place.domain), origins)


def free_place(topology: TopologySettings, wanted: FreeStreamSettings) -> Place:
    """Give the place of a ``[[stream]]``."""
    return Place(HUB, wanted.domain) if wanted.domain else _place_of(topology, wanted.place)


def free_consumers(topology: TopologySettings, wanted: FreeStreamSettings) -> Iterator[DesiredConsumer]:
    """Give the consumers through which a ``[[stream]]`` copies where its copies are durable.

    Sources are unless they shall not; mirrors only where they shall, since a mirror cannot be changed.
    """
    place = free_place(topology, wanted)
    for copied in wanted.origins:
        is_durable = (copied.sourcing or ("plain" if copied is wanted.mirror else "durable")) == "durable"
        if not copied.api and (is_durable or copied is not wanted.mirror):
            origin = _origin(topology, place, copied)
            source = free_source(copied, place.domain)
            yield consumer_of((place, wanted.name), (origin.place, origin.name), source, wanted=is_durable)


def _place_of(topology: TopologySettings, name: str) -> Place:
    if name == HUB_PLACE:
        return Place(HUB, topology.hub.domain)
    for region in topology.regions:
        if region.name == name:
            return region_place(region)
    return Place(name, topology.servers[name].domain)


def _origin(topology: TopologySettings, copier: Place, origin: OriginSettings) -> Origin:
    """Ask for an origin where its copier is asked for, unless it is another account's."""
    subjects = (origin.filter_subject,) if origin.filter_subject else tuple(each.source for each in origin.transforms)
    place = Place(copier.connection, origin.domain or copier.domain)
    if origin.place:
        place = _place_of(topology, origin.place)
    return Origin(place, origin.name, subjects, origin.allow, origin.api)


def _origins_first(streams: list[DesiredStream]) -> Iterator[DesiredStream]:
    """Order streams so that what is copied comes before its copies; a circle stays as it was written."""
    waiting = list(streams)
    while waiting:
        names = {(each.place, each.name) for each in waiting}
        ready = [each for each in waiting if not any((origin.place, origin.name) in names for origin in each.origins)]
        yield from ready or waiting
        waiting = [each for each in waiting if each not in ready] if ready else []


def _region(topology: TopologySettings, region: RegionSettings) -> Iterator[Desired]:
    yield _fleet(topology, region)
    yield from consumers_of_relays(topology, region.name, region_place(region), topology.fleet_of(region).name)
    if not is_beside_the_archive(topology, region):
        yield _archive_consumer(topology, region)


def _fleet(topology: TopologySettings, region: RegionSettings) -> DesiredStream:
    wanted = topology.fleet_of(region)
    subjects = [f"{ROOT}.{region.name}.>"]
    extra = {
        "subjects": subjects,
        "retention": "limits",
        "discard": wanted.discard,
        "allow_atomic": True,
        "allow_direct": True,
    }
    config = _common(wanted, fleet_room(topology, region)) | extra
    return DesiredStream(region_place(region), wanted.name, config, carries=tuple(subjects))


def _archive_consumer(topology: TopologySettings, region: RegionSettings) -> DesiredConsumer:
    archive, fleet = archiving_of(topology, region)
    return through_consumer(
        archive,
        fleet,
        _source(topology, region),
        ARCHIVE_CONSUMER,
        archive_deliveries(region.name, fleet[1]),
        wanted=topology.archive.sourcing == "durable",
    )


def _archive(topology: TopologySettings) -> Config:
    sources = [_source(topology, region) for region in topology.regions]
    if topology.policy is not None:
        sources.append({"name": topology.policy.name})
    extra = {"subjects": [], "sources": sources, "retention": "limits", "allow_direct": True}
    return _common(topology.archive, archive_room(topology)) | extra


def _report(topology: TopologySettings) -> Config:
    extra = {
        "mirror": {"name": topology.archive.name},
        "retention": "limits",
        "allow_direct": True,
        "mirror_direct": True,
    }
    return _common(topology.report, report_room(topology)) | extra


def _source(topology: TopologySettings, region: RegionSettings) -> Config:
    source: Config = {"name": topology.fleet_of(region).name}
    if is_beside_the_archive(topology, region):
        return source
    source["external"] = {"api": region_place(region).api}
    source["subject_transforms"] = confined_to(region.name)
    return source


def _common(wanted: StreamSettings, room: int = 0) -> Config:
    """Translate what every stream has into JetStream's words; durations from microseconds to nanoseconds.

    ``room`` is how many bytes it may hold where it says nothing of that.
    """
    config: Config = {
        "name": wanted.name,
        "storage": wanted.storage,
        "num_replicas": wanted.replicas,
        "max_age": wanted.max_age * 1000,
        "max_bytes": int(wanted.max_bytes) or room or -1,
        "discard": "old",
        "compression": wanted.compression,
    }
    if wanted.duplicate_window:
        config["duplicate_window"] = wanted.duplicate_window * 1000
    return config

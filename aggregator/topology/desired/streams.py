"""Derive from the settings which streams and consumers there should be. Pure.

What is desired are fragments of JetStream's own configuration, under its own names (nanoseconds, ``num_replicas``):
only the fields that Muster manages. Everything else a stream has is the operator's, and stays as it is. The settings
speak for a freely laid out stream's source as a whole: what they leave out is None here, so that it is compared too.

The region stands in the published subject, and each FLEET listens to its own region only: leaf nodes of one account
carry a message everywhere, and two streams that both listen to ``fleet.>`` would both store it.

NATS bounds no source of a stream. What bounds a region is its FLEET: all that comes to the hub passes it, stays there
for ``max_age``, and where it is full it refuses what is new (``discard = "new"``); so a region sends no more than
FLEET's ``max_bytes`` in each ``max_age``. Where the file says how much servers may hold (``max_store``) and nothing of
a stream, all regions' FLEETs together may hold half of what ARCHIVE may: whoever fills his own is told of at once, and
others lose nothing of ARCHIVE before he has done so again and again. ARCHIVE and REPORT let go of their oldest, rather
than fill the hub's servers, where they would take nothing of anybody.

The hub's policy gets to the sites by a stream, a copy in each region, and a consumer for each site. What a consumer
shows is laid down here, so that the region, and the site's agent, which may only move theirs and read what it shows,
can read nothing else. A relay's consumer is made here, too: who may make one may let it deliver anywhere.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from aggregator.topology.desired.confinement import confined_to
from aggregator.topology.desired.durable_copies import DELIVERIES, consumer_of, through_consumer
from aggregator.topology.desired.model import (
    HUB,
    Config,
    Desired,
    DesiredConsumer,
    DesiredStream,
    Origin,
    Place,
    StreamKey,
)
from aggregator.topology.desired.settings import RegionSettings, RelaySettings, SiteSettings, TopologySettings
from aggregator.topology.desired.stream_settings import HUB_PLACE, FreeStreamSettings, OriginSettings, StreamOptions
from shared.nats.jetstream_api import api_prefix
from shared.policy import EVERY_REVISION, STREAM, consumer_config, consumer_name, subjects_of_region
from shared.subjects import EVERY_REGISTRATION, ROOT, covers, probe_subject

ARCHIVE_CONSUMER = "muster-archive"
FOR_A_RELAY = "muster.relay"
"""The consumer's metadata that names its relay: an agent makes one of the same name, where nobody else does."""

_CARRIES = (f"{ROOT}.>", EVERY_REVISION)
_ACK_WAIT = 3_600 * 1_000_000_000
_ARCHIVE_SHARE, _REPORT_SHARE, _FLEET_SHARE = 1 / 2, 1 / 4, 3 / 4
"""Shares of ``max_store``; the rest is for MUSTER_POLICY and the streams of one's own."""
_AT_ONCE = 1 / 2
"""The share of ARCHIVE that all regions may send within FLEET's ``max_age``."""


def desired(topology: TopologySettings) -> tuple[Desired, ...]:
    """List what should be, in the order of its making: from the sites to the hub, origins before what copies them."""
    return (
        *(_registration(site) for site in topology.sites if site.server is not None),
        *(_policy_streams(topology) if topology.policy is not None else ()),
        *(each for region in topology.regions for each in _region(topology, region)),
        *(_hub_streams(topology) if topology.regions else ()),
        *_free_streams(topology),
    )


def hub_place(topology: TopologySettings) -> Place:
    """Give where ARCHIVE, REPORT and MUSTER_POLICY are."""
    return Place(HUB, topology.hub.domain)


def region_place(region: RegionSettings) -> Place:
    """Regions are managed over the hub's connection, by their domain."""
    return Place(HUB, region.jetstream_domain)


def archiving_of(topology: TopologySettings, region: RegionSettings) -> tuple[StreamKey, StreamKey]:
    """Give the archive, and the FLEET of a region that it copies."""
    return (hub_place(topology), topology.archive.name), (region_place(region), topology.fleet_of(region).name)


def is_beside_the_archive(topology: TopologySettings, region: RegionSettings) -> bool:
    """Tell whether a region's FLEET is in the hub's own domain: what the archive takes from there is not confined."""
    return region.jetstream_domain == topology.hub.domain


def relay_consumer(relay: RelaySettings, block: str) -> str:
    return f"muster-{relay.name}-{block}"


def _registration(site: SiteSettings) -> DesiredStream:
    assert site.server is not None
    wanted = site.registration
    probed = [probe_subject(site.region, site.name, block) for block in site.blocks]
    added = [each for each in probed if not any(covers(pattern, each) for pattern in wanted.subjects)]
    subjects = [*wanted.subjects, *added]
    extra = {"subjects": subjects, "retention": wanted.retention}
    place = Place(site.name, site.server.domain)
    return DesiredStream(place, wanted.name, _common(wanted) | extra, carries=tuple(subjects))


def _policy_streams(topology: TopologySettings) -> Iterator[Desired]:
    assert topology.policy is not None
    hub, common = hub_place(topology), _common(topology.policy)
    extra = {"subjects": [EVERY_REVISION], "retention": "limits", "allow_direct": True, "deny_delete": True}
    yield DesiredStream(hub, STREAM, common | extra, carries=(EVERY_REVISION,))
    for region in topology.regions:
        place = region_place(region)
        if place != hub:
            yield from _policy_copy(topology, region, place, common)
        for site in topology.sites:
            if site.region == region.name:
                name = consumer_name(site.name)
                yield DesiredConsumer(place, STREAM, name, consumer_config(region.name, site.name))


def _policy_copy(topology: TopologySettings, region: RegionSettings, place: Place, common: Config) -> Iterator[Desired]:
    """Copy a region's part through a consumer at the hub: what that shows is not for the region to choose."""
    hub, part = hub_place(topology), subjects_of_region(region.name)
    mirror = {"name": STREAM, "external": {"api": hub.api}, "filter_subject": part, "consumer": None}
    yield consumer_of((place, STREAM), (hub, STREAM), mirror, wanted=True)
    # How many servers a region has, its FLEET knows: a hub's cluster of three says nothing of that.
    replicas = {"num_replicas": topology.fleet_of(region).replicas}
    extra = {"mirror": mirror, "retention": "limits", "allow_direct": True}
    yield DesiredStream(place, STREAM, common | replicas | extra, (Origin(hub, STREAM, (part,)),), (part,))


def _region(topology: TopologySettings, region: RegionSettings) -> Iterator[Desired]:
    place, wanted = region_place(region), topology.fleet_of(region)
    subjects = [f"{ROOT}.{region.name}.>"]
    extra = {
        "subjects": subjects,
        "retention": "limits",
        "discard": wanted.discard,
        "allow_atomic": True,
        "allow_direct": True,
    }
    config = _common(wanted, _fleet_room(topology, region)) | extra
    yield DesiredStream(place, wanted.name, config, carries=tuple(subjects))
    for relay in topology.relays:
        for block in relay.blocks if relay.region == region.name else ():
            yield _consumer_of_relay(relay, block, (place, wanted.name))
    if not is_beside_the_archive(topology, region):
        archive, fleet = archiving_of(topology, region)
        deliveries = f"{DELIVERIES}.{region.name}.{wanted.name}"
        is_durable = topology.archive.sourcing == "durable"
        source = _source(topology, region)
        yield through_consumer(archive, fleet, source, ARCHIVE_CONSUMER, deliveries, wanted=is_durable)


def _consumer_of_relay(relay: RelaySettings, block: str, fleet: StreamKey) -> DesiredConsumer:
    name = relay_consumer(relay, block)
    config = {
        "durable_name": name,
        "filter_subject": EVERY_REGISTRATION,
        "ack_policy": "all",
        "ack_wait": _ACK_WAIT,
        "max_ack_pending": -1,
        "max_deliver": -1,
        "metadata": {FOR_A_RELAY: relay.name},
    }
    return DesiredConsumer(*fleet, name, config)


def _hub_streams(topology: TopologySettings) -> Iterator[DesiredStream]:
    hub, archive, report = hub_place(topology), topology.archive, topology.report
    origins = [Origin(region_place(region), topology.fleet_of(region).name) for region in topology.regions]
    sources = [_source(topology, region) for region in topology.regions]
    if topology.policy is not None:
        origins.append(Origin(hub, STREAM))
        sources.append({"name": STREAM})
    extra = {"subjects": [], "sources": sources, "retention": "limits", "allow_direct": True}
    config = _common(archive, _archive_room(topology)) | extra
    yield DesiredStream(hub, archive.name, config, tuple(origins), _CARRIES)
    mirror = {"mirror": {"name": archive.name}, "retention": "limits", "allow_direct": True, "mirror_direct": True}
    config = _common(report, _room(topology, report, _REPORT_SHARE)) | mirror
    yield DesiredStream(hub, report.name, config, (Origin(hub, archive.name),), _CARRIES)


def _source(topology: TopologySettings, region: RegionSettings) -> Config:
    source: Config = {"name": topology.fleet_of(region).name}
    if is_beside_the_archive(topology, region):
        return source
    external = {"api": region_place(region).api}
    return source | {"external": external, "subject_transforms": confined_to(region.name)}


def _archive_room(topology: TopologySettings) -> int:
    return _room(topology, topology.archive, _ARCHIVE_SHARE)


def _fleet_room(topology: TopologySettings, region: RegionSettings) -> int:
    fleet = topology.fleet_of(region)
    own = _room(topology, fleet, _FLEET_SHARE)
    at_hub = int(_archive_room(topology) * _AT_ONCE) // len(topology.regions)
    return own if fleet.max_bytes or not (own and at_hub) else min(own, at_hub)


def _room(topology: TopologySettings, wanted: StreamOptions, share: float) -> int:
    """Give how many bytes a stream may hold, 0 for no limit: what it says, else its share of the servers' disks."""
    return int(wanted.max_bytes) or (int(topology.render.max_store * share) if wanted.storage == "file" else 0)


def _free_streams(topology: TopologySettings) -> Iterator[Desired]:
    """List streams, and the consumers that their copies may have: each where both its stream and its copy allow it."""
    streams = [_free_stream(topology, each) for each in topology.streams]
    consumers = [each for wanted in topology.streams for each in _free_consumers(topology, wanted)]
    waiting = {stream.key for stream in streams}
    for stream in _origins_first(streams):
        waiting.remove(stream.key)
        ready = [each for each in consumers if each.stream_key not in waiting]
        consumers = [each for each in consumers if each not in ready]
        yield from (each for each in ready if each.stream_key != stream.key)
        yield stream
        yield from (each for each in ready if each.stream_key == stream.key)


def _origins_first(streams: list[DesiredStream]) -> Iterator[DesiredStream]:
    """Order streams so that what is copied comes before its copies; a circle stays as it was written."""
    waiting = list(streams)
    while waiting:
        names = {each.key for each in waiting}
        ready = [each for each in waiting if not any(origin.key in names for origin in each.origins)]
        yield from ready or waiting
        waiting = [each for each in waiting if each not in ready] if ready else []


def _free_stream(topology: TopologySettings, wanted: FreeStreamSettings) -> DesiredStream:
    place = _free_place(topology, wanted)
    origins = tuple(_origin(topology, place, each) for each in wanted.origins if each.place or not each.api)
    return DesiredStream(place, wanted.name, _common(wanted) | _free_fields(wanted, place.domain), origins)


def _free_consumers(topology: TopologySettings, wanted: FreeStreamSettings) -> Iterator[DesiredConsumer]:
    """Give the consumers through which a ``[[stream]]`` copies where its copies are durable.

    Sources are unless they shall not; mirrors only where they shall, since a mirror cannot be changed.
    """
    place = _free_place(topology, wanted)
    for copied in wanted.origins:
        is_durable = (copied.sourcing or ("plain" if copied is wanted.mirror else "durable")) == "durable"
        if not copied.api and (is_durable or copied is not wanted.mirror):
            origin, source = _origin(topology, place, copied), _free_source(copied, place.domain)
            yield consumer_of((place, wanted.name), origin.key, source, wanted=is_durable)


def _free_place(topology: TopologySettings, wanted: FreeStreamSettings) -> Place:
    return Place(HUB, wanted.domain) if wanted.domain else _place_of(topology, wanted.place)


def _place_of(topology: TopologySettings, name: str) -> Place:
    if name == HUB_PLACE:
        return hub_place(topology)
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


def _free_fields(wanted: FreeStreamSettings, own_domain: str) -> Config:
    """Give what a ``[[stream]]`` says beyond what every stream has; it is in the domain ``own_domain``."""
    config: Config = {
        "subjects": list(wanted.subjects),
        "retention": wanted.retention,
        "discard": wanted.discard,
        "max_msgs": wanted.max_messages or -1,
        "max_msgs_per_subject": wanted.max_messages_per_subject or -1,
        "max_msg_size": int(wanted.max_message_size) or -1,
        "allow_direct": wanted.allow_direct,
        "allow_atomic": wanted.allow_atomic,
        "allow_rollup_hdrs": wanted.allow_rollup,
        "deny_delete": wanted.deny_delete,
        "deny_purge": wanted.deny_purge,
        "description": wanted.description or None,
        "sources": [_free_source(source, own_domain) for source in wanted.sources],
        "mirror": _free_source(wanted.mirror, own_domain) if wanted.mirror is not None else None,
    }
    if wanted.mirror_direct:
        # Not false otherwise: to a mirror in its origin's domain the server gives what the origin has.
        config["mirror_direct"] = True
    if wanted.placement is not None:
        config["placement"] = {
            "cluster": wanted.placement.cluster or None,
            "tags": list(wanted.placement.tags) or None,
        }
    return config


def _free_source(origin: OriginSettings, own_domain: str) -> Config:
    external = {"api": origin.api, "deliver": origin.deliver} if origin.api else None
    if origin.domain not in ("", own_domain):
        external = {"api": api_prefix(origin.domain)}
    # Without a destination a transform only filters.
    transforms = [{"src": each.source, "dest": each.destination} for each in origin.transforms]
    return {
        "name": origin.name,
        "external": external,
        "opt_start_seq": origin.start_sequence or None,
        "opt_start_time": _server_time(origin.start_time) if origin.start_time is not None else None,
        "filter_subject": origin.filter_subject or None,
        "subject_transforms": transforms or None,
        "consumer": None,
    }


def _server_time(at: datetime) -> str:
    """Write an instant as the server writes it back: UTC, the fraction without trailing zeros."""
    text = at.astimezone(UTC).replace(tzinfo=None).isoformat()
    return (text.rstrip("0") if "." in text else text) + "Z"


def _common(wanted: StreamOptions, room: int = 0) -> Config:
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

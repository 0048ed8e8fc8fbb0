"""Derive from the settings how the hub's policy gets to the sites: a stream, copies, a consumer for each site. Pure.

Each region copies what is said to it and to its sites, through a consumer that the hub keeps for it. What a
consumer shows is laid down here, so that the region, and the site's agent, which may only move theirs and read what it
shows, can read nothing else.
"""

from collections.abc import Iterator

from aggregator.topology.model import HUB, Config, Desired, DesiredConsumer, DesiredStream, Origin, Place
from aggregator.topology.observed.durable_copies import consumer_of
from aggregator.topology.settings import PolicySettings, RegionSettings, TopologySettings
from shared.nats.jetstream_api import api_prefix
from shared.policy import EVERY_REVISION, STREAM, consumer_config, consumer_name, subjects_of_region


def policy_at_hub(hub: Place, policy: PolicySettings, common: Config) -> DesiredStream:
    """Give the hub's stream; ``common`` is what every stream has."""
    extra = {"subjects": [EVERY_REVISION], "retention": "limits", "allow_direct": True, "deny_delete": True}
    return DesiredStream(hub, policy.name, common | extra, carries=(EVERY_REVISION,))


def policy_in_region(
    topology: TopologySettings, region: RegionSettings, place: Place, common: Config
) -> Iterator[Desired]:
    """Give a region's copy, where it is in a domain of its own, and its sites' consumers."""
    assert topology.policy is not None
    name, hub = topology.policy.name, Place(HUB, topology.hub.domain)
    if place != hub:
        copying = policy_copying(hub, region.name, place)
        assert copying.copying is not None
        # How many servers a region has, its FLEET knows: a hub's cluster of three says nothing of that.
        replicas = {"num_replicas": topology.fleet_of(region).replicas}
        extra = {"mirror": copying.copying.source, "retention": "limits", "allow_direct": True}
        config = common | replicas | extra
        yield copying
        carries = (subjects_of_region(region.name),)
        yield DesiredStream(place, name, config, (Origin(hub, name, carries),), carries)
    for site in topology.sites:
        if site.region == region.name:
            config = consumer_config(region.name, site.name)
            yield DesiredConsumer(place, name, consumer_name(site.name), config)


def policy_copying(hub: Place, region: str, place: Place) -> DesiredConsumer:
    """Give the consumer at the hub through which a region copies its part: what that shows is not for it to choose."""
    external = {"api": api_prefix(hub.domain)}
    mirror = {"name": STREAM, "external": external, "filter_subject": subjects_of_region(region), "consumer": None}
    return consumer_of((place, STREAM), (hub, STREAM), mirror, wanted=True)

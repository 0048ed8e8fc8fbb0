"""Derive from the settings how the hub's policy gets to the sites: a stream, copies, a consumer for each site. Pure.

Each region copies what is said to it and to its sites, and no more. What a site's consumer shows is laid down here, so
that its agent, which may only pull from it and move it, can read nothing else.
"""

from collections.abc import Iterator

from aggregator.topology.settings import PolicySettings, RegionSettings, TopologySettings
from aggregator.topology.words import HUB, Config, Desired, DesiredConsumer, DesiredStream, Origin, Place
from shared.jetstream_api import api_prefix
from shared.policy import EVERY_REVISION, consumer_config, consumer_name, subjects_of_region


def policy_at_hub(hub: Place, policy: PolicySettings, common: Config) -> DesiredStream:
    """Give the hub's stream; ``common`` is what every stream has."""
    extra = {"subjects": [EVERY_REVISION], "retention": "limits", "allow_direct": True, "deny_delete": True}
    return DesiredStream(hub, policy.name, common | extra)


def policy_in_region(
    topology: TopologySettings, region: RegionSettings, place: Place, common: Config
) -> Iterator[Desired]:
    """Give a region's copy, where it is in a domain of its own, and its sites' consumers."""
    assert topology.policy is not None
    name, hub = topology.policy.name, Place(HUB, topology.hub.domain)
    if place != hub:
        subject = subjects_of_region(region.name)
        mirror = {"name": name, "external": {"api": api_prefix(hub.domain)}, "filter_subject": subject}
        config = common | {"mirror": mirror, "retention": "limits", "allow_direct": True}
        yield DesiredStream(place, name, config, (Origin(hub, name, (subject,)),))
    for site in topology.sites:
        if site.region == region.name:
            config = consumer_config(region.name, site.name) | {"deliver_policy": "all"}
            yield DesiredConsumer(place, name, consumer_name(site.name), config)

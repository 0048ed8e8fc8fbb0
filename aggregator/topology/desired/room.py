"""Say how much each stream may hold, so that a region which sends too much harms itself before others. Pure.

NATS bounds no source of a stream. What bounds a region is its FLEET: all that comes to the hub passes it, stays there
for ``max_age``, and where it is full it refuses what is new (``discard = "new"``); so a region sends no more than
FLEET's ``max_bytes`` in each ``max_age``. Where the file says how much servers may hold (``max_store``) and nothing of
a stream, all regions' FLEETs together may hold half of what ARCHIVE may: whoever fills his own is told of at once, and
others lose nothing of ARCHIVE before he has done so again and again. ARCHIVE and REPORT let go of their oldest, rather
than fill the hub's servers, where they would take nothing of anybody.
"""

from aggregator.topology.settings import RegionSettings, TopologySettings

_ARCHIVE, _REPORT, _FLEET = 1 / 2, 1 / 4, 3 / 4
"""Shares of ``max_store``; the rest is for MUSTER_POLICY and the streams of one's own."""
_AT_ONCE = 1 / 2
"""The share of ARCHIVE that all regions may send within FLEET's ``max_age``."""


def archive_room(topology: TopologySettings) -> int:
    """Give how many bytes ARCHIVE may hold, 0 for no limit."""
    return int(topology.archive.max_bytes) or _share(topology, topology.archive.storage, _ARCHIVE)


def report_room(topology: TopologySettings) -> int:
    """Give how many bytes REPORT may hold, 0 for no limit."""
    return int(topology.report.max_bytes) or _share(topology, topology.report.storage, _REPORT)


def fleet_room(topology: TopologySettings, region: RegionSettings) -> int:
    """Give how many bytes a region's FLEET may hold, 0 for no limit."""
    fleet = topology.fleet_of(region)
    own = _share(topology, fleet.storage, _FLEET)
    at_hub = int(archive_room(topology) * _AT_ONCE) // len(topology.regions)
    return int(fleet.max_bytes) or (min(own, at_hub) if own and at_hub else own)


def _share(topology: TopologySettings, storage: str, share: float) -> int:
    return int(topology.render.max_store * share) if storage == "file" else 0

"""Name why time is known or unknown. Nothing here needs Spark."""

from enum import StrEnum


class Cause(StrEnum):
    """Why time is known or unknown; what stands first outranks what follows.

    Maintenance stands in no table of coverage: what was observed meanwhile was observed, but is not accounted for.
    """

    MAINTENANCE = "maintenance"
    LOST = "lost"
    HUB_CLOCK = "hub_clock"
    CONTESTED = "contested"
    OBSERVED = "observed"
    ASSUMED = "assumed"
    IMPORTED = "imported"
    UNWATCHED = "unwatched"
    PUT_BACK = "put_back"
    ADVISORIES_MISSING = "advisories_missing"
    UNOBSERVED = "unobserved"


OF_IMPORTS = (Cause.IMPORTED, Cause.UNWATCHED)
"""Of blocks that were imported, and of no others."""

"""Name why time is known or unknown. Nothing here needs Spark."""

from enum import StrEnum


class Cause(StrEnum):
    """Why time is known or unknown; what stands first outranks what follows."""

    LOST = "lost"
    OBSERVED = "observed"
    ASSUMED = "assumed"
    IMPORTED = "imported"
    ADVISORIES_MISSING = "advisories_missing"
    UNOBSERVED = "unobserved"

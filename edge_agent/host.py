"""Measure what this process uses of its host: /proc where there is one, what the kernel tells otherwise."""

import os
import resource
from pathlib import Path

import msgspec

_STATM = Path("/proc/self/statm")
_KIBI = 1024


class Usage(msgspec.Struct, frozen=True):
    """Resident memory in bytes, processor time in seconds."""

    resident_bytes: int
    cpu_seconds: float


def usage() -> Usage:
    """Measure this process now. Without /proc the largest resident size so far stands for the present one."""
    used = os.times()
    try:
        resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI
    return Usage(resident, used.user + used.system)

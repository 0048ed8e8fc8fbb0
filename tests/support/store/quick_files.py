"""Directories for tests that commit thousands of times: in memory, where this machine has such a place.

A disk waits for every commit to be on it. Processes that are killed lose nothing in memory either; what a loss of power
does is not played here.
"""

import os
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")  # noqa: S108 - the directories in it are drawn by tempfile


def quick_directory() -> tempfile.TemporaryDirectory[str]:
    """Make a directory that goes with the block or with cleanup()."""
    return tempfile.TemporaryDirectory(prefix="muster-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None)

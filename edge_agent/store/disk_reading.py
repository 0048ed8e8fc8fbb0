"""Read a store's bytes without SQLite: that tells a disk that fails from a file that is damaged.

SQLite calls both malformed. What the kernel cannot read (EIO) may be read a moment later, and proves nothing of what
stands there.
"""

import contextlib
import time
from pathlib import Path

LOOK_AGAIN_AFTER = (0.5, 1.0, 2.0)
"""Seconds. What a disk or its controller does for a moment is mostly over by then."""

_PIECE = 1 << 20


def read_through(path: Path) -> None:
    """Read a store and its log to their ends; raise OSError where that cannot be done.

    Nothing in this process may have them open: closing a file takes away all locks that the process has on it (fcntl).
    """
    for each in (path, path.with_name(path.name + "-wal")):
        with contextlib.suppress(FileNotFoundError), each.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass


def wait_until_readable(path: Path) -> None:
    """Return when all of a store can be read; raise OSError where some of it cannot, tried again for some seconds."""
    for pause in LOOK_AGAIN_AFTER:
        with contextlib.suppress(OSError):
            read_through(path)
            return
        time.sleep(pause)
    read_through(path)

"""Memory and file modes of a small daemon: collect cycles rarely, and return the memory of a burst."""

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import msgspec

_STATM = Path("/proc/self/statm")
_KIBI = 1024


class Usage(msgspec.Struct, frozen=True):
    """Resident memory in bytes, processor time in seconds."""

    resident_bytes: int
    cpu_seconds: float


def usage() -> Usage:
    """Measure this process now. Without /proc the largest resident size so far is returned as the present one."""
    used = os.times()
    try:
        resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI
    return Usage(resident, used.user + used.system)


UMASK = 0o027
_OTHERS = stat.S_IRWXO


def keep_private(store_path: Path) -> None:
    """Make new files of this process unreadable to others, and restrict those of an earlier agent."""
    os.umask(UMASK)
    for path in open_to_others(store_path):
        # Of somebody else's file doctor tells.
        with contextlib.suppress(PermissionError, FileNotFoundError):
            _close_to_others(path)


def open_to_others(store_path: Path) -> Iterator[Path]:
    """Return the files of a store, itself included, that every user may read or write."""
    for path in sorted(store_path.parent.glob(f"{store_path.name}*")):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
                yield path


def _close_to_others(path: Path) -> None:
    """Change the open file, not the one that its name may refer to by then."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return
        raise
    try:
        found = os.fstat(file)
        if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
            os.fchmod(file, stat.S_IMODE(found.st_mode) & ~_OTHERS)
    finally:
        os.close(file)

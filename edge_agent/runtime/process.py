"""Use memory as a small daemon should: look for cycles rarely, and give back what a burst has left behind.

Reading a backlog takes tens of megabytes for a moment. The C library keeps them for the next burst, which on a quiet
site is days away. And what the agent makes by the hundred thousand holds no cycles: looking for them on Python's usual
schedule is a fifth of its work.
"""

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
    """Measure this process now. Without /proc the largest resident size so far stands for the present one."""
    used = os.times()
    try:
        resident = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBI
    return Usage(resident, used.user + used.system)


UMASK = 0o027
_OTHERS = stat.S_IRWXO


def keep_private(store_path: Path) -> None:
    """Let this process make no file that others may read, and close to them what an earlier agent made."""
    os.umask(UMASK)
    for path in open_to_others(store_path):
        # Of somebody else's file doctor tells.
        with contextlib.suppress(PermissionError, FileNotFoundError):
            _close_to_others(path)


def open_to_others(store_path: Path) -> Iterator[Path]:
    """Name what lies beside a store, itself included, and may be read or written by everybody."""
    for path in sorted(store_path.parent.glob(f"{store_path.name}*")):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
                yield path


def _close_to_others(path: Path) -> None:
    """Change the file that is open, not what its name leads to by then."""
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

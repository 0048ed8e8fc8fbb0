"""Keep the agent's files from everybody else on its host: they hold what senders register.

The agent's user writes them, its group may read them (``status``, ``senders``, ``explain``), others may not. What lies
there need not be the agent's: of a link's target and of a file that has a second name no mode is ever changed.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

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

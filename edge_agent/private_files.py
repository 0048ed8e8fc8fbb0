"""Keep the agent's files from everybody else on its host: they hold what senders register.

The agent's user writes them, its group may read them (``status``, ``senders``, ``explain``), others may not.
"""

import contextlib
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
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~_OTHERS)


def open_to_others(store_path: Path) -> Iterator[Path]:
    """Name what lies beside a store, itself included, and may be read or written by everybody."""
    for path in sorted(store_path.parent.glob(f"{store_path.name}*")):
        with contextlib.suppress(FileNotFoundError):
            if path.is_file() and path.stat().st_mode & _OTHERS:
                yield path

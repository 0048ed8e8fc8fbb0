"""A disk that fails to read: the kernel's own I/O error (EIO), for one store's files.

/proc/self/mem gives it where nothing is mapped (proc(5)), and nothing is mapped at the first addresses.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

UNREADABLE = Path("/proc/self/mem")
_SUFFIXES = ("", "-wal")


def fail(path: Path) -> dict[int, int]:
    """Let what this process has open of a store fail from now on; give the files as they were."""
    names = {f"{path}{suffix}" for suffix in _SUFFIXES}
    files = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if os.path.realpath(entry) in names]
    kept = {file: os.dup(file) for file in files}
    unreadable = os.open(UNREADABLE, os.O_RDONLY | os.O_CLOEXEC)
    for file in files:
        os.dup2(unreadable, file, inheritable=False)
    os.close(unreadable)
    return kept


def heal(kept: dict[int, int]) -> None:
    """Let them be read again."""
    for file, copy in kept.items():
        os.dup2(copy, file, inheritable=False)
        os.close(copy)


@contextmanager
def failing_disk(path: Path) -> Iterator[None]:
    """Let what this process has open of a store fail: reading by EIO, writing because the file is not open for it."""
    kept = fail(path)
    try:
        yield
    finally:
        heal(kept)


@contextmanager
def dead_sector(path: Path) -> Iterator[None]:
    """Let nobody read a store, whoever opens it and how often: its first sector gives EIO."""
    hidden = path.with_name("hidden")
    path.rename(hidden)
    path.symlink_to(UNREADABLE)
    try:
        yield
    finally:
        hidden.replace(path)

"""Files that replace others: readers see the old one or the whole new one, and nothing is written through a link."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Final

_ATTEMPTS: Final = 10


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield the path of a file to write, which takes the place of ``file`` at the end; raise OSError.

    The path lies in a new directory next to ``file`` that no other user may enter: a writer there follows no planted
    link, and other users see nothing before the file has its permissions. If the block raises, ``file`` is unchanged.
    """
    directory = Path(mkdtemp(prefix=".muster-", dir=file.absolute().parent))
    try:
        unfinished = directory / file.name
        yield unfinished
        unfinished.replace(file)
    finally:
        discard(directory)


def discard(directory: Path) -> None:
    """Remove the directory of an unfinished file, also while another thread removes or creates files in it."""
    for _ in range(_ATTEMPTS):
        # On the first file that another thread has removed, rmtree would give up.
        rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return

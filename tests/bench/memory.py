"""Watch what memory the processes below this one take together."""

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple, Self

from tests.bench.children import MEGABYTE

_EVERY_SECONDS = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")


JAVA = "java"


class Resident(NamedTuple):
    """Resident MB of the JVM, and of the Python workers and whatever else there is."""

    java: float
    others: float


class PeakMemory:
    """Notes the most that the processes below this one had resident: Java, and the others. A context manager.

    It looks twice a second. ``peaks`` are MB, as of now.
    """

    def __init__(self) -> None:
        self.peaks = Resident(0.0, 0.0)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_EVERY_SECONDS):
            now = _below(os.getpid())
            self.peaks = Resident(*map(max, self.peaks, now))


def _below(root: int) -> Resident:
    children: dict[int, list[int]] = defaultdict(list)
    resident: dict[int, tuple[bool, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = path.read_text().rpartition(")")
        except OSError:
            # It ended meanwhile.
            continue
        pid, fields = int(path.parent.name), rest.split()
        children[int(fields[1])].append(pid)
        resident[pid] = (name.endswith(f"({JAVA}"), int(fields[21]) * _PAGE / MEGABYTE)
    todo, found = list(children[root]), [0.0, 0.0]
    while todo:
        pid = todo.pop()
        is_java, size = resident[pid]
        found[not is_java] += size
        todo += children[pid]
    return Resident(*found)

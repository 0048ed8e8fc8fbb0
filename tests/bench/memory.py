"""Watch what memory the processes below this one take together."""

import os
import threading
from collections import defaultdict
from pathlib import Path
from typing import Self

from tests.bench.children import MEGABYTE

_EVERY_SECONDS = 0.5
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PeakMemory:
    """Notes ``totals``, resident MB of all processes below this one, twice a second. A context manager."""

    def __init__(self) -> None:
        self.totals: list[float] = []
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
            self.totals.append(_below(os.getpid()))


def _below(root: int) -> float:
    children: dict[int, list[int]] = defaultdict(list)
    resident: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            # It ended meanwhile.
            continue
        pid = int(path.parent.name)
        children[int(fields[1])].append(pid)
        resident[pid] = int(fields[21]) * _PAGE
    todo, total = list(children[root]), 0
    while todo:
        pid = todo.pop()
        total += resident[pid]
        todo += children[pid]
    return total / MEGABYTE

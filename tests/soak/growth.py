"""Note what processes and files take while a soak runs, and say how fast each of them grows."""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.bench.children import MEGABYTE

_DAY = 86_400.0
_PAGE = os.sysconf("SC_PAGE_SIZE")
WARM_AFTER = 0.25
"""The part of a run that does not count: caches fill, and nobody was known before."""


class Growth:
    """Figures by name, each with its time."""

    def __init__(self) -> None:
        self._noted: dict[str, list[tuple[float, float]]] = defaultdict(list)

    def note_process(self, name: str, pid: int) -> None:
        """Note the resident MB of a process, nothing where it has ended."""
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return
        if pages:
            self._note(f"{name}, MB resident", pages * _PAGE / MEGABYTE)

    def note_files(self, name: str, *paths: Path, counted: bool = False) -> None:
        """Note how many MB files take, all below a directory; ``counted``: how many there are, too."""
        sizes = []
        for path in paths:
            # Files and directories may go at any time; walk() passes over directories that have.
            found = (Path(place, file) for place, _, files in os.walk(path) for file in files)
            for file in found if path.is_dir() else [path]:
                with suppress(FileNotFoundError):
                    sizes.append(file.stat().st_size)
        self._note(f"{name}, MB", sum(sizes) / MEGABYTE)
        if counted:
            self._note(f"{name}, files", len(sizes))

    def lines(self) -> Iterator[str]:
        """Write a table."""
        yield f"{'what':38} {'first':>8} {'last':>8} {'most':>8} {'a day':>9}"
        for name, noted in self._noted.items():
            warm = noted[int(len(noted) * WARM_AFTER) :]
            figures = [figure for _, figure in noted]
            slope = statistics.linear_regression(*zip(*warm, strict=True)).slope * _DAY if len(warm) > 1 else 0.0
            yield f"{name:38} {figures[0]:8.1f} {figures[-1]:8.1f} {max(figures):8.1f} {slope:+9.1f}"

    def _note(self, name: str, figure: float) -> None:
        self._noted[name].append((time.monotonic(), figure))

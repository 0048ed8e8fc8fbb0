"""A disk of its own, small enough to be filled: a file system in memory, where this machine lets us mount one."""

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

# The agent keeps 64 MiB of a disk free.
SIZE = "96m"
BALLAST = "ballast"
LATELY = 5.0
_STEP = 1 << 20
_PAGE = 4096


class SmallDisk:
    """A directory; ``is_small`` where it is a disk of its own. Else it cannot be filled."""

    def __init__(self, path: Path, *, is_wanted: bool = True, size: str = SIZE) -> None:
        self.path = path
        self._size = size
        self._is_wanted = is_wanted
        self.is_small = False
        self._is_full = False
        self._full_until = 0.0

    @property
    def was_full_lately(self) -> bool:
        """Tell whether it is full, or was seconds ago."""
        return self._is_full or time.monotonic() < self._full_until + LATELY

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={self._size}", "tmpfs", str(self.path)]
        may_mount = os.geteuid() == 0 and shutil.which("mount") is not None
        self.is_small = self._is_wanted and may_mount and not _fails(command)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self.is_small:
            # Lazily: a process that was just killed may still have a file open.
            subprocess.run(["umount", "--lazy", str(self.path)], check=True)
            self.is_small = False

    def fill(self, left: int) -> None:
        """Fill it up to ``left`` bytes."""
        self._is_full = True
        with (self.path / BALLAST).open("ab", buffering=0) as ballast:
            try:
                while (free := self._free()) > left:
                    step = min(_STEP, free - left)
                    ballast.write(bytes(max(step, _PAGE)))
            except OSError:
                # Full to the last page.
                return

    def free(self) -> None:
        """Take the filling away."""
        (self.path / BALLAST).unlink(missing_ok=True)
        self._is_full, self._full_until = False, time.monotonic()

    def _free(self) -> int:
        disk = os.statvfs(self.path)
        return disk.f_bavail * disk.f_frsize


def _fails(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0

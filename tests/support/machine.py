"""A throw-away machine: systemd boots in namespaces over an overlay of this one. Needs root and systemd-nspawn."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

needs_machines = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-nspawn") is None,
    reason="needs root and systemd-nspawn (apt-get install systemd-container)",
)


class Machine:
    """One that can be switched on and off; ``root`` is its file system, seen from here."""

    def __init__(self, root: Path, shown: dict[Path, str]) -> None:
        self.root = root
        self._shown = [f"--bind-ro={here}:{there}" for here, there in shown.items()]
        self._nspawn: subprocess.Popen[bytes] | None = None

    def switch_on(self) -> None:
        """Boot it, with a loopback interface only, and wait until all its units have started."""
        self._nspawn = subprocess.Popen(
            [
                *("systemd-nspawn", "--quiet", "--directory", self.root, "--register=no", "--keep-unit"),
                *(
                    "--private-network",
                    "--console=pipe",
                    "--link-journal=no",
                    f"--uuid={uuid4()}",
                    *self._shown,
                    "--boot",
                ),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self.wait_for("systemctl is-system-running | grep -E 'running|degraded'")

    def switch_off(self) -> None:
        """Shut it down as an operator does."""
        assert self._nspawn is not None
        # The answer may be cut off by what was asked for.
        self.run("systemctl poweroff", code=None)
        self._nspawn.wait(300)

    def cut_power(self) -> None:
        """End all its processes at once."""
        assert self._nspawn is not None
        leader = self._leader()
        if leader is not None:
            os.kill(leader, signal.SIGKILL)
        self._nspawn.wait(120)

    def run(self, command: str, code: int | None = 0) -> str:
        """Run a shell command on it as root; give what it says, whatever the stream. ``code`` None: any."""
        ended = self._try(command)
        assert code is None or ended.returncode == code, f"{command}: {ended.returncode}: {ended.stdout}"
        return ended.stdout

    def beside(self, *command: str | Path) -> list[str | Path]:
        """Give the command line that runs a program of this host on the other's network."""
        return ["nsenter", "--net", "--target", str(self._leader()), *command]

    def wait_for(self, command: str, deadline: float = 180.0) -> str:
        """Run it again until it succeeds."""
        ends_at = time.monotonic() + deadline
        while (ended := self._try(command)).returncode:
            assert time.monotonic() < ends_at, f"after {deadline:g} s not yet: {command}: {ended.stdout}"
            time.sleep(0.1)
        return ended.stdout

    def _try(self, command: str) -> "subprocess.CompletedProcess[str]":
        leader = self._leader()
        if leader is None:
            return subprocess.CompletedProcess(command, 1, "it is not on", "")
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"]
        return subprocess.run(
            ["nsenter", "--all", "--target", str(leader), *environment, "bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )

    def _leader(self) -> int | None:
        assert self._nspawn is not None
        number = self._nspawn.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split() if self._is_on() else []
        # Until it has become init, the first process is nspawn's own.
        return next(
            (int(child) for child in children if "systemd" in _comm(child) and "nspawn" not in _comm(child)), None
        )

    def _is_on(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None


def _comm(process: str) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().strip()
    except FileNotFoundError:
        return ""


@contextmanager
def machine(directory: Path, shown: dict[Path, str]) -> Iterator[Machine]:
    """Give one that is like this host but runs nothing of what is enabled here; what it writes is thrown away.

    Args:
        directory: where it may mount things.
        shown: paths of this host, and where they are to be seen there.
    """
    place = directory / "machine"
    upper, work, root = (place / name for name in ("upper", "work", "root"))
    # An overlay cannot lie on another one, which a container's own root may be: its own changes are held in memory.
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "muster-test", str(place)], check=True)
    try:
        for each in (upper, work, root):
            each.mkdir()
        options = f"lowerdir=/,upperdir={upper},workdir={work}"
        subprocess.run(["mount", "-t", "overlay", "-o", options, "muster-test", str(root)], check=True)
        for enabled in (*root.glob("etc/systemd/system/*.wants/*"), *root.glob("etc/init.d/*")):
            enabled.unlink()
        # Without an id it would take this for its first boot, and enable everything.
        (root / "etc/machine-id").write_text(f"{uuid4().hex}\n")
        yielded = Machine(root, shown)
        try:
            yield yielded
        finally:
            if yielded._is_on():
                yielded.cut_power()
            subprocess.run(["umount", str(root)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)

"""Run a program as a child and look at what it takes: resident memory, processor time."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from shared.embedded.server import dies_with

TICKS = os.sysconf("SC_CLK_TCK")
END_DEADLINE = 60.0
MEGABYTE = 1_000_000


def processor_seconds(pid: int) -> float:
    """Measure the processor time that a process has taken, in seconds of one core."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class Child:
    """One program: started, ended and killed at will, always with the same command and log."""

    def __init__(self, command: Sequence[str], log_path: Path) -> None:
        self._command = command
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; what it says goes into the log."""
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one system call, nothing that could deadlock
            )

    @property
    def pid(self) -> int:
        """Give its process id; raise RuntimeError, with the end of its log, where it has ended by itself."""
        if self._process is None or self._process.poll() is not None:
            end = self.log_path.read_text(errors="replace")[-2_000:] if self.log_path.exists() else ""
            raise RuntimeError(f"{self._command[0]} has ended by itself:\n{end}")
        return self._process.pid

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it, and wait until it has; kill it where it does not listen."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(number)
        try:
            await asyncio.to_thread(process.wait, END_DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait, END_DEADLINE)

    def resident(self) -> float:
        """Measure its resident memory in MB (10^6 bytes)."""
        return self._status("VmRSS")

    def peak_resident(self) -> float:
        """Measure the most resident memory that it ever had, in MB."""
        return self._status("VmHWM")

    def processor_seconds(self) -> float:
        """Measure the processor time that it has taken, in seconds of one core."""
        return processor_seconds(self.pid)

    async def core_share(self, seconds: float) -> float:
        """Measure over some time which share of one core it takes, in percent."""
        before, began = self.processor_seconds(), time.perf_counter()
        await asyncio.sleep(seconds)
        return 100 * (self.processor_seconds() - before) / (time.perf_counter() - began)

    def _status(self, name: str) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024 / MEGABYTE
        raise RuntimeError(f"{name} of {self.pid} cannot be read")

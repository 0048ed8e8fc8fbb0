"""Run a command of ``muster-aggregator`` that goes on until it is told to end."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROGRAM = "from aggregator.cli import main; main()"


class CommandProcess:
    """A command that runs, its output in a file."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self._process, self._output = process, output

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, deadline: float = 300.0) -> str:
        """Give what it said once ``text`` is a part of that."""
        ends_at = time.monotonic() + deadline
        while text not in self.said:
            assert self._process.poll() is None, f"it ended: {self.said}"
            assert time.monotonic() < ends_at, f"not yet {text!r}: {self.said}"
            time.sleep(0.05)
        return self.said

    def end(self, number: int, deadline: float = 300.0) -> int:
        """Send a signal; give the exit code."""
        self._process.send_signal(number)
        return self._process.wait(deadline)


@contextmanager
def running(directory: Path, *arguments: str) -> Iterator[CommandProcess]:
    """Run the command meanwhile."""
    output = directory / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=file, stderr=file
        )
    try:
        yield CommandProcess(process, output)
    finally:
        process.kill()
        process.wait()

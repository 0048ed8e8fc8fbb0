"""Run a command of ``muster-aggregator`` that goes on until it is told to end."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.support.other_user import command_as

_PROGRAM = "from aggregator.cli import main; main()"


class CommandProcess:
    """A command that runs, its output in a file."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path) -> None:
        self._process, self._output = process, output

    @property
    def pid(self) -> int:
        return self._process.pid

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
def running(
    directory: Path, *arguments: str, user: int | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[CommandProcess]:
    """Run the command meanwhile, as ``user``, who has no groups."""
    output = directory / "output"
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    with output.open("wb") as file:
        process = subprocess.Popen(
            command if user is None else command_as(user, *command),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=None if environment is None else {**os.environ, **environment},
            cwd=directory,
        )
    try:
        yield CommandProcess(process, output)
    finally:
        process.kill()
        process.wait()

"""Run a program at a terminal, and see what it sends there."""

import fcntl
import os
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence

_OTHERS = ("COLUMNS", "LESS", "LINES", "NO_COLOR", "PAGER", "FORCE_COLOR")
PLAIN = {name: value for name, value in os.environ.items() if name not in _OTHERS} | {"TERM": "xterm"}
"""The surroundings of somebody who has set nothing."""


def shown_at_terminal(command: Sequence[str], environment: Mapping[str, str] = {}, *, columns: int = 80) -> str:
    """Give what a command sends to a terminal of 40 lines, with its line ends."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    surroundings = PLAIN | dict(environment)
    with subprocess.Popen(command, stdin=its, stdout=its, stderr=its, env=surroundings) as running:
        os.close(its)
        sent = b""
        try:
            while data := os.read(ours, 65_536):
                sent += data
        except OSError:  # what Linux says when the other end is closed
            pass
        running.wait(60)
    os.close(ours)
    return sent.decode()

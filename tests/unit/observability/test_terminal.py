"""Lines are as long as where they are read."""

import fcntl
import os
import struct
import subprocess
import sys
import termios

from edge_agent.runtime.terminal import UNWRAPPED

ASK = [sys.executable, "-c", "from edge_agent.runtime.terminal import width; print(width())"]
BARE = {name: value for name, value in os.environ.items() if name != "COLUMNS"}


def test_a_terminal_has_its_own_width() -> None:
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 93, 0, 0))
    subprocess.run(ASK, stdout=its, env=BARE, check=True)
    assert int(os.read(ours, 100)) == 93
    os.close(ours)
    os.close(its)


def test_a_pipe_takes_lines_whole() -> None:
    assert int(subprocess.run(ASK, stdout=subprocess.PIPE, env=BARE, check=True).stdout) == UNWRAPPED

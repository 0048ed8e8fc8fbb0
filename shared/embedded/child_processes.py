"""See to it that a child process ends when this process does, however it ends: for demos and tests.

The kernel sends the signal (prctl(2), PR_SET_PDEATHSIG), so it comes also after kill -9. It watches the thread that
started the child: that one must live as long as the child shall. A child's own children are not watched.
"""

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def dies_with(parent_pid: int) -> Callable[[], None]:
    """Prepare, before the fork, what the child does after it: ask the kernel to be killed when its parent ends.

    To be passed as ``preexec_fn``; ``parent_pid`` is this process's own: a parent that ended meanwhile is noticed.
    """
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def ask() -> None:
        if prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0 or os.getppid() != parent_pid:
            os._exit(1)

    return ask

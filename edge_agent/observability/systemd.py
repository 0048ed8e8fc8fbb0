"""Tell systemd that the agent is ready, alive, and what it does, from its event loop: a loop that hangs says nothing.

Protocol: sd_notify(3), datagrams to the socket that NOTIFY_SOCKET names.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Protocol

STATUS_INTERVAL = 5.0
EXTENSION, EXTEND_INTERVAL = 60.0, 10.0
"""Seconds: how much longer a start may take, and how often that is asked for again."""
_SHORTEST_INTERVAL = 0.05


class _StatusSource(Protocol):
    def in_a_line(self) -> str: ...


async def keep_supervisor_informed(board: _StatusSource) -> None:
    """Say READY, then WATCHDOG at half of what the supervisor asks for, and STATUS where it has changed."""
    _notify("READY=1")
    watchdog = _watchdog_interval()
    interval = min(watchdog or STATUS_INTERVAL, STATUS_INTERVAL)
    announced = ""
    while True:
        status = board.in_a_line()
        if status != announced:
            _notify(f"STATUS={status}")
            announced = status
        await asyncio.sleep(interval)
        if watchdog:
            _notify("WATCHDOG=1")


@asynccontextmanager
async def keep_watchdog(stopping: asyncio.Event) -> AsyncIterator[None]:
    """Say WATCHDOG meanwhile, and ask for more time: a thread is waited for that takes long, the loop does not hang.

    Until READY what counts is systemd's TimeoutStartSec, whatever WATCHDOG says; since 236 it can be extended.
    """
    watchdog = asyncio.create_task(_keep_watchdog(stopping), name="watchdog")
    try:
        yield
    finally:
        watchdog.cancel()


async def _keep_watchdog(stopping: asyncio.Event) -> None:
    # More often than ever: the last word may be as old as it may become.
    watchdog = _watchdog_interval() / 2
    while True:
        if watchdog:
            _notify("WATCHDOG=1")
        if not stopping.is_set():
            # After that, it would lengthen what systemd gives a stop.
            _notify(f"EXTEND_TIMEOUT_USEC={int(EXTENSION * 1e6)}")
        await asyncio.sleep(min(watchdog or EXTEND_INTERVAL, EXTEND_INTERVAL))


def announce_stopping() -> None:
    _notify("STOPPING=1\nSTATUS=stopping")


def _watchdog_interval() -> float:
    """Give half of the time, in seconds, within which the supervisor wants to hear of this process; 0: never."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    asked = os.environ.get("WATCHDOG_USEC", "")
    return max(int(asked) / 2e6, _SHORTEST_INTERVAL) if asked.isdecimal() and int(asked) else 0.0


def _notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A supervisor that does not listen is no reason to stop: without its watchdog's word it decides itself.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier,
    ):
        # The loop must not wait for a supervisor whose queue is full.
        notifier.setblocking(False)
        notifier.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)

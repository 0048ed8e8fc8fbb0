"""Tell systemd that the agent is ready and alive, from its event loop: a loop that hangs sends nothing.

Protocol: sd_notify(3), datagrams to the socket that NOTIFY_SOCKET names.
"""

import asyncio
import contextlib
import os
import socket

IDLE = 3_600.0


async def keep_supervisor_informed() -> None:
    """Say READY, then WATCHDOG at half of what the supervisor asks for; without a supervisor, only wait."""
    _notify("READY=1")
    interval = int(os.environ.get("WATCHDOG_USEC") or "0") / 2e6 or IDLE
    while True:
        await asyncio.sleep(interval)
        _notify("WATCHDOG=1")


def _notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A supervisor that does not listen is no reason to stop: without its watchdog's word it decides itself.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier,
    ):
        notifier.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)

"""Hear what an agent tells its supervisor, as systemd does: datagrams on a socket (sd_notify(3))."""

import socket
from pathlib import Path

ALIVE, MORE_TIME, READY = b"WATCHDOG=1", b"EXTEND_TIMEOUT_USEC=60000000", b"READY=1"


def supervisor_socket(address: Path) -> socket.socket:
    """Listen; whoever waits for a word waits for three minutes."""
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(address))
    supervisor.settimeout(180)
    return supervisor

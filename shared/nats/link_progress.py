"""Tell a slow link from a dead one by what its far end has taken, as the system knows it.

An answer to a large message on a thin link comes late, and so does everything that waits behind it. What the far end's
system acknowledges comes in all the while.
"""

import fcntl
import socket
import struct
import sys
import termios
from typing import Protocol

WORTH_WAITING = 1024
"""Fewer bytes that wait say nothing: a ping that is just leaving is no message that takes long."""

# linux/tcp.h, struct tcp_info: tcpi_bytes_acked.
_BYTES_TAKEN = struct.Struct("=120xQ")
_QUEUED = struct.Struct("=i")


class Connection(Protocol):
    """The part of a socket that is asked; event loops hand out no more than a likeness of one."""

    def fileno(self) -> int:
        """Give the descriptor."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Read an option."""


class LinkProgress:
    """Looks at a connection now and then; each who waits has one of their own."""

    def __init__(self) -> None:
        self._taken = 0

    def goes_on(self, connection: Connection | None) -> bool:
        """Tell whether the far end has taken bytes since the last look, and has more to take.

        False where the system does not say: then nothing but answers tells.
        """
        if connection is None or sys.platform != "linux":
            return False
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_TAKEN.size)
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size))
        except OSError:
            return False
        if len(info) < _BYTES_TAKEN.size:
            return False
        before, (self._taken,) = self._taken, _BYTES_TAKEN.unpack(info)
        return self._taken > before and _QUEUED.unpack(queued)[0] >= WORTH_WAITING

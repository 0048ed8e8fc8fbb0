"""Bound what connections take: how many there are, how long a request may take to come, and an answer to be taken.

Who opens many connections, sends a request a byte at a time, or reads nothing of its answer holds up nobody else.
"""

import asyncio
import socket
import struct
from typing import Any, ClassVar, Final

import h11
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST: Final = 512
"""Connections at once: those of a hundred browsers, and fewer than the files that a process may have open."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class BoundedConnection(H11Protocol):
    """One connection, of those of one service.

    It is cut where a request is not whole ``patience`` seconds after the connection was made, or after the first byte
    of a later request; and where nothing of an answer is taken for as long. Where there are too many, the one goes that
    has been waiting for a request the longest.
    """

    patience: ClassVar[float]
    waiting: ClassVar[dict["BoundedConnection", asyncio.TimerHandle]]
    _going: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, where there is room."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            next(iter(self.waiting), self).cut()
        self._watch_request()

    def cut(self) -> None:
        """Cut it, and let the machine, too, keep nothing of what was not taken."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._waits_no_more()
        if self._going is not None:
            self._going.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what comes; a request that has begun must go on."""
        super().data_received(data)
        self._watch_request()

    def pause_writing(self) -> None:
        """Keep an answer back that is not taken, but not for ever."""
        super().pause_writing()
        self._watch_answer()

    def on_response_complete(self) -> None:
        """Go on with what the answer leaves in the buffer, also where no other request is waited for."""
        super().on_response_complete()
        self._watch_answer()

    def _watch_request(self) -> None:
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._waits_no_more()
        elif self not in self.waiting and not self.transport.is_closing():
            self.waiting[self] = self.loop.call_later(self.patience, self.cut)

    def _waits_no_more(self) -> None:
        timer = self.waiting.pop(self, None)
        if timer is not None:
            timer.cancel()

    def _watch_answer(self) -> None:
        if self._going is None:
            self._go_on(0)

    def _go_on(self, left: int) -> None:
        size = self.transport.get_write_buffer_size()
        if left and size >= left:
            self.cut()
        else:
            self._going = self.loop.call_later(self.patience, self._go_on, size) if size else None


class PatientLoop(uvloop.Loop):
    """A loop whose servers give up a handshake of TLS that is not over after ``patience`` seconds.

    A connection counts as one behind that, and holds a file before: uvicorn has no word for it, and uvloop waits for a
    minute.
    """

    patience: float

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        """Listen."""
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = self.patience
        return await super().create_server(*arguments, **options)


def bounded(patience: float) -> type[BoundedConnection]:
    """Give the protocol of one service."""
    return type("Connection", (BoundedConnection,), {"patience": patience, "waiting": {}})

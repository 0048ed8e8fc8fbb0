"""Limits of connections: their number, the time of a request and of an answer, and the number of event streams.

A client that opens many connections or streams, sends a request a byte at a time, or reads nothing of its answer does
not keep other clients waiting.
"""

import asyncio
import socket
import struct
from collections import Counter
from ipaddress import IPv6Address, ip_address
from typing import Any, ClassVar, Final

import h11
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

MOST: Final = 512
"""Connections at once: those of a hundred browsers, and fewer than the files that a process may have open."""
MOST_STREAMS: Final = 384
"""Event streams at once. They last as long as a page is open: the other connections are left for short requests."""
MOST_OF_ADDRESS: Final = 256
MOST_OF_TOKEN: Final = 128
"""Event streams of one token: those of a hundred browsers, and of a program or two."""
_AT_ONCE: Final = struct.pack("ii", 1, 0)


class BoundedConnection(H11Protocol):
    """One connection, of those of one service.

    It is cut where a request is not whole ``patience`` seconds after the connection was made, or after the first byte
    of a later request; and where nothing of an answer is taken for as long. Where there are too many, the one goes that
    has been waiting for a request the longest; if none waits, one of the address that has the most.
    """

    patience: ClassVar[float]
    waiting: ClassVar[dict["BoundedConnection", asyncio.TimerHandle]]
    _going: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, where there is room."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            (next(iter(self.waiting), None) or self._one_of_most()).cut()
        self._watch_request()

    def _one_of_most(self) -> "BoundedConnection":
        addresses = {
            each: network_of(each.client[0]) if each.client else ""
            for each in self.connections
            if isinstance(each, BoundedConnection)
        }
        counts = Counter(addresses.values())
        most = max(counts.values())
        if counts[addresses[self]] == most:
            return self
        return next(each for each, address in addresses.items() if counts[address] == most)

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
        """Watch what the answer leaves in the buffer, and wait for the next request."""
        super().on_response_complete()
        self._watch_answer()
        self._watch_request()

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


class StreamPlaces:
    """The event streams that are open, by token and by address. "" is an unknown token or address, without a limit."""

    def __init__(self) -> None:
        self._of_token, self._of_address = Counter[str](), Counter[str]()
        self.count = self.refused_count = 0

    def take(self, token: str, address: str) -> tuple[int, str] | None:
        """Take a place, and return None; if there is none, return the status and the reason of the refusal."""
        refusal = None
        if token and self._of_token[token] >= MOST_OF_TOKEN:
            refusal = 429, f"this token has {MOST_OF_TOKEN} open event streams: close some, or use another token"
        elif address and self._of_address[address] >= MOST_OF_ADDRESS:
            refusal = 429, f"this address has {MOST_OF_ADDRESS} open event streams: close some"
        elif self.count >= MOST_STREAMS:
            refusal = 503, f"the service has {MOST_STREAMS} open event streams, and takes no more: try again later"
        self._add(token, address, 0 if refusal else 1)
        self.refused_count += refusal is not None
        return refusal

    def leave(self, token: str, address: str) -> None:
        """Give a place back."""
        self._add(token, address, -1)

    def _add(self, token: str, address: str, number: int) -> None:
        self.count += number
        for counts, key in (self._of_token, token), (self._of_address, address):
            counts[key] += number
            if not counts[key]:
                del counts[key]


def network_of(address: str) -> str:
    """Return the network of an IPv6 address that one customer gets (/64), or the IPv4 address itself.

    >>> network_of("192.0.2.7"), network_of("2001:db8:1:2:3:4:5:6"), network_of("::ffff:192.0.2.7"), network_of("x")
    ('192.0.2.7', '2001:db8:1:2', '192.0.2.7', '')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return ""
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    return (
        str(parsed.ipv4_mapped)
        if parsed.ipv4_mapped
        else ":".join(f"{int(parsed):032x}"[at : at + 4].lstrip("0") or "0" for at in range(0, 16, 4))
    )


def bounded(patience: float) -> type[BoundedConnection]:
    """Give the protocol of one service."""
    return type("Connection", (BoundedConnection,), {"patience": patience, "waiting": {}})

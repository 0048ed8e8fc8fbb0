"""Listen to a live service as many browsers do at once: most read on, some slowly, and some stand still."""

import asyncio
import select
import socket
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from enum import Enum

BUFFER = 4_096
"""Bytes that the machine keeps for one who reads slowly or not at all, as far as it can be told to keep few."""
SLOWLY = 0.1
"""Seconds between two times in which a slow one reads so many."""


def is_cut(connected: socket.socket) -> bool:
    """Tell whether the other end cut a connection, whatever was not read of it."""
    looking = select.poll()
    looking.register(connected, 0)
    return bool(looking.poll(0))


class Pace(Enum):
    """How a browser reads."""

    ON = "reads on"
    SLOWLY = "reads slowly"
    NOT = "stands still"


class Listener:
    """One browser's stream of events. ``heard`` are the numbers of its events, ``heard_at`` when each came."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.heard: list[int] = []
        self.heard_at: list[float] = []
        self.is_dropped = False

    async def listen(self, port: int, token: str) -> None:
        connected = socket.create_connection(("127.0.0.1", port))
        if self.pace is not Pace.ON:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        connected.setblocking(False)
        asked = f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n"
        loop = asyncio.get_running_loop()
        with connected:
            try:
                await loop.sock_sendall(connected, asked.encode())
                while self.pace is Pace.NOT:
                    # Whoever reads nothing learns in no other way that it was cut.
                    if is_cut(connected):
                        raise ConnectionResetError
                    await asyncio.sleep(SLOWLY)
                rest = b""
                while data := await loop.sock_recv(connected, 1 << 16 if self.pace is Pace.ON else BUFFER):
                    *lines, last = (rest + data).split(b"\n")
                    self._note(lines)
                    # How a line begins is enough, and events are long.
                    rest = last[:100]
                    if self.pace is Pace.SLOWLY:
                        await asyncio.sleep(SLOWLY)
            except ConnectionError:
                pass
            self.is_dropped = True

    def _note(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            if line.startswith(b"id: "):
                self.heard.append(int(line.rpartition(b"-")[2]))
                self.heard_at.append(time.monotonic())


@asynccontextmanager
async def listening(port: int, token: str, counts: dict[Pace, int]) -> AsyncIterator[dict[Pace, list[Listener]]]:
    """Let so many listen meanwhile."""
    listeners = {pace: [Listener(pace) for _ in range(count)] for pace, count in counts.items()}
    tasks = [asyncio.create_task(each.listen(port, token)) for some in listeners.values() for each in some]
    try:
        yield listeners
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

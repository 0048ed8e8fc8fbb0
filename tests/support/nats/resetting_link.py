"""A link to a server where something happens at a chosen moment: so many turns of the event loop after an answer.

Who is on the same loop is in a certain line of its code by then; what a wait does between an answer and its return is
a matter of such turns.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from typing import Self

from shared.tasks import cancel_all

_AT_ONCE = struct.pack("ii", 1, 0)


class ResettingLink:
    """Listens for clients of the server on ``port``; what was not told to be reset goes through."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._plans: list[tuple[bytes, int, Callable[[], object] | None]] = []
        self._open: dict[socket.socket, asyncio.Task[None]] = {}

    async def __aenter__(self) -> Self:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self._accepting = asyncio.ensure_future(self._accept())
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_all([self._accepting])
        await self.drop()
        self._listening.close()

    def reset_next(self, answer: bytes, turns: int) -> None:
        """Reset the next connection ``turns`` turns of the loop after the server's INFO or PONG has gone out."""
        self._plans.append((answer, turns, None))

    def call_next(self, answer: bytes, turns: int, act: Callable[[], object]) -> None:
        """Call ``act`` at such a moment of the next connection, which goes on."""
        self._plans.append((answer, turns, act))

    @property
    def connection_count(self) -> int:
        """Count the connections that are open."""
        return len(self._open)

    @property
    def waits(self) -> bool:
        """Tell whether something is still to come."""
        return bool(self._plans)

    async def drop(self) -> None:
        """Reset all connections that are open."""
        await cancel_all(self._open.values())

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            near, _ = await loop.sock_accept(self._listening)
            near.setblocking(False)
            self._open[near] = asyncio.ensure_future(self._serve(near))

    async def _serve(self, near: socket.socket) -> None:
        far = socket.socket()
        far.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(far, ("127.0.0.1", self._port))
            if self._plans:
                answer, turns, act = self._plans.pop(0)
                await self._until(answer, turns, near, far)
                if act is None:
                    return
                act()
            both_ways = {asyncio.ensure_future(_pump(near, far)), asyncio.ensure_future(_pump(far, near))}
            try:
                await asyncio.wait(both_ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancel_all(both_ways)
        finally:
            del self._open[near]
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            near.close()
            far.close()

    async def _until(self, answer: bytes, turns: int, near: socket.socket, far: socket.socket) -> None:
        await _pass(far, near, b"INFO")
        if answer != b"INFO":
            await _pass(near, far, b"PING")
            await _pass(far, near, answer)
        for _ in range(turns):
            await asyncio.sleep(0)


async def _pass(source: socket.socket, target: socket.socket, last: bytes) -> None:
    """Pass on what comes until ``last`` was in it; the turn of the loop is the same when it has gone."""
    data = b""
    while last not in data:
        data = await asyncio.get_running_loop().sock_recv(source, 1 << 16)
        if not data:
            return
        target.send(data)


async def _pump(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        while data := await loop.sock_recv(source, 1 << 16):
            await loop.sock_sendall(target, data)

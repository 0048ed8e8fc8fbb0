"""Stand between two programs as a network link that can be slow, thin, cut or silent: for demos and tests.

One TCP proxy on 127.0.0.1. ``cut`` closes every connection and refuses new ones, as a dead router does that says so;
``stall`` keeps them open and passes nothing, as a dead router does that says nothing; ``restore`` heals both, and what
a stalled link had taken arrives then. The delay is a pipeline: it holds bytes back, it does not limit how many.
"""

import asyncio
import contextlib
import socket
from collections import deque
from typing import Self, cast

from shared.embedded.server import HeldPort

RECEIVE_BUFFER = 0
"""How many bytes the system takes for a link that does not, 0: as it likes. With few, the sender sees what is taken."""

_SLICE = 16 << 10
_MOST_HELD = 64 << 20


class EmbeddedLink:
    """Forward connections on ``port`` to ``target``; both directions have the same delay and bandwidth.

    ``round_trip`` is in seconds, ``bandwidth`` in bytes per second and direction (0: unlimited); both can be changed
    while connections are open, and hold for bytes that arrive from then on.
    """

    def __init__(
        self, target_port: int, *, target_host: str = "127.0.0.1", round_trip: float = 0.0, bandwidth: int = 0
    ) -> None:
        self.target = (target_host, target_port)
        self.round_trip = round_trip
        self.bandwidth = bandwidth
        self._held = HeldPort("127.0.0.1")
        self.port = self._held.number
        self.passed_bytes = 0
        self.stalled = False
        self.is_cut = True
        self._changing = asyncio.Lock()
        self._server: asyncio.Server | None = None
        self.ends: set[_End] = set()
        self._dialling: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def leaf_url(self) -> str:
        return f"nats-leaf://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        await self.restore()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.cut()

    async def cut(self) -> None:
        """Close every connection and refuse new ones, until restored."""
        async with self._changing:
            self.is_cut = True
            server, self._server = self._server, None
            if server is not None:
                for listener in server.sockets:
                    asyncio.get_running_loop().remove_reader(listener)
            for task in self._dialling:
                task.cancel()
            for end in list(self.ends):
                end.abort()
            self.stalled = False
            # Let the event loop close the sockets, so that whoever asks next is refused. Whoever was accepted in this
            # turn gets a transport in the next, for which asyncio needs the server open.
            try:
                for _ in range(2):
                    await asyncio.sleep(0)
            finally:
                if server is not None:
                    server.close()

    def stall(self) -> None:
        """Accept connections and pass nothing, not even that one was closed, until restored."""
        self.stalled = True
        for end in self.ends:
            end.pipe.hold()

    async def restore(self) -> None:
        """Pass again; a link that was stalled delivers what it held."""
        async with self._changing:
            self.is_cut = False
            if self._server is None:
                loop = asyncio.get_running_loop()
                self._server = await loop.create_server(lambda: _End(self), "127.0.0.1", self.port, reuse_address=True)
        self.stalled = False
        for end in list(self.ends):
            if end.peer is None:
                self.dial(end)
            else:
                end.peer.pipe.pump()
            end.pipe.pump()

    def dial(self, near: "_End") -> None:
        """Connect an accepted connection to the target, or drop it where the target refuses."""
        task = asyncio.get_running_loop().create_task(self._dial(near))
        self._dialling.add(task)
        task.add_done_callback(self._dialling.discard)

    async def _dial(self, near: "_End") -> None:
        if self.stalled or near.peer is not None:
            return
        try:
            _, far = await asyncio.get_running_loop().create_connection(lambda: _End(self, near), *self.target)
        except OSError:
            near.abort()
            return
        if near.transport is None or near.transport.is_closing():
            far.abort()
            return
        near.peer = far
        for end in (near, far):
            end.pipe.pump()


class _End(asyncio.Protocol):
    """One socket of a connection; what arrives here goes through ``pipe`` to the peer's socket."""

    def __init__(self, link: EmbeddedLink, peer: "_End | None" = None) -> None:
        self.link = link
        self.peer = peer
        self.transport: asyncio.Transport | None = None
        self.pipe = _Pipe(self)
        self.write_paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not asyncio.Transport, but behave like it.
        self.transport = cast("asyncio.Transport", transport)
        if RECEIVE_BUFFER:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        if self.link.is_cut:
            # It was accepted in the turn in which the link was cut.
            self.transport.abort()
            return
        self.link.ends.add(self)
        if self.peer is None:
            self.pipe.hold()
            self.link.dial(self)

    def data_received(self, data: bytes) -> None:
        self.pipe.take(data)

    def eof_received(self) -> bool:
        self.pipe.take(b"")
        return True

    def connection_lost(self, _error: Exception | None) -> None:
        self.link.ends.discard(self)
        self.transport = None
        self.pipe.take(b"")
        if self.peer is None:
            self.pipe.stop()
        elif self.pipe.finished:
            self.peer.close()

    def pause_writing(self) -> None:
        self.write_paused = True
        if self.peer is not None:
            self.peer.pipe.pump()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self.peer is not None:
            self.peer.pipe.pump()

    def close(self) -> None:
        """Close once what was written is out."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """Close with a reset, whatever is still held."""
        self.pipe.stop()
        if self.transport is not None:
            self.transport.abort()


class _Pipe:
    """Carry bytes one way: each slice becomes due after the delay and at the pace of the bandwidth. b"" is the end."""

    def __init__(self, source: _End) -> None:
        self._source = source
        self._held: deque[tuple[float, bytes]] = deque()
        self._held_bytes = 0
        self._sent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._ended = False
        self.finished = False

    def take(self, data: bytes) -> None:
        """Accept what the source's socket gave."""
        if self._ended:
            return
        link, now = self._source.link, asyncio.get_running_loop().time()
        self._ended = not data
        step = min(_SLICE, max(1, link.bandwidth // 50)) if link.bandwidth else len(data) or 1
        for start in range(0, len(data) or 1, step):
            part = data[start : start + step]
            self._sent_at = max(now, self._sent_at) + (len(part) / link.bandwidth if link.bandwidth else 0.0)
            self._held.append((self._sent_at + link.round_trip / 2, part))
            self._held_bytes += len(part)
        self.pump()

    def pump(self) -> None:
        """Deliver what is due, come back for the rest, and let the source wait while too much is held."""
        link, sink = self._source.link, self._source.peer
        if link.stalled or sink is None:
            self.hold()
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._held and self._held[0][0] <= now and not sink.write_paused:
            _, data = self._held.popleft()
            self._held_bytes -= len(data)
            link.passed_bytes += len(data)
            self._deliver(data, sink)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held and not sink.write_paused:
            self._timer = loop.call_at(self._held[0][0], self.pump)
        self._read(self._held_bytes < self._room() and not sink.write_paused)

    def _deliver(self, data: bytes, sink: _End) -> None:
        """Write to the sink; the end of one direction leaves the other open, the end of both closes both sockets."""
        self.finished = not data
        if sink.transport is None or sink.transport.is_closing():
            return
        if data:
            sink.transport.write(data)
        elif self._source.transport is None or sink.pipe.finished:
            sink.transport.close()
            self._source.close()
        else:
            # A socket that was reset meanwhile takes no end; its transport notices by itself.
            with contextlib.suppress(OSError):
                sink.transport.write_eof()

    def hold(self) -> None:
        """Pass nothing and read nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._read(False)

    def stop(self) -> None:
        self._ended = True
        self._held.clear()
        self._held_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _room(self) -> int:
        """Bytes that may be under way: a thin link pushes back on its sender, a long one does not."""
        link = self._source.link
        if not link.bandwidth:
            return _MOST_HELD
        return max(_SLICE, int(link.bandwidth * (link.round_trip / 2 + 0.25)))

    def _read(self, wanted: bool) -> None:
        transport = self._source.transport
        if transport is None or transport.is_closing() or wanted == self._reading:
            return
        self._reading = wanted
        if wanted:
            transport.resume_reading()
        else:
            transport.pause_reading()

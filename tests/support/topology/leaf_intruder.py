"""Speak to a hub as a region's servers do, with their key, but without holding to what the hub lets them do."""

import asyncio
import base64
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from aggregator.topology.render.keys import key_of
from tests.support.waiting import until

DEADLINE = 90.0


class LeafIntruder:
    """One leaf connection, by its bare protocol: LMSG, LS+, -ERR. ``denials`` is what the server said no to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.denials: list[str] = []
        self.heard: list[str] = []
        self.pongs = 0

    async def log_in(self, seed: str) -> None:
        """Prove to have the key."""
        info = msgspec.json.decode((await self._reader.readline()).removeprefix(b"INFO "))
        key = key_of(seed)
        signed = base64.urlsafe_b64encode(key.sign(info["nonce"].encode())).decode().rstrip("=")
        login = {"nkey": key.public, "sig": signed, "name": "intruder", "server_id": "INTRUDER", "headers": True}
        await self._send(b"CONNECT " + msgspec.json.encode(login) + b"\r\nPING\r\n")
        while not (line := await self._reader.readline()).startswith(b"PONG"):
            assert line, "the hub has hung up"
            await self._note(line)

    async def publish(self, subject: str, body: bytes = b"{}", reply: str = "") -> None:
        """Send a message into the hub; ``reply`` is where its answer shall go."""
        names = " ".join(filter(None, (subject, reply))).encode()
        await self._send(b"LMSG %s %d\r\n%s\r\n" % (names, len(body), body))

    async def is_let(self, subject: str, body: bytes = b"{}") -> bool:
        """Publish, and tell whether the hub lets it in: to what it does not it says no, and hangs up."""
        pongs = self.pongs
        await self._send(b"LMSG %s %d\r\n%s\r\nPING\r\n" % (subject.encode(), len(body), body))
        await until(lambda: self.denials or self.pongs > pongs, f"the hub says something of {subject}", DEADLINE)
        return not self.denials

    async def control(self, subject: str, status: str, reply: str = "", **headers: str) -> None:
        """Send what servers tell each other beside messages, such as ``100 FlowControl Request``: headers alone."""
        names = " ".join(filter(None, (subject, reply))).encode()
        lines = [f"NATS/1.0 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        block = "".join(f"{line}\r\n" for line in (*lines, "")).encode()
        await self._send(b"HMSG %s %d %d\r\n%s\r\n" % (names, len(block), len(block), block))

    async def deliver(self, deliveries: str, subject: str, sequence: int, body: bytes = b"{}") -> None:
        """Send what the hub copies as the consumer ``muster-archive`` of FLEET would: the subject is in the reply."""
        reply = f"$JS.ACK.FLEET.muster-archive.1.{sequence}.{sequence}.1795335656049379809.0@{subject}"
        await self._send(b"LMSG %s %s %d\r\n%s\r\n" % (deliveries.encode(), reply.encode(), len(body), body))

    async def subscribe(self, subject: str) -> None:
        """Ask for what the hub has on a subject."""
        await self._send(b"LS+ %s\r\n" % subject.encode())

    async def is_denied(self, subject: str) -> None:
        """Publish, and see to it that the hub says no."""
        await self.publish(subject)
        # A server's own domain is mapped away before it speaks.
        quoted = f'"{subject.replace("$JS.hub.API", "$JS.API")}"'
        await until(lambda: any(quoted in denial for denial in self.denials), f"{subject} is denied", DEADLINE)

    async def listen(self) -> None:
        """Note what the hub says, until it hangs up."""
        while line := await self._reader.readline():
            await self._note(line)

    async def _note(self, line: bytes) -> None:
        verb, _, rest = line.decode().strip().partition(" ")
        if verb == "PING":
            await self._send(b"PONG\r\n")
        elif verb == "PONG":
            self.pongs += 1
        elif verb == "-ERR":
            self.denials.append(rest)
        elif verb in ("LMSG", "HMSG"):
            words = rest.split()
            self.heard.append(words[0])
            await self._reader.readexactly(int(words[-1]) + 2)

    async def _send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


async def hung_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection, whatever the other end thinks of it."""
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def intruding(port: int, keys: Path, name: str) -> AsyncIterator[LeafIntruder]:
    """Connect to a hub's leaf port with the seed ``name`` of the directory ``keys``."""
    context = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    intruder = LeafIntruder(reader, writer)
    await intruder.log_in((keys / f"{name}.nk").read_text().strip())
    listening = asyncio.create_task(intruder.listen())
    try:
        yield intruder
    finally:
        listening.cancel()
        await hung_up(writer)

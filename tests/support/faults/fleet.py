"""Senders that live by a seed: they register, fall silent for a while or for good, and come back under their name.

What they publish is repeated under its message id until the site's server has acknowledged it. The stream's contents
are the truth; what was acknowledged must be in it.
"""

import asyncio
import contextlib
import random
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client, Srv
from nats.aio.msg import Msg

from tests.support.faults.stage import COPIED_SUBJECTS, Habits

SENDERS = 100
INTERVAL = 0.6
TICK = 0.05
CLOSE_DEADLINE = 10.0
REPEAT_AFTER = 1.0
LIVES = (1.5, 14.0)
# Too short to be noticed; noticed; long enough to be forgotten.
SILENCES = ((0.8, 2.0), (3.5, 6.5), (9.0, 13.0))
# Every so often half of the senders fall silent at once, and come back at once.
BLACKOUT_EVERY = 25.0
BLACKOUT = (8.0, 13.0)
NAMELESS_ONE_IN = 200
URGENT_ONE_IN = 40
LARGEST_FILLING = 3_000
SUBJECT = "registration.nodes"
# Copying goes one by one where the region takes no batches.
COPIED_ONE_IN = 5
SENDER_HEADER = "Truth-Sender"
"""Who published it, in a message whose body says so too, however brokenly."""
HEADERS = f"NATS/1.0\r\nNats-Msg-Id: %s\r\n{SENDER_HEADER}: %s\r\n\r\n"
_FACTS = {
    "NaN": b"NaN",
    "Infinity": b"-Infinity",
    "lone surrogate": b'"\\udce9"',
    "raw tab": b'"a\tb"',
    "Latin-1 byte": b'"caf\xe9"',
    "invalid escape": b'"C:\\W"',
    "leading zeros": b"007",
    "plus sign": b"+1",
    "comma behind the last element": b"[1,]",
}
_WHOLE: dict[str, Callable[[bytes], bytes]] = {
    "byte-order mark": lambda body: b"\xef\xbb\xbf" + body,
    "trailing NUL": lambda body: body + b"\0",
    "comma behind the last field": lambda body: body[:-1] + b",}",
    "two documents": lambda body: body + b"\n{}",
}
MALFORMATIONS = (*_FACTS, *_WHOLE)


def malformed(body: bytes, way: str) -> bytes:
    """Break a registration's JSON; who sent it can still be read, behind the fault or before it, by the body's size.

    >>> malformed(b'{"sender":"a"}', "NaN")
    b'{"fact":NaN,"sender":"a"}'
    """
    if way in _WHOLE:
        return _WHOLE[way](body)
    fact = b'"fact":' + _FACTS[way]
    return b"{%s,%s" % (fact, body[1:]) if len(body) % 2 == 0 else b"%s,%s}" % (body[:-1], fact)


class Sender:
    """One sender's life."""

    def __init__(self, name: str, draw: random.Random) -> None:
        self.name = name
        self.number = 0
        place = zlib.crc32(name.encode())
        copied = COPIED_SUBJECTS[place // COPIED_ONE_IN % len(COPIED_SUBJECTS)]
        self.subject = copied if place % COPIED_ONE_IN == 0 else SUBJECT
        self._draw = draw
        self._due_at = draw.uniform(0.0, INTERVAL)
        self._silent_at = draw.uniform(*LIVES)
        self._size = draw.randrange(LARGEST_FILLING)

    def says(self, at: float) -> bytes | None:
        """Give what it publishes at ``at`` seconds, None while it has nothing to say."""
        draw = self._draw
        if self._is_in_the_dark(at):
            return None
        if at >= self._silent_at:
            self._due_at = at + draw.uniform(*draw.choice(SILENCES))
            self._silent_at = self._due_at + draw.uniform(*LIVES)
        if at < self._due_at:
            return None
        self._due_at = at + INTERVAL * draw.uniform(0.8, 1.2)
        self.number += 1
        if draw.randrange(NAMELESS_ONE_IN) == 0:
            return msgspec.json.encode({"number": self.number})
        if draw.randrange(10) == 0:
            self._size = draw.randrange(LARGEST_FILLING)
        urgent = draw.randrange(URGENT_ONE_IN) == 0
        return self.body(urgent, self._size)

    def body(self, urgent: bool, size: int) -> bytes:
        """Give a whole registration with a filling of some size."""
        body = {"sender": self.name, "number": self.number, "urgent": urgent, "filling": "x" * size}
        return msgspec.json.encode(body)

    def oversized(self, most: int) -> bytes:
        """Give a registration that is as large as a server takes, its headers included, or as ``most`` says."""
        self.number += 1
        headers = HEADERS % (self.message_id, self.name)
        return self.body(False, most - len(headers) - len(self.body(False, 0)))

    @property
    def message_id(self) -> str:
        """Name the message that it published last."""
        return f"{self.name}-{self.number}"

    @property
    def malforms(self) -> bool:
        """Tell whether it is of those that write broken bodies while some do."""
        return zlib.crc32(self.name.encode()) >> 8 & 1 == 0

    def _is_in_the_dark(self, at: float) -> bool:
        turn, within = divmod(at, BLACKOUT_EVERY)
        starts_at, ends_at = BLACKOUT
        return starts_at <= within < ends_at and (zlib.crc32(self.name.encode()) >> int(turn) % 16) & 1 == 0


class FaultFleet:
    """All senders, on one connection straight to the site's server; ``acknowledged`` are ids that it stored.

    They live ``pace`` times as slowly.
    """

    def __init__(self, client: Client, seed: int, habits: Habits, pace: float) -> None:
        self.acknowledged: set[str] = set()
        self._client = client
        self._habits = habits
        self._pace = pace
        self._senders = [
            Sender(f"node-{number:02}", random.Random(f"sender {seed} {number}")) for number in range(SENDERS)
        ]
        self._waiting: dict[str, tuple[str, bytes, dict[str, str]]] = {}
        self._repeat_at: dict[str, float] = {}
        self._inbox = client.new_inbox()

    async def live(self) -> None:
        """Register until cancelled."""
        await self._client.subscribe(f"{self._inbox}.*", cb=self._take_answer)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        while True:
            for sender in self._senders:
                body = sender.says((loop.time() - began_at) / self._pace)
                if body is not None:
                    await self._say(sender, body)
            while self._habits.oversized:
                subject, less = self._habits.oversized.popleft()
                sender = next(each for each in self._senders if each.subject == subject)
                await self._say(sender, sender.oversized(self._client.max_payload - less))
            await self._repeat()
            await asyncio.sleep(TICK)

    async def _say(self, sender: Sender, body: bytes) -> None:
        headers = {"Nats-Msg-Id": sender.message_id}
        if b'"sender"' in body:
            headers[SENDER_HEADER] = sender.name
            if self._habits.malforms and sender.malforms:
                body = malformed(body, self._habits.malforms)
        await self._publish(sender.message_id, sender.subject, body, headers)

    async def settle(self) -> bool:
        """Repeat what was not acknowledged yet; tell whether everything is."""
        await self._repeat()
        return not self._waiting

    async def _repeat(self) -> None:
        now = asyncio.get_running_loop().time()
        for message_id, at in list(self._repeat_at.items()):
            # An answer that comes while another registration is published takes this one out.
            if at <= now and message_id in self._waiting:
                await self._publish(message_id, *self._waiting[message_id])

    async def _publish(self, message_id: str, subject: str, body: bytes, headers: dict[str, str]) -> None:
        self._waiting[message_id] = (subject, body, headers)
        self._repeat_at[message_id] = asyncio.get_running_loop().time() + REPEAT_AFTER
        with contextlib.suppress(nats.errors.Error):
            await self._client.publish(subject, body, reply=f"{self._inbox}.{message_id}", headers=headers)

    async def _take_answer(self, message: Msg) -> None:
        message_id = message.subject.rpartition(".")[2]
        with contextlib.suppress(msgspec.MsgspecError):
            # A refusal names the stream, too.
            answer = msgspec.json.decode(message.data, type=dict[str, object])
            if answer.get("stream") and "error" not in answer:
                self.acknowledged.add(message_id)
                self._waiting.pop(message_id, None)
                self._repeat_at.pop(message_id, None)


class FleetClient(Client):
    """A client whose server may stand still while it connects."""

    async def _connect_to_server(self, s: Srv) -> None:
        """Drop what a failed attempt left behind: nats-py leaks its socket."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            writer.transport.abort()
        await super()._connect_to_server(s)


@asynccontextmanager
async def connected_fleet(url: str, seed: int, habits: Habits, pace: float = 1.0) -> AsyncIterator[FaultFleet]:
    """Connect the senders; whenever their server is back, so are they, within a moment."""

    async def expected(_error: Exception) -> None:
        """Servers come and go: that is the point."""

    client = FleetClient()
    # Seconds: they are slept, so that parts of one will do.
    soon: Any = 0.05
    await client.connect(url, max_reconnect_attempts=-1, reconnect_time_wait=soon, error_cb=expected)
    try:
        yield FaultFleet(client, seed, habits, pace)
    finally:
        async with asyncio.timeout(CLOSE_DEADLINE):
            await client.close()

"""Hear a stream's senders as a rival's detector would, and log it: ``python -m tests.bench.observer SERVER LOG``.

A process of its own, so that it can be stopped, cut off and killed together with the agent. Each line of the log is an
instant of this machine's clock in microseconds, and the sender that was heard then, "-" for a look at the clock, or
"+" for this process's start. A detector decides by lines alone: one that was stopped sees its clock before what waits.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import msgspec
import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.bench.detectors import BEGAN, LOOKED

STREAM, CONSUMER = "REGISTRATION", "rivals"
LOOK_EVERY = 0.1
PULL_EVERY = 0.5
PULL = b'{"batch":1000,"expires":2000000000}'


class _Registration(msgspec.Struct):
    sender: str = ""


async def observe(server: str, log: IO[bytes]) -> None:
    """Log until killed."""

    def note(what: str) -> None:
        # Unbuffered: a kill takes nothing along that was heard.
        log.write(b"%d %s\n" % (time.time_ns() // 1_000, what.encode()))

    async def hear(message: Msg) -> None:
        if not message.reply:
            return
        if sender_id := decoder.decode(message.data).sender:
            note(sender_id)
        await message.ack()

    async def expected(_error: Exception) -> None:
        """Servers and links come and go: that is the point."""

    note(BEGAN)
    decoder = msgspec.json.Decoder(_Registration)
    client = Client()
    looking = asyncio.create_task(_look(note))
    while not client.is_connected:
        try:
            # Seconds: they are slept, so that parts of one will do.
            soon: Any = 0.1
            await client.connect(
                server, max_reconnect_attempts=-1, reconnect_time_wait=soon, ping_interval=1, error_cb=expected
            )
        except (nats.errors.Error, OSError):
            await asyncio.sleep(LOOK_EVERY)
            client = Client()
    inbox = client.new_inbox()
    await client.subscribe(inbox, cb=hear)
    while not looking.done():
        with contextlib.suppress(nats.errors.Error):
            await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", PULL, reply=inbox)
        await asyncio.sleep(PULL_EVERY)


async def _look(note: Callable[[str], None]) -> None:
    while True:
        note(LOOKED)
        await asyncio.sleep(LOOK_EVERY)


if __name__ == "__main__":
    with Path(sys.argv[2]).open("ab", buffering=0) as file:
        asyncio.run(observe(sys.argv[1], file))

"""The senders of the fault schedule repeat a registration until the site's server has acknowledged it."""

import asyncio
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from tests.support.faults.fleet import FaultFleet
from tests.support.faults.stage import Habits
from tests.support.nats.one_server import server_in
from tests.support.waiting import until


class FullClient(Client):
    """A client with a full send buffer: publishing waits until the server has caught up."""

    caught_up: asyncio.Event

    async def publish(self, subject: str, payload: bytes = b"", reply: str = "", headers: Any = None) -> None:
        await super().publish(subject, payload, reply, headers)
        await self.caught_up.wait()


async def test_a_registration_that_is_acknowledged_while_others_are_repeated_is_not_repeated(tmp_path: Path) -> None:
    client = FullClient()
    client.caught_up = asyncio.Event()
    client.caught_up.set()
    async with server_in(tmp_path) as server:
        await client.connect(server.url)
        fleet = FaultFleet(client, 1, Habits(), 1.0)
        senders = fleet._senders[:2]
        await client.subscribe(f"{fleet._inbox}.*", cb=fleet._take_answer)
        for sender in senders:
            # No stream takes them yet.
            await fleet._say(sender, sender.body(False, 0))
        await client.jetstream().add_stream(name="SITE", subjects=list({sender.subject for sender in senders}))
        fleet._repeat_at = dict.fromkeys(fleet._repeat_at, 0.0)
        client.caught_up.clear()
        # Each of the two repeats one registration, and has yet to come to the other's when both are acknowledged.
        repeats = [asyncio.create_task(fleet.settle()) for _ in senders]
        await until(lambda: len(fleet.acknowledged) == len(senders), "both are acknowledged")
        client.caught_up.set()
        assert await asyncio.gather(*repeats) == [True, True]
        await client.close()

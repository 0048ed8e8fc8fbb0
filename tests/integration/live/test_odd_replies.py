"""A reply that cannot be read is a failure of that link: it is reported in one line, and tried again."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.msg import Msg

from aggregator.archive.reader import ReadFailed, StreamReader
from aggregator.live.feed import Feed
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.port import SourceUnavailable
from shared.instants import MINUTE
from shared.nats.connection import ConnectionSettings, connect
from tests.integration.live.test_serve import now
from tests.support.lakehouse.hub import DEADLINE, Block, Hub
from tests.support.waiting import until

DOMAIN = "odd"
ODD: dict[str, tuple[tuple[str, ...], object]] = {
    "created": (("created",), "yesterday"),
    "time now": (("ts",), "2026-13-45T00:00:00Z"),
    "last sequence": (("state", "last_seq"), 1 << 60),
    "first sequence": (("state", "first_seq"), -1),
    "first instant": (("state", "first_ts"), 5),
}
"""Fields of STREAM.INFO, with values that are none."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    with Hub(tmp_path / "hub") as running_hub:
        yield running_hub


def changed(reply: bytes, path: tuple[str, ...], value: object) -> bytes:
    """Return a reply with another value of the field at ``path``."""
    whole: dict[str, Any] = msgspec.json.decode(reply)
    *parents, name = path
    part = whole
    for parent in parents:
        part = part[parent]
    part[name] = value
    return msgspec.json.encode(whole)


@asynccontextmanager
async def answering(hub: Hub, change: Callable[[str, bytes], bytes]) -> AsyncIterator[ConnectionSettings]:
    """Answer JetStream's API of another domain as the hub answers its own, with each reply about a stream changed."""
    async with await connect(hub.connection, name="odd", deadline=DEADLINE) as client:

        async def answer(message: Msg) -> None:
            subject = message.subject.replace(f"$JS.{DOMAIN}.", "$JS.")
            if ".STREAM." not in subject:
                await client.publish(subject, message.data, reply=message.reply)
                return
            reply = await client.request(subject, message.data, timeout=DEADLINE)
            await message.respond(change(subject, reply.data))

        await client.subscribe(f"$JS.{DOMAIN}.API.>", cb=answer)
        await client.flush()
        yield msgspec.structs.replace(hub.connection, domain=DOMAIN)


@pytest.mark.parametrize("name", ODD)
async def test_stream_with_an_odd_description_is_unavailable_to_every_reader(hub: Hub, name: str) -> None:
    path, value = ODD[name]
    async with answering(hub, lambda _, reply: changed(reply, path, value)) as odd:
        if path != ("ts",):
            async with StreamReader(odd, deadline=DEADLINE) as reader:
                with pytest.raises(ReadFailed, match=path[-1]):
                    await reader.state("ARCHIVE")
        async with await connect(odd, name="agent", deadline=DEADLINE) as client:
            with pytest.raises(SourceUnavailable, match=path[-1]):
                await SourceApi(client, SourceAddress("ARCHIVE", "agent", DOMAIN)).facts()


@asynccontextmanager
async def reading_feed(odd: ConnectionSettings, tmp_path: Path) -> AsyncIterator[Feed]:
    """Read the archive, and raise the exception that ends it."""
    feed = Feed(odd, "ARCHIVE", tmp_path / "live.db")
    try:
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(feed.run())
            yield feed
            reading.cancel()
    finally:
        feed.close()


@pytest.mark.parametrize("name", ["created", "time now", "last sequence", "message"])
async def test_feed_reports_an_odd_reply_and_reads_once_it_is_right(hub: Hub, tmp_path: Path, name: str) -> None:
    await asyncio.to_thread(hub.publish, [Block("eu-west", "dub1").new("web1", now() - MINUTE)])
    async with reading_feed(hub.connection, tmp_path) as feed:
        await until(lambda: feed.is_ready and feed.fleet.sequence == 1, "read before", DEADLINE)
    path, value = ODD.get(name, (("message", "time"), "in May"))
    is_odd = True

    def change(subject: str, reply: bytes) -> bytes:
        is_wanted = ("MSG.GET" in subject) == (name == "message")
        return changed(reply, path, value) if is_odd and is_wanted else reply

    async with answering(hub, change) as odd, reading_feed(odd, tmp_path) as feed:
        await until(lambda: path[-1] in feed.wrong, "the odd field is reported", DEADLINE)
        is_odd = False
        await until(lambda: feed.is_ready and not feed.wrong, "the archive is read", DEADLINE)

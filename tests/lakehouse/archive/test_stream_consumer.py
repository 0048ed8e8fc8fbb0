"""A real server's consumer is asked a batch at a time: each answer is of what was asked, and ends with it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from aggregator.archive import consumer as stream_consumer
from aggregator.archive.consumer import LOST, NOTHING_LEFT, Messages, StreamConsumer
from shared.nats.connection import api_prefix, connect
from shared.nats.dispatch import Frame
from tests.support.lakehouse.hub import ARCHIVE, DEADLINE, Hub, Message

SUBJECT = "fleet.eu-west.dub1.nodes.watermark"


@asynccontextmanager
async def consumer_of_nine(directory: Path) -> AsyncIterator[StreamConsumer]:
    """Give a consumer of a stream that holds the messages 1 to 9."""
    hub = Hub(directory)
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(SUBJECT, b"%d" % number) for number in range(1, 10)])
        client = await connect(hub.connection, name="test", deadline=DEADLINE)
        async with client, StreamConsumer(client, api_prefix(), ARCHIVE, deadline=DEADLINE) as consumer:
            yield consumer
    finally:
        await asyncio.to_thread(hub.stop)


async def fetched(consumer: StreamConsumer, sequence: int, count: int) -> tuple[list[bytes], str]:
    messages, wrong = await consumer.fetch(sequence, count)
    return list(messages.payloads) if messages else [], wrong


async def test_what_is_said_of_a_batch_that_is_over_does_not_end_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes, held = StreamConsumer._on_frames, list[Frame]()

    def late(consumer: StreamConsumer, frames: Sequence[Frame]) -> None:
        """Hold back what the server says itself until the next messages come."""
        messages = [frame for frame in frames if frame[1]]
        if messages and held:
            takes(consumer, held)
        if messages:
            takes(consumer, messages)
        held.extend(frame for frame in frames if not frame[1])

    monkeypatch.setattr(StreamConsumer, "_on_frames", late)
    async with consumer_of_nine(tmp_path) as consumer:
        assert await fetched(consumer, 1, 4) == ([b"1", b"2", b"3", b"4"], "")
        assert await fetched(consumer, 5, 4) == ([b"5", b"6", b"7", b"8"], "")
    assert [header[:12] for _, _, header, _ in held[:1]] == [b"NATS/1.0 409"]


async def test_a_batch_that_fills_its_bytes_ends_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with consumer_of_nine(tmp_path) as consumer:
        assert await fetched(consumer, 1, 3) == ([b"1", b"2", b"3"], "")
        size = sum(len(SUBJECT) + len(reply) + len(b"1") for reply in consumer._replies)
        monkeypatch.setattr(stream_consumer, "BATCH_BYTES", size)
        assert await fetched(consumer, 4, 6) == ([b"4", b"5", b"6"], "")


async def test_what_comes_from_before_is_not_taken(tmp_path: Path) -> None:
    async with consumer_of_nine(tmp_path) as consumer:
        assert await fetched(consumer, 1, 2) == ([b"1", b"2"], "")
        assert await fetched(consumer, 7, 2) == ([], LOST)
        assert await fetched(consumer, 7, 2) == ([b"7", b"8"], "")


async def test_a_new_consumer_that_nobody_knows_yet_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks, answers = StreamConsumer._asked, list[str]()

    async def asks_too_early(consumer: StreamConsumer, count: int, max_bytes: int) -> tuple[Messages | None, str]:
        known = consumer._name
        consumer._name = known if answers else "unknown"
        messages, wrong = await asks(consumer, count, max_bytes)
        consumer._name = known
        answers.append(wrong)
        return messages, wrong

    monkeypatch.setattr(StreamConsumer, "_asked", asks_too_early)
    async with consumer_of_nine(tmp_path) as consumer:
        assert await fetched(consumer, 1, 2) == ([b"1", b"2"], "")
    assert answers == ["503 nobody answers", ""]


async def test_what_is_wanted_comes_whether_the_server_chooses_or_all_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_consumer, "CHOSEN_MESSAGES", 4)
    monkeypatch.setattr(stream_consumer, "BATCH_MESSAGES", 8)
    wanted = ("fleet.eu-west.*.nodes.watermark", "fleet.eu-west.*.nodes.advisory.*")
    subjects = {
        "w": SUBJECT,
        "a": "fleet.eu-west.ber1.nodes.advisory.new",
        "r": "fleet.eu-west.dub1.nodes.registration",
    }
    kinds = "wa" * 15 + "r" * 20 + "wrrrrrrrrr" * 3 + "aw" * 15 + "ra" * 10 + "r" * 9
    hub = Hub(tmp_path)
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(subjects[kind], b"1") for kind in kinds])
        client = await connect(hub.connection, name="test", deadline=DEADLINE)
        async with client, StreamConsumer(client, api_prefix(), ARCHIVE, DEADLINE, wanted) as consumer:
            found, chosen_by_server, following, wrong = list[int](), list[bool](), 1, ""
            while wrong != NOTHING_LEFT:
                messages, wrong = await consumer.fetch(following, 1_000)
                chosen_by_server.append(consumer._server_chooses)
                if messages is not None:
                    found += messages.sequences.tolist()
                    following = found[-1] + 1
    finally:
        await asyncio.to_thread(hub.stop)
    assert found == [place for place, kind in enumerate(kinds, start=1) if kind != "r"]
    turns = [now for before, now in pairwise([True, *chosen_by_server]) if now != before]
    assert turns[:3] == [False, True, False]
    assert chosen_by_server[-1]


async def test_what_is_large_and_not_wanted_is_left_to_the_server_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_consumer, "CHOSEN_MESSAGES", 4)
    wanted = (SUBJECT, "fleet.eu-west.*.nodes.advisory.*")
    others = Message("fleet.eu-west.dub1.nodes.registration", b"1" * 1_000)
    hub = Hub(tmp_path)
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(SUBJECT, b"1"), Message(SUBJECT, b"1"), others] * 10)
        client = await connect(hub.connection, name="test", deadline=DEADLINE)
        async with client, StreamConsumer(client, api_prefix(), ARCHIVE, DEADLINE, wanted) as consumer:
            chosen_by_server, following = list[bool](), 1
            for _ in range(4):
                messages, _ = await consumer.fetch(following, 4)
                assert messages is not None
                following = int(messages.sequences[-1]) + 1
                chosen_by_server.append(consumer._server_chooses)
    finally:
        await asyncio.to_thread(hub.stop)
    assert chosen_by_server == [False, True, True, True]

"""Messages are read whole from a connection, however their bytes arrive, and go straight to who waits for them."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain

import pytest
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError

from shared.nats.dispatch import DirectClient, Frame

DIRECT, QUEUED, FRAMES = b"1", 2, b"3"

Taken = tuple[str, str, bytes, dict[str, str] | None]
STREAM = (
    b"MSG a.b 1 reply.1 5\r\nhello\r\n"
    b"PONG\r\n"
    b"MSG a.c 1 0\r\n\r\n"
    b"+OK\r\n"
    b"MSG q 2 4\r\n\r\n\r\n\r\n"
    b"HMSG a.d 1 reply.2 23 27\r\nNATS/1.0\r\nname: one\r\n\r\nMSG \r\n"
    b"HMSG a.e 1 16 16\r\nNATS/1.0 404\r\n\r\n\r\n"
    b"MSG b.\xff 3 reply.\xff 3\r\none\r\n"
    b"MSG b 3 0\r\n\r\n"
    b"HMSG b 3 reply 12 13\r\nNATS/1.0\r\n\r\n2\r\n"
    b"HMSG b 3 16 16\r\nNATS/1.0 404\r\n\r\n\r\n"
    b"MSG a.\xff 1 2\r\n{}\r\n"
    b"MSG a.\x0b1\x0b$JS.ACK.\x0c\r 1 reply.\xff 2\r\n{}\r\n"
)
DIRECTLY = [
    ("a.b", "reply.1", b"hello", None),
    ("a.c", "", b"", None),
    ("a.d", "reply.2", b"MSG ", {"name": "one"}),
    ("a.e", "", b"", {"Status": "404"}),
    ("a.\\xff", "", b"{}", None),
    ("a.\x0b1\x0b$JS.ACK.\x0c\r", "reply.\\xff", b"{}", None),
]
AS_FRAMES = [
    (b"b.\xff", b"reply.\xff", b"", b"one"),
    (b"b", b"", b"", b""),
    (b"b", b"reply", b"NATS/1.0\r\n\r\n", b"2"),
    (b"b", b"", b"NATS/1.0 404\r\n\r\n", b""),
]


class Connection:
    """A client without a server: bytes come in, what it makes of them can be looked at."""

    def __init__(self) -> None:
        self.client = DirectClient()
        self.direct: list[Taken] = []
        self.queued = Subscription(self.client, QUEUED, "q")
        self.client._subs[QUEUED] = self.queued
        self.client.receivers[DIRECT] = lambda *message: self.direct.append(message)
        self.frames: list[Sequence[Frame]] = []
        self.client.frame_receivers[FRAMES] = self.frames.append

    async def arrives(self, data: bytes) -> None:
        await self.client._ps.parse(data)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 20, len(STREAM)])
async def test_messages_are_the_same_however_their_bytes_arrive(size: int) -> None:
    connection = Connection()
    for first in range(0, len(STREAM), size):
        await connection.arrives(STREAM[first : first + size])
    assert connection.direct == DIRECTLY
    assert list(chain.from_iterable(connection.frames)) == AS_FRAMES
    assert size < len(STREAM) or len(connection.frames) == 1
    assert [message.data for message in [await connection.queued.next_msg(1)]] == [b"\r\n\r\n"]


async def test_what_an_old_connection_left_behind_is_not_read_on_a_new_one() -> None:
    connection = Connection()
    await connection.arrives(b"MSG a.b 1 5\r\nhel")
    connection.client._ps.reset()
    await connection.arrives(b"MSG a.c 1 3\r\nnew\r\n")
    assert connection.direct == [("a.c", "", b"new", None)]


async def test_nothing_more_is_taken_from_a_connection_that_a_message_ended() -> None:
    connection = Connection()

    def end(*message: *Taken) -> None:
        connection.direct.append(message)
        connection.client._ps.reset()

    connection.client.receivers[DIRECT] = end
    await connection.arrives(b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\n")
    await connection.arrives(b"MSG a 1 1\r\n3\r\n")
    assert [data for _, _, data, _ in connection.direct] == [b"1", b"3"]


@pytest.mark.parametrize("behind", [b"NONSENSE\r\n", b"MSG a 1 1\r\n1\r\n"], ids=["no protocol", "an end"])
async def test_frames_that_came_whole_are_handed_over_whatever_is_behind_them(behind: bytes) -> None:
    connection = Connection()
    connection.client.receivers[DIRECT] = lambda *_message: connection.client._ps.reset()
    with suppress(ProtocolError):
        await connection.arrives(b"MSG b 3 1\r\n1\r\n" + behind + b"MSG b 3 1\r\n2\r\n")
    assert connection.frames == [[(b"b", b"", b"", b"1")]]


async def test_whoever_has_unsubscribed_meanwhile_gets_nothing() -> None:
    connection = Connection()
    connection.client.receivers[DIRECT] = lambda *_message: connection.client.frame_receivers.clear()
    await connection.arrives(b"MSG b 3 1\r\n1\r\nMSG a 1 1\r\n1\r\n")
    assert connection.frames == []


@pytest.mark.parametrize("line", [b"MSG a 1\r\n", b"MSG a one 1\r\n1\r\n", b"HMSG a 1 5\r\n", b"NONSENSE\r\n"])
async def test_what_is_no_protocol_ends_the_connection(line: bytes) -> None:
    with pytest.raises(ProtocolError):
        await Connection().arrives(line)


def test_one_loop_serves_many_messages_without_a_task() -> None:
    async def count_tasks() -> int:
        connection = Connection()
        await connection.arrives(b"MSG a 1 1\r\n1\r\n" * 100)
        assert len(connection.direct) == 100
        return len(asyncio.all_tasks())

    assert asyncio.run(count_tasks()) == 1

"""The link of demos and tests is as slow, thin, cut or silent as it is told to be."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator

import pytest

from shared.embedded.link import EmbeddedLink
from tests.support.waiting import until

DEADLINE = 60.0

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1 << 18):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


@pytest.fixture
async def echo_port() -> AsyncIterator[int]:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def link(echo_port: int) -> AsyncIterator[EmbeddedLink]:
    async with EmbeddedLink(echo_port) as link:
        yield link


async def opened(link: EmbeddedLink) -> Streams:
    return await asyncio.open_connection("127.0.0.1", link.port)


async def answer(streams: Streams, question: bytes, deadline: float = DEADLINE) -> bytes:
    reader, writer = streams
    writer.write(question)
    async with asyncio.timeout(deadline):
        return await reader.readexactly(len(question))


async def closed(streams: Streams) -> None:
    streams[1].close()
    with contextlib.suppress(ConnectionError):
        await streams[1].wait_closed()


@pytest.mark.parametrize("turns", range(8))
async def test_cut_closes_what_was_accepted_in_whichever_turn_of_the_loop(link: EmbeddedLink, turns: int) -> None:
    with socket.create_connection(("127.0.0.1", link.port)) as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        await link.cut()

        def is_closed() -> bool:
            try:
                return client.recv(1) == b""
            except BlockingIOError:
                return False
            except ConnectionError:
                return True

        await until(is_closed, "it is closed", DEADLINE)


async def test_bytes_pass_unchanged_in_both_directions(link: EmbeddedLink) -> None:
    streams = await opened(link)
    sent = bytes(range(256)) * 20_000
    assert await answer(streams, sent) == sent
    assert link.passed_bytes == 2 * len(sent)
    await closed(streams)


async def test_the_end_of_a_connection_passes_after_its_bytes(link: EmbeddedLink) -> None:
    link.round_trip = 0.1
    reader, writer = await opened(link)
    writer.write(b"last words")
    writer.write_eof()
    async with asyncio.timeout(DEADLINE):
        assert await reader.read() == b"last words"
    await closed((reader, writer))


async def test_a_cut_link_resets_connections_and_refuses_new_ones(link: EmbeddedLink) -> None:
    streams = await opened(link)
    assert await answer(streams, b"hello") == b"hello"
    await link.cut()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await answer(streams, b"hello")
    with pytest.raises(ConnectionRefusedError):
        await opened(link)
    with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", link.port))
    await closed(streams)

    await link.restore()
    streams = await opened(link)
    assert await answer(streams, b"again") == b"again"
    await closed(streams)


async def test_a_stalled_link_accepts_and_says_nothing_then_delivers_what_it_held(link: EmbeddedLink) -> None:
    before = await opened(link)
    assert await answer(before, b"hello") == b"hello"
    link.stall()
    during = await opened(link)
    for streams in (before, during):
        with pytest.raises(TimeoutError):
            await answer(streams, b"anybody there?", deadline=0.3)
    await link.restore()
    for streams in (before, during):
        async with asyncio.timeout(DEADLINE):
            assert await streams[0].readexactly(14) == b"anybody there?"
        await closed(streams)


async def test_a_connection_closed_during_a_stall_is_seen_to_end_after_it(echo_port: int) -> None:
    seen: list[bytes] = []
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read())
        ended.set()
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with EmbeddedLink(server.sockets[0].getsockname()[1]) as link:
        streams = await opened(link)
        streams[1].write(b"before ")
        await until(lambda: link.passed_bytes == 7, "the first bytes pass")
        link.stall()
        streams[1].write(b"during")
        await closed(streams)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended.wait()), 0.3)
        await link.restore()
        await asyncio.wait_for(ended.wait(), DEADLINE)
        assert seen == [b"before during"]
    server.close()


async def test_the_delay_is_a_round_trip_and_does_not_limit_throughput(link: EmbeddedLink) -> None:
    link.round_trip = 0.2
    streams = await opened(link)
    started_at = time.monotonic()
    assert await answer(streams, b"ping") == b"ping"
    assert time.monotonic() - started_at >= 0.2

    sent = bytes(1 << 20) * 16
    started_at = time.monotonic()
    reader, writer = streams
    writer.write(sent)
    async with asyncio.timeout(40):
        assert await reader.readexactly(len(sent)) == sent
    # A link that waited for each 64 KiB to arrive would take 256 round trips, which is 51 s.
    assert time.monotonic() - started_at < 40
    await closed(streams)


async def test_the_bandwidth_limits_and_pushes_back(link: EmbeddedLink) -> None:
    link.bandwidth = 1_000_000
    streams = await opened(link)
    started_at = time.monotonic()
    sent = bytes(500_000)
    assert await answer(streams, sent) == sent
    assert time.monotonic() - started_at >= 0.5
    await closed(streams)


async def test_a_target_that_refuses_ends_the_connection(echo_port: int) -> None:
    async with EmbeddedLink(1) as link:
        streams = await opened(link)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await answer(streams, b"hello")
        await closed(streams)

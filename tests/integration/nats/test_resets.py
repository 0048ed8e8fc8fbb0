"""A connection that is reset or given up while it is being opened, at whatever moment, is opened again or ends."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import nats.errors
import pytest
import uvloop
from nats.aio.client import Client

from shared.nats import client as nats_client
from shared.nats import connection
from shared.nats.client import EdgeClient
from shared.nats.connection import ConnectionSettings, LinkEvent, LinkState, TlsSettings, connect
from shared.settings import FilePath
from tests.support.nats.certificates import Authority
from tests.support.nats.one_server import server_in
from tests.support.nats.resetting_link import ResettingLink
from tests.support.waiting import until

TURNS = range(12)
"""Of the loop, after an answer: waits for one come back after three or four."""

SOON = 30.0

Claim = Callable[[ResettingLink, int], Awaitable[None]]

TLS = "tls {{ cert_file: '{cert}', key_file: '{key}' }}"


@pytest.fixture(autouse=True)
def _try_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nats_client, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(connection, "_PAUSE_BETWEEN_FIRST_ATTEMPTS", 0.01)
    # A try that hangs until its own deadline is none that was noticed to have failed.
    monkeypatch.setattr(connection, "ATTEMPT_DEADLINE", 3 * SOON)


def at_every_turn(directory: Path, claim: Claim, extra_config: str = "", turns_each: Iterable[int] = TURNS) -> None:
    """Let it hold on uvloop, which the agent runs on, and let nothing be logged as an error of the program."""
    errors: list[dict[str, Any]] = []

    async def play() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, error: errors.append(error))
        async with server_in(directory, extra_config) as server, ResettingLink(server.port) as link:
            for turns in turns_each:
                await claim(link, turns)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(play())
    assert errors == []


def tls_of(directory: Path) -> tuple[str, TlsSettings]:
    authority = Authority(directory, "authority")
    issued = authority.issue("127.0.0.1")
    return TLS.format(cert=issued.cert, key=issued.key), TlsSettings(ca=FilePath(authority.ca))


async def opened(link: ResettingLink, tls: TlsSettings | None = None) -> EdgeClient:
    opening = connect(ConnectionSettings(servers=(link.address,), tls=tls), name="test", deadline=3 * SOON)
    return await asyncio.wait_for(opening, SOON)


async def comes_back(link: ResettingLink, turns: int, answer: bytes, tls: TlsSettings | None = None) -> None:
    client = await opened(link, tls)
    heard = await client.subscribe("a")
    await client.flush()
    link.reset_next(answer, turns)
    await link.drop()
    what = f"it is back after a reset {turns} turns after {answer!r}"
    await until(lambda: not link.waits and client.is_connected, what, deadline=SOON)
    await until(lambda: answers(client), what, deadline=SOON)
    await client.publish("a", b"there")
    assert (await heard.next_msg(timeout=SOON)).data == b"there"
    pings = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == "_ping_interval"]
    assert pings == [client._ping_interval_task]
    await client.close()


async def answers(client: EdgeClient) -> bool:
    try:
        await client.flush(timeout=1)
    except (OSError, nats.errors.Error):
        return False
    return client.is_connected


@pytest.mark.parametrize("answer", [b"INFO", b"PONG"])
def test_a_reset_at_any_moment_of_coming_back_is_followed_by_another_try(tmp_path: Path, answer: bytes) -> None:
    at_every_turn(tmp_path, lambda link, turns: comes_back(link, turns, answer))


def test_a_reset_where_encryption_begins_is_followed_by_another_try_at_once(tmp_path: Path) -> None:
    config, tls = tls_of(tmp_path)
    at_every_turn(tmp_path, lambda link, turns: comes_back(link, turns, b"INFO", tls), config)


@pytest.mark.parametrize("answer", [b"INFO", b"PONG"])
def test_a_reset_at_any_moment_of_the_first_try_is_followed_by_another(tmp_path: Path, answer: bytes) -> None:
    async def opens(link: ResettingLink, turns: int) -> None:
        link.reset_next(answer, turns)
        client = await opened(link)
        await until(lambda: answers(client), "it is open", deadline=SOON)
        await client.close()

    at_every_turn(tmp_path, opens)


class HalfMessageLink(ResettingLink):
    """Sends half a message behind the answer, then nothing until the client has gone."""

    async def _until(self, answer: bytes, turns: int, near: socket.socket, far: socket.socket) -> None:
        await super()._until(answer, turns, near, far)
        near.send(b"MSG a 1 9\r\nhalf")
        while await asyncio.get_running_loop().sock_recv(near, 1 << 16):
            pass


async def test_half_a_message_that_came_in_a_failed_try_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Client.flush, "__defaults__", (0.5,))
    async with server_in(tmp_path) as server, HalfMessageLink(server.port) as link:
        client = await opened(link)
        heard = await client.subscribe("a")
        await client.flush(timeout=10)
        link.reset_next(b"PONG", 0)
        await link.drop()
        await until(lambda: not link.waits and client.stats["reconnects"] > 1, "it is back at the second try", SOON)
        await until(lambda: answers(client), "the server answers", SOON)
        await client.publish("a", b"there")
        assert (await heard.next_msg(timeout=SOON)).data == b"there"
        await client.close()


@pytest.mark.parametrize("answer", [b"INFO", b"PONG"])
def test_a_first_try_that_is_given_up_at_any_moment_leaves_nobody_who_tries_on(tmp_path: Path, answer: bytes) -> None:
    by_server: list[LinkState] = []

    async def ends(link: ResettingLink, turns: int) -> None:
        by_server.clear()
        settings = ConnectionSettings(servers=(link.address,))
        opening = asyncio.ensure_future(connect(settings, name="test", deadline=3 * SOON, on_state=by_server.append))
        link.call_next(answer, turns, opening.cancel)
        client = None
        with contextlib.suppress(asyncio.CancelledError):
            # Open before it could be given up, it has an owner.
            client = await opening
        assert [state.event for state in by_server] == ([LinkEvent.CONNECTED] if client else [])
        if client is not None:
            await client.close()
        await until(lambda: not link.connection_count and not tries(), f"it ended {turns} turns after {answer!r}", SOON)

    at_every_turn(tmp_path, ends)


@pytest.mark.parametrize("answer", [b"INFO", b"PONG"])
def test_a_client_that_is_closed_at_any_moment_of_coming_back_leaves_nothing(tmp_path: Path, answer: bytes) -> None:
    async def ends(link: ResettingLink, turns: int) -> None:
        client = await opened(link)
        closing: list[asyncio.Task[None]] = []
        link.call_next(answer, turns, lambda: closing.append(asyncio.ensure_future(client.close())))
        await link.drop()
        await until(lambda: closing, "it is closed while it comes back", SOON)
        await closing[0]
        await until(lambda: not link.connection_count and not works(), f"it ended {turns} turns after {answer!r}", SOON)

    at_every_turn(tmp_path, ends)


def tries() -> list[asyncio.Task[Any]]:
    """Give the tasks in which a client of nats-py opens a connection or opens it again."""
    return _named("connect", "_attempt_reconnect")


def works() -> list[asyncio.Task[Any]]:
    """Give all tasks of clients."""
    return _named("connect", "_attempt_reconnect", "_read_loop", "_flusher", "_ping_interval")


def _named(*names: str) -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") in names]


@pytest.mark.parametrize("writes", ["a ping", "a publish"])
def test_whatever_is_written_to_a_lost_connection_brings_on_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: str
) -> None:
    monkeypatch.setattr(connection, "PING_INTERVAL", 0.1 if writes == "a ping" else 600)

    async def comes_back_without_its_reader(link: ResettingLink, _turns: int) -> None:
        client = await opened(link)
        assert client._reading_task is not None
        # Who reads is the first to notice, as a rule.
        client._reading_task.cancel()
        await asyncio.wait({client._reading_task})
        await link.drop()
        if writes == "a publish":
            await until(lambda: lost(client), "the connection is lost")
            await client.publish("a", b"")
        await until(lambda: client.stats["reconnects"] and client.is_connected, "it is back", deadline=SOON)
        await client.flush()
        await client.close()

    at_every_turn(tmp_path, comes_back_without_its_reader, turns_each=[0])


def lost(client: EdgeClient) -> bool:
    closing: bool = vars(client._transport)["_io_writer"].transport.is_closing()
    return closing

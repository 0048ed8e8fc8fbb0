"""An open connection comes back from everything, tells of every change, and never hangs."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from urllib.parse import urlparse

import pytest
import uvloop
from nats.aio.client import Client, Server

from shared.embedded.link import EmbeddedLink
from shared.nats import connection
from shared.nats.connection import AuthSettings, ConnectionSettings, LinkEvent, LinkState, connect, request_json
from tests.support.nats.one_server import server_in, settings_for, written
from tests.support.waiting import until


async def publish(client: Client, subject: str, payload: bytes, *, count: int, reply: str = "") -> None:
    for _ in range(count):
        await client.publish(subject, payload, reply=reply)


async def test_every_change_of_a_link_is_told(tmp_path: Path) -> None:
    by_server: list[LinkState] = []

    def events() -> list[LinkEvent]:
        return [state.event for state in by_server]

    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        here = link.url.removeprefix("nats://")
        client = await connect(
            ConnectionSettings(servers=(link.url,)), name="test", deadline=60, on_state=by_server.append
        )
        await link.cut()
        await until(lambda: LinkEvent.RETRY_FAILED in events(), "a retry fails")
        await link.restore()
        await until(lambda: LinkEvent.RECONNECTED in events(), "the client is back")
        await client.flush()
        await client.close()

    assert events()[:2] == [LinkEvent.CONNECTED, LinkEvent.DISCONNECTED]
    assert LinkState(LinkEvent.RETRY_FAILED, here, "connection refused, nothing listens there") in by_server
    assert events()[-2:] == [LinkEvent.RECONNECTED, LinkEvent.CLOSED]


async def test_a_connection_is_established_when_its_return_has_been_told(tmp_path: Path) -> None:
    by_server: list[LinkState] = []

    def is_told() -> bool:
        return by_server[-1].event is LinkEvent.RECONNECTED

    async with server_in(tmp_path) as server, EmbeddedLink(server.port, round_trip=3.0) as link:
        client = await connect(
            ConnectionSettings(servers=(link.url,)), name="test", deadline=30, on_state=by_server.append
        )
        seen = [client.is_established]
        await link.cut()
        await until(lambda: not client.is_connected, "the cut is noticed")
        seen.append(client.is_established)
        await link.restore()
        await until(lambda: client.is_connected, "nats-py calls it connected")
        seen += [client.is_established, is_told()]
        await until(lambda: client.is_established, "the connection is established")
        seen.append(is_told())
        await client.close()
    assert seen == [True, False, False, False, True]


async def test_the_wait_before_another_attempt_grows_to_the_longest_that_is_wished(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server:
        client = await connect(settings_for(server), name="test", deadline=60)
        client.longest_retry = 0.3
        waits = [client.next_server([Server(urlparse(server.url))], {})[1] for _ in range(20)]
        await client.close()
    assert all(0.15 <= wait <= 0.3 for wait in waits[2:])


async def test_a_silent_link_is_noticed_although_bytes_are_stuck_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PING_INTERVAL", 0.2)
    by_server: list[LinkState] = []
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        client = await connect(
            ConnectionSettings(servers=(link.url,)), name="test", deadline=60, on_state=by_server.append
        )
        link.stall()
        stuck = asyncio.ensure_future(publish(client, "stuck", bytes(500_000), count=60))
        await until(
            lambda: any(state.reason == "the server fell silent" for state in by_server), "the silence is noticed"
        )
        await link.restore()
        await until(lambda: by_server[-1].event is LinkEvent.RECONNECTED, "the client is back")
        await asyncio.wait_for(stuck, 20)
        await client.flush()
        await client.close()


async def test_a_client_on_a_silent_link_closes_within_seconds(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        client = await connect(ConnectionSettings(servers=(link.url,)), name="test", deadline=60)
        link.stall()
        stuck = asyncio.ensure_future(publish(client, "stuck", bytes(500_000), count=60))
        await asyncio.wait({stuck}, timeout=0.2)
        await asyncio.wait_for(client.close(), 30)
        await asyncio.wait({stuck}, timeout=30)
        assert stuck.done()
        stuck.exception()


async def test_who_waits_for_a_silent_link_to_take_what_was_published_can_be_cancelled(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        client = await connect(ConnectionSettings(servers=(link.url,)), name="test", deadline=60)
        link.stall()
        for _ in range(60):
            await client.publish_framed([b"PUB stuck 500000\r\n", bytes(500_000), b"\r\n"])
            await asyncio.sleep(0)
        waiting = asyncio.create_task(client.drained())
        await asyncio.wait({waiting}, timeout=0.2)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait({waiting}, timeout=30)
        assert waiting.cancelled()
        await client.close()


async def test_a_full_thin_link_is_not_taken_for_a_dead_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PING_INTERVAL", 0.25)
    by_server: list[LinkState] = []
    async with server_in(tmp_path) as server, EmbeddedLink(server.port, bandwidth=1_000_000) as link:
        client = await connect(
            ConnectionSettings(servers=(link.url,)), name="test", deadline=60, on_state=by_server.append
        )
        await request_json(client, "$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s"]}, dict, deadline=60)
        acknowledged = 0

        async def count(_message: object) -> None:
            nonlocal acknowledged
            acknowledged += 1

        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=count)
        # 3 s of data, while pings must be answered within 0.75 s.
        await publish(client, "s", bytes(30_000), count=100, reply=inbox)
        await until(lambda: acknowledged == 100, "everything is acknowledged")
        assert [state.event for state in by_server] == [LinkEvent.CONNECTED]
        await client.close()


async def test_a_denied_publish_is_told_and_the_connection_stays(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    users = "authorization { users: [ { user: u, password: p, permissions: { publish: allowed } } ] }"
    async with server_in(tmp_path, users) as server:
        auth = AuthSettings(user="u", password_file=written(tmp_path / "password", "p"))
        client = await connect(settings_for(server, auth), name="test", deadline=60, on_state=by_server.append)
        await client.publish("forbidden", b"")
        await until(lambda: len(by_server) > 1, "the denial is told")
        assert by_server[1].event is LinkEvent.DENIED
        assert 'publish to "forbidden"' in by_server[1].reason
        assert client.is_connected
        await client.close()


async def test_a_user_who_is_removed_and_admitted_again_comes_back(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    users = "authorization {{ users: [ {{ user: {name}, password: p }} ] }}"
    async with server_in(tmp_path, users.format(name="agent")) as server:
        auth = AuthSettings(user="agent", password_file=written(tmp_path / "password", "p"))
        client = await connect(settings_for(server, auth), name="test", deadline=60, on_state=by_server.append)
        config_path = server.settings.store_dir / "nats-server.conf"
        admitted = config_path.read_text()
        config_path.write_text(admitted.replace("user: agent", "user: other"))
        os.kill(server.pid, signal.SIGHUP)
        refusal = "it refuses our credentials (auth): Authorization Violation, as user agent"
        await until(lambda: by_server[-1].reason == refusal, "the user is refused")
        config_path.write_text(admitted)
        os.kill(server.pid, signal.SIGHUP)
        await until(lambda: by_server[-1].event is LinkEvent.RECONNECTED, "the user is back")
        await client.flush()
        await client.close()


async def test_an_error_that_nats_py_takes_as_final_is_survived(tmp_path: Path) -> None:
    by_server: list[LinkState] = []
    async with server_in(tmp_path, "max_subscriptions: 1") as server:
        client = await connect(settings_for(server), name="test", deadline=60, on_state=by_server.append)
        await client.subscribe("first")
        second = await client.subscribe("second")
        await until(lambda: len(by_server) > 1, "the server objects")
        assert by_server[1] == LinkState(
            LinkEvent.DISCONNECTED, f"127.0.0.1:{server.port}", "maximum subscriptions exceeded"
        )
        await second.unsubscribe()
        await until(lambda: by_server[-1].event is LinkEvent.RECONNECTED, "the client is back")
        await client.flush()
        await client.close()


async def test_a_client_closes_also_in_the_moment_in_which_its_connection_is_lost(tmp_path: Path) -> None:
    async with server_in(tmp_path) as server:
        client = await connect(settings_for(server), name="test", deadline=60)
        client.abort()
        # The transport is gone now, and the client's reader has not been told yet.
        await asyncio.sleep(0)
        await client.publish("anything", b"")
        await client.close()
        assert client.is_closed


@pytest.mark.parametrize(
    "claim",
    [
        test_every_change_of_a_link_is_told,
        test_a_client_on_a_silent_link_closes_within_seconds,
        test_a_client_closes_also_in_the_moment_in_which_its_connection_is_lost,
    ],
)
def test_it_holds_on_uvloop_too(tmp_path: Path, claim: Callable[[Path], Coroutine[object, object, None]]) -> None:
    # The agent runs on uvloop, whose transports are classes of their own.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(claim(tmp_path))

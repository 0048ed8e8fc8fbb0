"""Many who listen, and some who do nothing, or do it slowly, hold up nobody else and cost the service no memory."""

import asyncio
import hashlib
import http.client
import json
import os
import resource
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from aggregator.live.service.connections import MOST, MOST_OF_ADDRESS, MOST_OF_TOKEN, MOST_STREAMS, bounded
from aggregator.live.service.events import WAITING
from shared.instants import HOUR, MINUTE
from shared.nats.settings import ConnectionSettings
from tests.integration.live.test_serve import now
from tests.support.command_process import running
from tests.support.lakehouse.hub import Block, Hub
from tests.support.live.listeners import Pace, is_cut, listening
from tests.support.live.live_service import DEADLINE, LiveService, serving, write_settings
from tests.support.nats.certificates import Authority
from tests.support.waiting import until

BROWSERS = {Pace.ON: 80, Pace.SLOWLY: 10, Pace.NOT: 10}
LONG = "x" * 1_000
ASKED = b"GET /api/v1/senders?limit=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    with Hub(tmp_path_factory.mktemp("hub")) as hub:
        yield hub


@pytest.fixture(scope="module")
def service(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """Run a service that soon loses patience, and shows senders with names as long as may be."""
    lines = 'unknown_after = "1h"\ndrop_listener_after = "10s"\n'
    with serving(tmp_path_factory.mktemp("service"), hub.connection, lines) as service:
        block = Block("eu-west", "dub1")
        named = (block.new(f"{number}-{LONG}", now() - MINUTE) for number in range(2_000))
        service.wait_through(hub.publish([*named, block.watermark(now() - MINUTE, now())]))
        yield service


def idle(service: LiveService, first: bytes = b"") -> socket.socket:
    """Connect, and send but some of a request."""
    connected = socket.create_connection(("127.0.0.1", service.port))
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connected.sendall(first)
    return connected


def resident(pid: int) -> float:
    """Measure resident MB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


async def test_a_hundred_browsers_are_told_alike_and_those_that_stand_still_are_dropped(
    hub: Hub, service: LiveService
) -> None:
    block, at = Block("eu-west", "ber1"), now() - MINUTE
    async with listening(service.port, "", BROWSERS) as listeners:
        on, still = listeners[Pace.ON], listeners[Pace.NOT]
        await until(lambda: all(each.heard for each in on), "they listen")
        before = resident(service.process.pid)
        with idle(service, 8 * ASKED) as untaken:
            for _ in range(32):
                last = await asyncio.to_thread(
                    hub.publish, [block.new(f"{block.ordinal}-{LONG}", at) for _ in range(200)]
                )
                await asyncio.to_thread(service.wait_through, last)
            await until(lambda: is_cut(untaken) and all(each.is_dropped for each in still), "patience ends")
        newest = max(each.heard[-1] for each in on)
        await until(lambda: all(each.heard[-1] >= newest for each in on), "all heard the last event")
        grown = resident(service.process.pid) - before
    for each in on:
        assert not each.is_dropped
        assert each.heard == list(range(each.heard[0], each.heard[-1] + 1))
    # It keeps the last events, for those who come back, and the new names.
    assert grown < 100


async def test_hundreds_of_incidents_that_begin_at_once_drop_nobody(hub: Hub, service: LiveService) -> None:
    at = now() - HOUR
    blocks = [Block("us-east", f"site{number}") for number in range(WAITING + 50)]
    known = (block.watermark(at, now()) for block in blocks)
    last = await asyncio.to_thread(hub.publish, [*(block.new("web1", at) for block in blocks), *known])
    await asyncio.to_thread(service.wait_through, last)
    async with listening(service.port, "", {Pace.ON: 3}) as listeners:
        on = listeners[Pace.ON]
        await until(lambda: all(each.heard for each in on), "they listen")
        before = max(each.heard[-1] for each in on)
        # What came while it stood still is in one look.
        os.kill(service.process.pid, signal.SIGSTOP)
        await asyncio.to_thread(hub.publish, [block.stale("web1", at) for block in blocks])
        os.kill(service.process.pid, signal.SIGCONT)
        begun = partial(service.get, "incidents")
        await until(lambda: len(begun()["incidents"]) == len(blocks), "all have begun")
        await until(lambda: all(each.is_dropped or each.heard[-1] > before for each in on), "they are told")
        assert [each.is_dropped for each in on] == [False] * 3


async def test_whoever_sends_no_whole_request_is_cut_and_never_keeps_others_out(service: LiveService) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(idle(service, first)) for first in (b"", b"GET / HT", ASKED[:-2])]
        posts = b"POST /api/v1/operations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"
        slow.append(stack.enter_context(idle(service, posts)))
        many = [stack.enter_context(idle(service)) for _ in range(MOST + 100)]
        # Those that have waited longest make room at once, also for this one.
        assert (await asyncio.to_thread(service.request, "/healthz")).status == 200
        await until(lambda: sum(map(is_cut, [*slow, *many])) >= 100, "there is room")
        await until(lambda: all(map(is_cut, [*slow, *many])), "patience ends")


def stream(service: LiveService, token: str = "", source: str = "127.0.0.1") -> tuple[http.client.HTTPConnection, Any]:
    """Ask for events; return the connection and its answer, of which a stream's goes on."""
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=DEADLINE, source_address=(source, 0))
    connection.request("GET", "/api/v1/events", headers={"Authorization": f"Bearer {token}"} if token else {})
    return connection, connection.getresponse()


def test_streams_of_one_token_leave_places_for_others(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "readers").write_text("".join(f"{hashlib.sha256(each).hexdigest()}\n" for each in (b"one", b"other")))
    with serving(tmp_path, hub.connection, 'read_token_file = "readers"\n') as service, ExitStack() as stack:
        answers = []
        for _ in range(MOST + 10):
            connection, answer = stream(service, "one")
            stack.callback(connection.close)
            answers.append(answer)
        statuses = [answer.status for answer in answers]
        assert statuses == [200] * MOST_OF_TOKEN + [429] * (len(answers) - MOST_OF_TOKEN)
        refusal = answers[-1]
        assert refusal.getheader("Retry-After") == "15"
        assert json.loads(refusal.read())["error"].startswith(f"this token has {MOST_OF_TOKEN} open event streams")
        headers = {"Authorization": "Bearer other"}
        assert [service.request(path, headers=headers).status for path in ("/healthz", "/metrics")] == [200, 200]
        other, answer = stream(service, "other")
        assert answer.status == 200
        other.close()
        # A place is free once its stream has ended.
        answers[0].close()
        stack.close()

        def has_place() -> bool:
            connection, answer = stream(service, "one")
            connection.close()
            return bool(answer.status == 200)

        ends_at = time.monotonic() + DEADLINE
        while not has_place():
            assert time.monotonic() < ends_at


def test_streams_of_nobody_and_answers_that_are_not_taken_leave_places_for_others(service: LiveService) -> None:
    with ExitStack() as stack:
        statuses = Counter[int]()
        for source in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            for _ in range(MOST_OF_ADDRESS + 1):
                connection, answer = stream(service, source=source)
                stack.callback(connection.close)
                statuses[answer.status] += 1
        assert statuses == {200: MOST_STREAMS, 429: 1, 503: 3 * (MOST_OF_ADDRESS + 1) - MOST_STREAMS - 1}
        assert [service.request(path).status for path in ("/healthz", "/metrics")] == [200, 200]
    with ExitStack() as stack:
        for _ in range(MOST):
            stack.enter_context(idle(service, ASKED))
        connection = http.client.HTTPConnection("127.0.0.1", service.port, source_address=("127.0.0.2", 0))
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        connection.close()


async def test_a_handshake_of_tls_that_stalls_is_cut_too(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    own = authority.issue("live")
    lines = f'tls_cert = "{own.cert}"\ntls_key = "{own.key}"\ndrop_listener_after = "5s"\n'
    config = write_settings(tmp_path, ConnectionSettings(servers=("nats://127.0.0.1:1",)), lines)
    with running(tmp_path, "serve", "--config", str(config)) as process:
        port = int(process.wait_for("serving https://").partition("https://127.0.0.1:")[2].partition("/")[0])
        with socket.create_connection(("127.0.0.1", port)) as stalled:
            # uvloop's own patience is a minute.
            stalled.settimeout(50.0)
            assert await asyncio.to_thread(stalled.recv, 1) == b""
        context = ssl.create_default_context(cafile=authority.ca)
        others = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=DEADLINE)
        others.request("GET", "/healthz")
        assert others.getresponse().status == 200
        others.close()


async def test_whoever_leaves_little_of_small_answers_is_cut_too() -> None:
    """So little that writing never pauses."""

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        assert scope["type"] == "http"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"20000")]})
        await send({"type": "http.response.body", "body": bytes(20_000)})

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, http=bounded(1.0), lifespan="off", log_level="critical", timeout_keep_alive=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve([listening]))
    try:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
            client.connect(listening.getsockname())

            def leaves_some() -> bool:
                client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                return any(each.transport.get_write_buffer_size() for each in server.server_state.connections)

            await until(leaves_some, "something of an answer is left")
            await until(lambda: not server.server_state.connections, "patience ends")
    finally:
        server.should_exit = True
        await serving

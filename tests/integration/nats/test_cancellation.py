"""A wait on a connection ends when its task is told to, also where the answer comes at that very moment."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from nats.aio.msg import Msg

from shared.embedded.link import EmbeddedLink
from shared.nats.client import EdgeClient
from shared.nats.connection import ConnectionSettings, connect, request_json
from shared.nats.dispatch import DirectClient
from tests.support.nats.one_server import server_in
from tests.support.waiting import until

NOBODY = "asked.and.silent"
ANOTHER_DOMAIN = "$JS.elsewhere.API.INFO"
DEADLINE = 60


class Wait(NamedTuple):
    """A wait for the server, and what answers it in the server's place: False while nothing waits."""

    begin: Callable[[EdgeClient], Coroutine[Any, Any, object]]
    answer: Callable[[EdgeClient], bool]


def answer_request(client: EdgeClient) -> bool:
    for waiting in client._resp_map.values():
        waiting.set_result(Msg(_client=client, data=b"{}"))
    return bool(client._resp_map)


def answer_elsewhere(client: EdgeClient) -> bool:
    inboxes = [each for each in client._subs.values() if each._subject.startswith("_INBOX.elsewhere.")]
    for inbox in inboxes:
        inbox._pending_queue.put_nowait(Msg(_client=client, data=b"{}"))
    return bool(inboxes)


def answer_flush(client: EdgeClient) -> bool:
    for waiting in client._pongs:
        waiting.set_result(True)
    return bool(client._pongs)


WAITS = {
    "request": Wait(lambda client: client.request(NOBODY, timeout=DEADLINE), answer_request),
    "request in another domain": Wait(
        lambda client: request_json(client, ANOTHER_DOMAIN, None, dict[str, str], deadline=DEADLINE), answer_elsewhere
    ),
    "flush": Wait(lambda client: client.flush(DEADLINE), answer_flush),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
async def test_a_wait_ends_when_told_to_though_its_answer_comes_at_that_moment(tmp_path: Path, wait: Wait) -> None:
    async with server_in(tmp_path) as server, EmbeddedLink(server.port) as link:
        client = await connect(ConnectionSettings(servers=(link.url,)), name="test", deadline=DEADLINE)
        link.stall()
        waiting = asyncio.ensure_future(wait.begin(client))
        await until(lambda: wait.answer(client), "it waits, and is answered")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        client.abort()
        await client.close()


async def test_a_closed_client_reconnects_no_more_though_its_attempt_fails_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program would wait for it without end: the loop ends when all tasks have."""
    attempts: list[EdgeClient] = []

    async def fail_when_cancelled(client: EdgeClient, _server: object) -> None:
        attempts.append(client)
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            raise TimeoutError from None

    async with server_in(tmp_path) as server:
        client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
        monkeypatch.setattr(DirectClient, "_connect_to_server", fail_when_cancelled)
        await server.stop()
        await until(lambda: bool(attempts), "it tries to reconnect")
        reconnecting = client._reconnection_task
        assert reconnecting is not None
        await client.close()
        await asyncio.wait({reconnecting}, timeout=DEADLINE)
        assert (reconnecting.done(), client.is_closed, len(attempts)) == (True, True, 1)

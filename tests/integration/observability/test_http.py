"""A request to the monitor ends, whatever becomes of who asked and of what was asked about."""

import asyncio
import contextlib
import gc
import socket
import struct
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import pytest
import uvloop

from edge_agent.config.agent import MonitorSettings
from edge_agent.observability import http
from edge_agent.observability.status_board import StatusBoard
from edge_agent.store.read_only import store_reader
from edge_agent.store.sqlite_store import SqliteStore
from shared.tasks import cancel_all
from tests.support.agent.agent_process import free_address
from tests.support.observability.exposition import parsed
from tests.support.store.store_batches import ROOM, advisory, batch, opened
from tests.support.waiting import until

METRICS = b"GET /metrics HTTP/1.1\r\n\r\n"
RESET = struct.pack("ii", 1, 0)


@asynccontextmanager
async def monitored(path: Path, hosts: tuple[str, ...] = ()) -> AsyncIterator[tuple[SqliteStore, str, int]]:
    """Serve the monitor of an agent on a store; give the store, and where the monitor listens."""
    host, _, port = (listen := free_address()).rpartition(":")
    settings = MonitorSettings(listen=listen, hosts=hosts)
    board = StatusBoard("dub1-a", "eu-west", "dub1", "1", "boot", ROOM)
    async with opened(path) as store:
        serving = asyncio.create_task(http.serve_monitor(settings, board, store, path))
        try:
            await until(lambda: listens(host, int(port)), "the monitor listens")
            yield store, host, int(port)
        finally:
            await cancel_all([serving])


async def listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    await writer.wait_closed()
    return True


def sockets() -> int:
    """Count the sockets that this process has open."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += entry.is_socket()
    return found


async def test_a_scraper_that_goes_away_while_its_answer_is_made_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, may_go_on = threading.Event(), threading.Event()

    @contextmanager
    def slow(path: Path) -> Iterator[Connection]:
        looks.set()
        may_go_on.wait(60)
        with store_reader(path) as database:
            yield database

    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    monkeypatch.setattr(http, "store_reader", slow)
    async with monitored(tmp_path / "agent.db") as (_, host, port):
        before = sockets()
        with socket.create_connection((host, port)) as scraper:
            scraper.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            scraper.sendall(METRICS)
            await until(looks.is_set, "the monitor looks into the store")
        await until(lambda: sockets() == before, "the monitor has heard that nobody waits")
        may_go_on.set()
        await until(lambda: len(asyncio.all_tasks()) == 3, "the request has ended")
    gc.collect()
    assert complaints == []


def test_so_it_is_on_uvloop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The agent runs on uvloop, whose transports raise where asyncio's do not.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(test_a_scraper_that_goes_away_while_its_answer_is_made_is_no_error(tmp_path, monkeypatch))


async def test_a_record_that_is_damaged_hides_only_its_own_age(tmp_path: Path) -> None:
    async with monitored(tmp_path / "agent.db") as (store, host, port):
        await store.commit(batch(1, [advisory("no advisory any more")]))
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(METRICS)
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    found = {(name, dict(labels).get("lane")): value for (name, labels), value in parsed(body.decode()).items()}
    assert found["muster_agent_outbox_rows", "advisories"] == 1
    ages = {lane for name, lane in found if name == "muster_agent_outbox_oldest_age_seconds"}
    assert ages == {"registrations", "copies"}


@pytest.mark.parametrize(
    "host",
    [
        "localhost:8787",
        "LocalHost.",
        "127.0.0.1",
        "[::1]:8787",
        "10.1.0.4:9",
        "dub1-a.example:8787",
        "DUB1-A.example",
        None,
    ],
)
@pytest.mark.parametrize("page", ["/healthz", "/readyz", "/metrics"])
async def test_the_host_is_asked_by_addresses_and_its_own_names(tmp_path: Path, host: str | None, page: str) -> None:
    status, _ = await asked_as(tmp_path, page, "" if host is None else f"Host: {host}\r\n")
    assert status in ("200 OK", "503 Service Unavailable")


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ("Host: rebound.example:8787\r\n", "rebound.example:8787"),
        ("hOST:\trebound.example \r\n", "rebound.example"),
        ("Host: localhost\r\nHost: rebound.example\r\n", "rebound.example"),
        ("Host: localhost.rebound.example\r\n", "localhost.rebound.example"),
        ("Host: 127.0.0.1.rebound.example\r\n", "127.0.0.1.rebound.example"),
        ("Host: localhost:1@rebound.example\r\n", "localhost:1@rebound.example"),
        ("Host: [::1].rebound.example\r\n", "[::1].rebound.example"),
        ("Host: \r\n", ""),
        (f"Host:{' ' * 60_000}x\nAccept: *\r\n", "x"),
    ],
)
@pytest.mark.parametrize("page", ["/healthz", "/readyz", "/metrics"])
async def test_a_page_that_rebound_its_own_name_reads_nothing(
    tmp_path: Path, page: str, headers: str, named: str
) -> None:
    status, body = await asked_as(tmp_path, page, f"Accept: */*\r\n{headers}Origin: http://rebound.example\r\n")
    assert (status, body) == (
        "421 Misdirected Request",
        f"not known here as {named}: add the name to monitor.hosts in the settings\n",
    )


async def asked_as(tmp_path: Path, page: str, headers: str) -> tuple[str, str]:
    """Ask a monitor with a name in its settings; give the status and the body of its answer."""
    async with monitored(tmp_path / "agent.db", ("dub1-a.example",)) as (_, host, port):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(f"GET {page} HTTP/1.1\r\n{headers}\r\n".encode())
        async with asyncio.timeout(60):
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        await writer.wait_closed()
    return head.partition("\r\n")[0].removeprefix("HTTP/1.1 "), body

"""Answer ``/healthz`` and ``/metrics`` over HTTP: is the agent alive, is it useful, how much did it count.

``/healthz`` is 200 while every part does its work, 503 with the reasons otherwise. Metrics are in Prometheus' text
format.
"""

import asyncio
import contextlib
from collections.abc import Iterator

from edge_agent.core.outgoing import Lane
from edge_agent.status_board import StatusBoard
from edge_agent.store.sqlite_store import SqliteStore

REQUEST_DEADLINE = 5.0
HEALTHY = frozenset({"connected", "reading", "stored"})


async def serve_monitor(listen: str, board: StatusBoard, store: SqliteStore) -> None:
    """Serve until cancelled. An address that cannot be had is reported, and does not stop the agent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            async with asyncio.timeout(REQUEST_DEADLINE):
                request = (await reader.readuntil(b"\r\n\r\n")).split()
                writer.write(_response(request[1].decode("latin-1") if len(request) > 1 else "", board, store))
                await writer.drain()
        writer.close()

    host, _, port = listen.rpartition(":")
    try:
        server = await asyncio.start_server(answer, host.strip("[]"), int(port))
    except OSError as error:
        board.reporter("monitor")("not listening", f"{listen}: {error.strerror or error}")
        return
    async with server:
        await server.serve_forever()


def _response(path: str, board: StatusBoard, store: SqliteStore) -> bytes:
    match path.partition("?")[0]:
        case "/healthz":
            wrong = [
                f"{name}: {part.phase}{part.reason and f': {part.reason}'}"
                for name, part in board.parts.items()
                if part.phase not in HEALTHY
            ]
            if not board.parts:
                wrong = ["starting"]
            status, body = ("503 Service Unavailable", "\n".join(wrong)) if wrong else ("200 OK", "ok")
        case "/metrics":
            status, body = "200 OK", "\n".join(_metrics(board, store))
        case _:
            status, body = "404 Not Found", "known here: /healthz, /metrics"
    payload = f"{body}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
    return f"{head}Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n".encode() + payload


def _metrics(board: StatusBoard, store: SqliteStore) -> Iterator[str]:
    yield "# TYPE muster_agent_part_up gauge"
    for name, part in board.parts.items():
        yield f'muster_agent_part_up{{part="{name}"}} {int(part.phase in HEALTHY)}'
    depths = store.depths()
    yield "# TYPE muster_agent_outbox_rows gauge"
    for lane in Lane:
        yield f'muster_agent_outbox_rows{{lane="{lane.name.lower()}"}} {depths[lane].rows}'
    yield "# TYPE muster_agent_outbox_bytes gauge"
    for lane in Lane:
        yield f'muster_agent_outbox_bytes{{lane="{lane.name.lower()}"}} {depths[lane].size}'
    yield "# TYPE muster_agent_events_total counter"
    for block, counters in store.counters().items():
        for what, causes in counters.items():
            for cause, count in causes.items():
                yield f'muster_agent_events_total{{stream="{block}",what="{what}",cause="{cause}"}} {count}'

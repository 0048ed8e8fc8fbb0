"""HTTP pages ``/healthz``, ``/readyz`` and ``/metrics``: is the agent alive, is it useful, and its counts.

``/healthz`` is 200 whenever the agent's loop runs: a restart helps against nothing else. ``/readyz`` is 200 while the
agent is useful, else 503. Both return both facts and the reasons as one JSON object.

A page in a browser that can reach the agent must not read them. Such a page can resolve a name of its own to the
agent's address (DNS rebinding), and the browser then sends that name as the host. So only configured names are
answered.
"""

import asyncio
import contextlib
import ipaddress
import re
from pathlib import Path

import msgspec

from edge_agent.config.agent import MonitorSettings
from edge_agent.core.records import Lane
from edge_agent.observability.conditions import Condition, errors
from edge_agent.observability.metrics import CONTENT_TYPE, Numbers, expose, metrics_of
from edge_agent.observability.status_board import StatusBoard, now
from edge_agent.observability.status_report import LaneReport
from edge_agent.runtime import process
from edge_agent.store.chunks import oldest_at
from edge_agent.store.read_only import StoreUnreadable, store_reader
from edge_agent.store.sqlite_store import SqliteStore
from shared.command_line.tables import visible
from shared.system_errors import reason_of

REQUEST_DEADLINE = 10.0
LISTEN_AGAIN = 10.0
MOST_SHOWN = 100
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"
_HOST = re.compile(r"^host:(.*)$", re.IGNORECASE | re.MULTILINE)
_WITHOUT_PORT = re.compile(r"(\[.*\]|[^:]*)(:[0-9]*)?")

Answer = tuple[str, str, str]


class Health(msgspec.Struct, frozen=True):
    """Body of both health pages; none of ``conditions`` is an error while the agent is useful."""

    alive: bool
    useful: bool
    conditions: list[Condition]
    boot_id: str


async def serve_monitor(settings: MonitorSettings, board: StatusBoard, store: SqliteStore, path: Path) -> None:
    """Serve until cancelled. An address that cannot be had is reported, and tried again: it does not stop the agent."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(TimeoutError, OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(REQUEST_DEADLINE):
                    request = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    method, target, *_ = [*request.split(maxsplit=2), "", ""]
                    answer = _misdirection(request, names) or await _answer(method, target, board, store, path)
                    if not writer.is_closing():
                        # uvloop raises RuntimeError on a closing writer: the client has disconnected meanwhile.
                        writer.write(_response(method, answer))
                        await writer.drain()
            finally:
                writer.close()

    listen = settings.listen
    host_name, _, port = listen.rpartition(":")
    names = {_bare(name) for name in ("localhost", host_name, *settings.hosts)}
    report = board.reporter("monitor")
    server: asyncio.Server | None = None
    while server is None:
        try:
            server = await asyncio.start_server(answer, host_name.strip("[]"), int(port))
        except OSError as error:
            report("not listening", f"{listen}: {reason_of(error)}")
            await asyncio.sleep(LISTEN_AGAIN)
    if "monitor" in board.parts:
        report("listening", "")
    async with server:
        await server.serve_forever()


def _misdirection(request: str, names: set[str]) -> Answer | None:
    """Refuse requests to a foreign host name. An address cannot be rebound, and no browser omits the name."""
    for named in map(str.strip, _HOST.findall(request)):
        found = _WITHOUT_PORT.fullmatch(named)
        if found is None or not (_bare(found[1]) in names or _is_ip_address(found[1].strip("[]"))):
            text = f"not known here as {visible(named)[:MOST_SHOWN]}: add the name to monitor.hosts in the settings\n"
            return "421 Misdirected Request", _TEXT, text
    return None


def _bare(name: str) -> str:
    return name.lower().removesuffix(".")


def _is_ip_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


async def _answer(method: str, target: str, board: StatusBoard, store: SqliteStore, path: Path) -> Answer:
    if method not in ("GET", "HEAD"):
        return "405 Method Not Allowed", _TEXT, "only GET is known here\n"
    match target.partition("?")[0]:
        case "/healthz" | "/readyz" as page:
            conditions = board.conditions()
            status = "200 OK" if page == "/healthz" or not errors(conditions) else "503 Service Unavailable"
            return status, _JSON, _health_page(board, conditions)
        case "/metrics":
            # A disk that hangs would keep a thread for each scrape.
            lanes = {} if store.trouble else await asyncio.to_thread(_oldest, path)
            agent = board.agent
            numbers = _numbers(board, store, lanes)
            return "200 OK", CONTENT_TYPE, expose(metrics_of(numbers), {"region": agent.region, "site": agent.site})
        case _:
            return "404 Not Found", _TEXT, "known here: /healthz, /readyz, /metrics\n"


def _health_page(board: StatusBoard, conditions: list[Condition]) -> str:
    health = Health(True, not errors(conditions), conditions, board.agent.boot_id)
    return msgspec.json.encode(health).decode() + "\n"


def _response(method: str, answer: Answer) -> bytes:
    status, content_type, body = answer
    payload = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(payload)}\r\n"
    return f"{head}Cache-Control: no-store\r\nConnection: close\r\n\r\n".encode() + (
        b"" if method == "HEAD" else payload
    )


def _oldest(path: Path) -> dict[Lane, int]:
    """Return the oldest instant of each lane, over a connection of its own: the store must not wait for a scrape."""
    try:
        with store_reader(path) as database:
            # What a chunk holds may leave between two looks.
            database.execute("BEGIN")
            return {lane: oldest_at(database, lane) for lane in Lane}
    except StoreUnreadable:
        return {}


def _numbers(board: StatusBoard, store: SqliteStore, oldest: dict[Lane, int]) -> Numbers:
    depths = store.depths()
    return Numbers(
        at=now(),
        agent=board.agent,
        parts=board.parts,
        progress=board.progress(),
        counters=store.counters(),
        lanes={
            lane.name.lower(): LaneReport(depth.rows, depth.size, oldest.get(lane, 0)) for lane, depth in depths.items()
        },
        reconnects=board.reconnects,
        acknowledged=board.publishes.done,
        refused=board.publishes.failed,
        commits=store.commits.done,
        failed_commits=store.commits.failed,
        commit_seconds=store.commits.seconds,
        usage=process.usage(),
        conditions=board.conditions(),
        pair=board.pair() if board.pair else None,
        set_apart=store.set_apart_depth(),
    )

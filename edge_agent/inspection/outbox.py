"""List the records of the outbox, waiting or dead-lettered as too large, copy them into a file, or drop them.

Dropped records are counted by the cause ``operator``. A running agent keeps books of its outbox, so it is asked,
through its store, to drop them. A store without an agent is held, so that none starts meanwhile, and the same
transaction is made here.
"""

import base64
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO

import msgspec

from edge_agent.core.decisions import Counters
from edge_agent.core.records import Lane, OutboxRow
from edge_agent.inspection.moments import relative
from edge_agent.observability import conditions as kinds
from edge_agent.observability.conditions import Condition
from edge_agent.observability.status_board import NOT_ACCEPTED, UPSTREAM, PairPhase
from edge_agent.observability.status_report import read_report
from edge_agent.store import schema
from edge_agent.store.chunks import instant_of, read_pending
from edge_agent.store.files import StoreInUse, StoreUnusable, hold_of
from edge_agent.store.outbox_index import set_apart_row
from edge_agent.store.port import LaneDepth, SetApartSum, StoreFailing, StoreFull, StoreLocked
from edge_agent.store.read_only import StoreUnreadable
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from shared.command_line.tables import TableColumn, format_table
from shared.decoding import Decoder
from shared.sizes import format_size
from shared.whole_files import replacing

PAGE_ROWS = 1_000
_SECRET = 0o600
_TOO_LARGE = (kinds.SET_APART.name, kinds.TOO_LARGE_DROPPED.name)
_NOT_LEADING = (PairPhase.CATCHING_UP, PairPhase.COPYING, PairPhase.WAITING)

WAITING = {
    Lane.ADVISORIES: """
SELECT block, records, SUM(count), SUM(size), MIN(first_row_id), MAX(last_row_id) FROM (
  SELECT block, CASE WHEN watermark_since > 0 THEN 'watermarks' ELSE 'advisories' END AS records,
    1 AS count, size, row_id AS first_row_id, row_id AS last_row_id FROM advisory_outbox
  UNION ALL SELECT block, 'advisories', count, size, first_row_id, last_row_id FROM advisory_chunk
) GROUP BY block, records ORDER BY MIN(first_row_id)
""",
    Lane.REGISTRATIONS: """
SELECT block, 'registrations', SUM(count), SUM(size), MIN(first_row_id), MAX(last_row_id) FROM (
  SELECT block, 1 AS count, size, row_id AS first_row_id, row_id AS last_row_id FROM registration_outbox
  UNION ALL SELECT block, count, size, first_row_id, last_row_id FROM registration_chunk
) GROUP BY block ORDER BY MIN(first_row_id)
""",
    Lane.COPIES: """
SELECT block, 'copies', COUNT(*), SUM(size), MIN(row_id), MAX(row_id)
FROM copy_outbox GROUP BY block ORDER BY MIN(row_id)
""",
}


class WaitingRecords(msgspec.Struct, frozen=True):
    """Waiting records of one kind in a lane. ``oldest_at`` and ``newest_at`` are their own instants, 0: unknown."""

    stream: str
    lane: str
    records: str
    count: int
    size: int
    oldest_at: int
    newest_at: int


class OutboxReport(msgspec.Struct, frozen=True):
    """Result of ``outbox``; also its JSON form. ``size`` and ``limit`` are in bytes.

    ``upstream`` says why nothing leaves, ``held_up`` what is refused or not answered: other lanes may go on. Where a
    member of a pair stands by, nothing leaves there, and ``sent_by`` names the other; of one that catches up, copies or
    waits ``not_leading`` says so.
    """

    waiting: list[WaitingRecords]
    size: int
    limit: int
    is_running: bool
    upstream: str
    counters: Counters
    held_up: str = ""
    sent_by: str = ""
    not_leading: str = ""
    set_apart: list[SetApartSum] = []
    too_large: list[Condition] = []


class SetApartRow(msgspec.Struct, frozen=True):
    """One dead letter, since ``at``; ``limit`` would have to be ``needed`` bytes to admit it."""

    row_id: int
    stream: str
    lane: str
    subject: str
    size: int
    needed: int
    limit: str
    at: int


def read_outbox(database: sqlite3.Connection) -> OutboxReport:
    """Return the waiting records by lane and kind; raise StoreUnreadable."""
    database.execute("BEGIN")
    status = read_report(database)
    waiting = [
        WaitingRecords(
            block,
            lane.name.lower(),
            records,
            count,
            size,
            oldest_at=instant_of(database, lane, first),
            newest_at=instant_of(database, lane, last),
        )
        for lane, statement in WAITING.items()
        for block, records, count, size, first, last in database.execute(statement).fetchall()
    ]
    upstream = status.parts.get(UPSTREAM) if status.is_running else None
    is_refused = upstream is not None and upstream.phase == NOT_ACCEPTED
    pair = status.pair if status.is_running else None
    return OutboxReport(
        waiting=waiting,
        size=sum(each.size for each in waiting),
        limit=status.agent.max_outbox,
        is_running=status.is_running,
        upstream=f"{upstream.phase}: {upstream.reason}" if upstream and upstream.reason and not is_refused else "",
        counters=status.outbox_counters,
        held_up=upstream.reason if upstream and is_refused else "",
        sent_by=pair.other if pair and pair.phase == PairPhase.STANDING_BY else "",
        not_leading=pair.phase if pair and pair.phase in _NOT_LEADING else "",
        set_apart=status.set_apart,
        too_large=[each for each in status.conditions if each.name in _TOO_LARGE],
    )


def list_set_apart(database: sqlite3.Connection, stream: str = "") -> list[SetApartRow]:
    """Return every dead letter, of one stream or of all, the oldest first."""
    return [
        SetApartRow(row_id, block, Lane(lane).name.lower(), subject, size, needed, cause, at)
        for row_id, lane, block, cause, needed, at, size, subject in database.execute(schema.LIST_SET_APART)
        if stream in ("", block)
    ]


def render_set_apart(rows: list[SetApartRow], at: int, width: int) -> str:
    if not rows:
        return "Nothing is set apart: the region takes what the agent sends."
    return format_table(
        [
            TableColumn("row", lambda each: str(each.row_id), right=True),
            TableColumn("stream", lambda each: each.stream),
            TableColumn("since", lambda each: relative(each.at, at), right=True),
            TableColumn("needs", lambda each: f"{each.limit} {each.needed:,}"),
            TableColumn("subject", lambda each: each.subject),
        ],
        rows,
        width,
    )


def render_outbox(report: OutboxReport, at: int, width: int) -> str:
    return "\n".join(_lines(report, at, width))


def _lines(report: OutboxReport, at: int, width: int) -> Iterator[str]:
    several = len({each.stream for each in report.waiting}) > 1
    if not report.waiting:
        yield "The outbox is empty: the region has acknowledged everything."
    else:
        yield format_table(
            [
                TableColumn("lane", lambda each: each.lane),
                TableColumn("stream", lambda each: each.stream if several else ""),
                TableColumn("records", lambda each: each.records),
                TableColumn("count", lambda each: f"{each.count:,}", right=True),
                TableColumn("size", lambda each: format_size(each.size), right=True),
                TableColumn("oldest", lambda each: _instant_text(each.oldest_at, at), right=True),
                TableColumn("newest", lambda each: _instant_text(each.newest_at, at), right=True, spare=1),
            ],
            report.waiting,
            width,
        )
        share = f"{report.size / report.limit:.1%}" if report.limit else "0%"
        yield f"\n{format_size(report.size)} of {format_size(report.limit)} ({share})"
    if not report.is_running:
        yield "Nothing leaves: the agent does not run, or hangs."
    elif report.sent_by:
        yield f"Nothing leaves here: this member of the pair stands by. {report.sent_by} sends the same records, and"
        yield "what it has delivered goes from this outbox too."
    elif report.not_leading:
        yield f"This member of the pair does not lead, it is {report.not_leading}: the one that leads sends the same."
    elif report.upstream:
        yield f"Nothing leaves: upstream {report.upstream}."
    elif report.held_up:
        yield f"Held up: {report.held_up}."
    for each in report.too_large:
        yield f"Too large: {each.text}; {each.remedy}."
    for what, causes in sorted(report.counters.items()):
        yield f"{what} so far: {', '.join(f'{cause} {count:,}' for cause, count in sorted(causes.items()))}"


def _instant_text(instant: int, at: int) -> str:
    return relative(instant, at) if instant else "unknown"


def export_outbox(target: Path, write: Callable[[IO[bytes]], int]) -> int:
    """Write records to a new file, as ``write`` does; give their number. Raise StoreUnreadable.

    The file is whole or not there, and readable by its owner alone: registrations say much about a host.
    """
    try:
        # A path without a name is a directory.
        if target.exists():
            raise StoreUnreadable(f"{target}: is there already; name a new file")
        with replacing(target) as made, made.open("xb") as file:
            made.chmod(_SECRET)
            count = write(file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise StoreUnreadable(f"{target}: {error.strerror or error}") from error
    return count


def write_set_apart(database: sqlite3.Connection, rows: Iterable[SetApartRow], file: IO[bytes]) -> int:
    """Write a JSON line for each of these records that is still dead-lettered."""
    count = 0
    for each in rows:
        # An agent may put it back between the two looks.
        database.execute("BEGIN")
        if database.execute(schema.HAS_SET_APART, (each.row_id,)).fetchone() == (1,):
            row, at = set_apart_row(database, each.row_id)
            record = _record(msgspec.structs.replace(row, row_id=each.row_id))
            record |= {"set_apart_at": at, "limit": each.limit, "needed": each.needed}
            file.write(msgspec.json.encode(record) + b"\n")
            count += 1
        database.execute("COMMIT")
    return count


def _record(row: OutboxRow) -> dict[str, object]:
    return {
        "lane": row.lane.name.lower(),
        "row_id": row.row_id,
        "stream": row.block,
        "sender_id": row.sender_id,
        "subject": row.subject,
        "headers": row.headers,
        "payload": base64.b64encode(row.payload).decode(),
    }


def write_records(database: sqlite3.Connection, file: IO[bytes]) -> int:
    """Write a JSON line for each waiting record: advisories first, in the order in which they would leave.

    Dead letters follow.
    """
    count = 0
    for lane in Lane:
        after = 0
        while rows := _page(database, lane, after):
            for row in rows:
                file.write(msgspec.json.encode(_record(row)) + b"\n")
            after = rows[-1].row_id
            count += len(rows)
    return count + write_set_apart(database, list_set_apart(database), file)


def _page(database: sqlite3.Connection, lane: Lane, after: int) -> list[OutboxRow]:
    """Read within one transaction: records of a chunk may leave between two reads."""
    database.execute("BEGIN")
    try:
        return read_pending(database, lane, after, PAGE_ROWS)
    finally:
        database.execute("COMMIT")


EVERY_BLOCK = "*"
ANSWER_DEADLINE = 30.0
POLL_INTERVAL = 0.1
BUSY_PATIENCE = 30.0

ASK = "INSERT INTO operator_request (asked) VALUES (?)"
ANSWER = "SELECT answer FROM operator_request WHERE row_id = ?"
WITHDRAW = "DELETE FROM operator_request WHERE row_id = ? AND answer IS NULL"
FORGET = "DELETE FROM operator_request WHERE answer IS NOT NULL AND row_id < ? - 100"

_lane_depth = Decoder(LaneDepth, "the depth of a lane")


async def drop_registrations(path: Path, block: str) -> LaneDepth:
    """Drop waiting registrations, of one block or of all (""); return their number and size. Raise StoreUnusable."""
    return await _drop(path, block or EVERY_BLOCK)


async def drop_set_apart(path: Path, block: str) -> LaneDepth:
    """Drop dead-lettered records, of one block or of all (""); return their number and size. Raise StoreUnusable."""
    return await _drop(path, schema.ASKS_SET_APART + (block or EVERY_BLOCK))


async def _drop(path: Path, blocks: str) -> LaneDepth:
    try:
        with hold_of(path):
            return await _drop_here(path, blocks)
    except StoreDamaged as error:
        raise StoreUnusable(f"store {path}: it is damaged ({error}); start the agent, which looks at it") from error
    except StoreInUse:
        return _ask_agent(path, blocks)


async def _drop_here(path: Path, blocks: str) -> LaneDepth:
    store = await SqliteStore.open(path, max_outbox=0)
    try:
        if blocks.startswith(schema.ASKS_SET_APART):
            return await store.drop_set_apart(blocks.removeprefix(schema.ASKS_SET_APART))
        return await store.drop_registrations(blocks)
    except StoreFull as error:
        raise StoreUnusable(f"store {path}: {error}; make some room first") from error
    except StoreFailing as error:
        raise StoreUnusable(f"store {path}: {error}") from error
    except StoreLocked as error:
        raise StoreUnusable(str(error)) from error
    finally:
        await store.close()


def _ask_agent(path: Path, blocks: str) -> LaneDepth:
    try:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=BUSY_PATIENCE)) as database:
            request = database.execute(ASK, (blocks,)).lastrowid
            database.execute(FORGET, (request,))
            try:
                answer = _answer(database, request)
            finally:
                # An agent that comes back to itself later must not do what nobody waits for.
                withdrawn = database.execute(WITHDRAW, (request,)).rowcount
            if withdrawn:
                waited = f"did not answer within {ANSWER_DEADLINE:g} s"
                raise StoreUnusable(f"store {path}: the agent that has it {waited}; nothing was dropped")
            # What was not withdrawn is answered, be it at the last moment.
            return answer or _answer(database, request) or LaneDepth()
    except sqlite3.Error as error:
        raise StoreUnusable(f"store {path}: {error}; may you write it?") from error


def _answer(database: sqlite3.Connection, request: int | None) -> LaneDepth | None:
    """Wait for the answer; None where none came in time."""
    give_up_at = time.monotonic() + ANSWER_DEADLINE
    while True:
        (answer,) = database.execute(ANSWER, (request,)).fetchone()
        if answer is not None:
            return _lane_depth(answer)
        if time.monotonic() > give_up_at:
            return None
        time.sleep(POLL_INTERVAL)

"""Transfer of a leader's store to a member that cannot follow from its own: one file, requested piece by piece.

The copy is made in one read transaction, so it is the store behind some entry of the log, its outbox included; the
member follows from there. A damaged store is not transferred: the other member would find the damage only when it
leads, and then both stores would be lost.
"""

import asyncio
import hashlib
import logging
import os
import sqlite3
import time
import uuid
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.core.block_state import decode_block_state
from edge_agent.core.records import Lane
from edge_agent.pair.log import Writer
from edge_agent.store import schema
from edge_agent.store.chunks import CHUNK_BYTES, read_pending
from edge_agent.store.marker import forget
from edge_agent.store.outbox_index import set_apart_row
from edge_agent.store.senders import check_senders
from edge_agent.store.sqlite import StoreDamaged, damage_detection
from shared.blake2 import blake2b
from shared.decoding import Decoder, WireError
from shared.nats.jetstream_api import request
from shared.system_errors import reason_of
from shared.tasks import cancel_all, is_cancelled

_MANY = 1_000


def check_records(database: sqlite3.Connection) -> None:
    """Raise StoreDamaged for the first record that no agent wrote; one chunk at a time is in memory."""
    with damage_detection():
        for number, state in database.execute("SELECT number, state FROM block").fetchall():
            decode_block_state(state)
            check_senders(database, number)
        for (row_id,) in database.execute("SELECT row_id FROM set_apart").fetchall():
            set_apart_row(database, row_id)
        for lane in Lane:
            after_row_id = 0
            while rows := read_pending(database, lane, after_row_id, _MANY, CHUNK_BYTES):
                after_row_id = rows[-1].row_id


log = logging.getLogger("muster.agent")

PIECE = 256 << 10
ANSWER_DEADLINE = 5.0
COPY_DEADLINE = 600.0
COPY_EVERY = 60.0
IDLE_AFTER = 30.0
"""For how long, in seconds, a copy is kept without a request."""
_LOOK_EVERY = 0.01
# SQLite before 3.27 (EL8) has no VACUUM INTO, and nothing interrupts its backup.
_NEW_COPY = f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; {schema.NEW_STORE}"
# Without the tables of one process: its status and requests to it. The last row ids come behind the rows.
_COPIED_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT IN ('status', 'operator_request') "
    "ORDER BY name = 'sqlite_sequence'"
)


class NoCopy(Exception):
    """No copy was transferred, for the reason in the text. Try again."""


class CopyArrived(Exception):
    """A complete copy of the other member's store is in our store's directory: start again with it."""


class _Wish(msgspec.Struct, omit_defaults=True):
    """Request of a new copy, or of the piece at ``offset`` of ``copy``; with neither, any answer will do."""

    writer: Writer | None = None
    copy: str = ""
    offset: int = 0


class _CopyReply(msgspec.Struct, omit_defaults=True):
    copy: str = ""
    size: int = 0
    digest: str = ""
    problem: str = ""


_wish = Decoder(_Wish, "a wish for a copy")
_copy_reply = Decoder(_CopyReply, "an answer of one who has a copy")


class CopyDesk:
    """The leader's side. One copy at a time."""

    def __init__(self, store_path: Path, writer: Writer) -> None:
        self._store_path = store_path
        self._path = store_path.with_name(store_path.name + ".handed-over")
        self._writer = writer
        self._copy = ""
        self._damage = ""
        self._copied_from: sqlite3.Connection | None = None
        self._asked_at = 0.0
        self._lock = asyncio.Lock()

    async def serve(self, client: Client, subject: str) -> None:
        """Answer until cancelled; leave no copy behind."""
        subscription = await client.subscribe(subject, cb=self._answer)
        try:
            while True:
                await asyncio.sleep(IDLE_AFTER)
                if self._copy and time.monotonic() - self._asked_at > IDLE_AFTER:
                    self._forget()
        finally:
            await self._let_go()
            self._forget()
            # Also where the link is down: nats-py would listen again as soon as it is back.
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _answer(self, message: Msg) -> None:
        try:
            wish = _wish(message.data)
        except WireError:
            return
        self._asked_at = time.monotonic()
        async with self._lock:
            if wish.writer is not None:
                await message.respond(msgspec.json.encode(await self._make(wish.writer)))
            elif wish.copy == self._copy and self._copy:
                await message.respond(await asyncio.to_thread(self._piece, wish.offset))
            else:
                await message.respond(b"")

    async def _make(self, asking: Writer) -> _CopyReply:
        if asking.key != self._writer.key:
            return _CopyReply(problem="its id key is another")
        if asking.member == self._writer.member:
            return _CopyReply(problem="it has the same name: give each member a name of its own")
        if self._damage:
            return _CopyReply(problem=self._damage)
        # The previous copy is replaced; serve() must not remove the new one as idle while it is being made.
        self._copy = ""
        try:
            size, digest = await asyncio.to_thread(self._write_copy)
        except StoreDamaged as damage:
            return self._refuse(damage, asking)
        except (OSError, sqlite3.Error) as error:
            self._forget()
            reason = reason_of(error) if isinstance(error, OSError) else error
            return _CopyReply(problem=f"it cannot copy its store: {reason}")
        self._copy, self._asked_at = uuid.uuid4().hex, time.monotonic()
        return _CopyReply(self._copy, size, digest)

    def _refuse(self, damage: StoreDamaged, asking: Writer) -> _CopyReply:
        self._forget()
        if not damage.is_proven:
            return _CopyReply(problem=f"it cannot copy its store: {damage}")
        log.error("store %s is damaged (%s): %s gets no copy of it", self._store_path, damage, asking.member)
        # Damage is permanent: later requests are refused without another copy.
        self._damage = f"its store is damaged: {damage}"
        return _CopyReply(problem=self._damage)

    async def _let_go(self) -> None:
        """Interrupt a thread that reads the store: closing its file elsewhere would drop the thread's locks."""
        while (database := self._copied_from) is not None:
            with suppress(sqlite3.ProgrammingError):
                database.interrupt()
            await asyncio.sleep(_LOOK_EVERY)

    def _write_copy(self) -> tuple[int, str]:
        self._path.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(self._path, timeout=30, isolation_level=None)) as copy:
                self._copied_from = copy
                copy.executescript(_NEW_COPY)
                copy.execute("ATTACH ? AS store", (str(self._store_path),))
                tables = copy.execute(_COPIED_TABLES).fetchall()
                copy.execute("BEGIN")
                for (table,) in tables:
                    copy.execute(f"DELETE FROM {table}")  # noqa: S608 - names of ours
                    copy.execute(f"INSERT INTO {table} SELECT * FROM store.{table}")  # noqa: S608 - names of ours
                copy.execute("COMMIT")
        finally:
            self._copied_from = None
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            check_records(database)
        return self._path.stat().st_size, _digest(self._path)

    def _piece(self, offset: int) -> bytes:
        with self._path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)

    def _forget(self) -> None:
        self._copy = ""
        self._path.unlink(missing_ok=True)


async def fetch_copy(client: Client, subject: str, writer: Writer, store_path: Path) -> None:
    """Fetch a copy of the leader's store into our store's directory; raise NoCopy."""
    arrived = _arrival(store_path)
    try:
        async with asyncio.timeout(COPY_DEADLINE):
            made = _copy_reply(await _ask_for_copy(client, subject, writer))
            if made.problem:
                raise NoCopy(made.problem)
            with arrived.open("wb") as file:
                while (offset := file.tell()) < made.size:
                    piece = await _ask(client, subject, _Wish(copy=made.copy, offset=offset), ANSWER_DEADLINE)
                    if not piece:
                        raise NoCopy("the copy was given up half-way")
                    await asyncio.to_thread(file.write, piece)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if await asyncio.to_thread(_digest, arrived) != made.digest:
                raise NoCopy("what arrived is not what was sent")
    except TimeoutError as error:
        raise NoCopy("no answer") from error
    except nats.errors.NoRespondersError as error:
        raise NoCopy("it does not answer") from error
    except OSError as error:
        raise NoCopy(f"the copy cannot be written: {reason_of(error)}") from error
    except (nats.errors.Error, WireError) as error:
        raise NoCopy(str(error)) from error


def copied_lately(store_path: Path) -> bool:
    """Return True if our store was replaced by a copy a moment ago: another one would not help."""
    try:
        # A negative age means that the clock was set back: then the time of the copy is unknown.
        return 0 <= time.time() - _before(store_path).stat().st_ctime < COPY_EVERY
    except FileNotFoundError:
        return False


def adopt_copy(store_path: Path) -> None:
    """Replace our store, which is closed, by a copy that has arrived; keep ours as ``.before-copy``."""
    # The marker notes the last row of our store; rows of the other store have other numbers.
    forget(store_path)
    for suffix in ("-wal", "-shm"):
        store_path.with_name(store_path.name + suffix).unlink(missing_ok=True)
    if store_path.exists():
        store_path.replace(_before(store_path))
    _arrival(store_path).replace(store_path)


def _before(store_path: Path) -> Path:
    return store_path.with_name(store_path.name + ".before-copy")


def _arrival(store_path: Path) -> Path:
    return store_path.with_name(store_path.name + ".arrived")


async def _ask_for_copy(client: Client, subject: str, writer: Writer) -> bytes:
    """Request a copy, and wait until it is made; raise NoCopy or NoRespondersError.

    A leader that makes a copy answers nothing else until it has answered that request: an answer to another request
    means that the leader does not make ours, or has answered on a connection that was lost.
    """
    making = asyncio.create_task(_ask(client, subject, _Wish(writer=writer), COPY_DEADLINE), name="copy of the store")
    is_free = False
    try:
        while not is_cancelled():
            await asyncio.wait({making}, timeout=ANSWER_DEADLINE)
            if making.done():
                return making.result()
            if is_free:
                raise NoCopy("it was given up")
            with suppress(TimeoutError):
                await _ask(client, subject, _Wish(), ANSWER_DEADLINE)
                is_free = True
        raise asyncio.CancelledError
    finally:
        await cancel_all([making])


async def _ask(client: Client, subject: str, wish: _Wish, deadline: float) -> bytes:
    return (await request(client, subject, msgspec.json.encode(wish), deadline)).data


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, blake2b).hexdigest()

"""Drop registrations, or what is set apart, because an operator says so, counted by the cause ``operator``.

A running agent keeps books of its outbox, so it is asked, through its store, to do it. A store that no agent has is
held, so that none starts meanwhile, and the same transaction is made here.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from edge_agent.store import schema
from edge_agent.store.files import StoreInUse, StoreUnusable, hold_of
from edge_agent.store.port import LaneDepth, StoreFailing, StoreFull, StoreLocked
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from shared.decoding import Decoder

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
    """Drop what is not on its way, of one block or of all (""); give how much. Raise StoreUnusable."""
    return await _drop(path, block or EVERY_BLOCK)


async def drop_set_apart(path: Path, block: str) -> LaneDepth:
    """Drop what is set apart, of one block or of all (""); give how much. Raise StoreUnusable."""
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

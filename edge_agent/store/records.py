"""Read every record of a store that an agent would, and keep none: what is damaged within rows is found only so."""

import sqlite3

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.records import Lane
from edge_agent.store.chunks import CHUNK_BYTES, read_pending
from edge_agent.store.damage import noticing_damage
from edge_agent.store.senders import check_senders
from edge_agent.store.set_apart import set_apart_row

_MANY = 1_000


def check_records(database: sqlite3.Connection) -> None:
    """Raise StoreDamaged for the first that no agent wrote; in memory is a chunk at a time."""
    with noticing_damage():
        for number, state in database.execute("SELECT number, state FROM block").fetchall():
            msgspec.json.decode(state, type=BlockState)
            check_senders(database, number)
        for (row_id,) in database.execute("SELECT row_id FROM set_apart").fetchall():
            set_apart_row(database, row_id)
        for lane in Lane:
            after_row_id = 0
            while rows := read_pending(database, lane, after_row_id, _MANY, CHUNK_BYTES):
                after_row_id = rows[-1].row_id

"""Write what a block has decided: its state, its senders, the rows that leave, and why each of them does."""

import sqlite3

import msgspec

from edge_agent.ingest.port import BatchCommit
from edge_agent.store import schema
from edge_agent.store.decision_log import DecisionLog
from edge_agent.store.incarnations import Incarnations
from edge_agent.store.outbox_change import OutboxChange
from edge_agent.store.senders import write_senders


def write_block_batch(
    database: sqlite3.Connection,
    batch: BatchCommit,
    outbox: OutboxChange,
    incarnations: Incarnations,
    log: DecisionLog,
) -> None:
    """Write it into the transaction under way; the caller lets both books adopt it, or forget it."""
    incarnations.make_room(database)
    number = _write_block(database, batch)
    write_senders(database, number, batch.changes, incarnations)
    first_row_id = outbox.append(batch.rows)
    if batch.decisions:
        assert len(batch.decisions) == len(batch.rows), "a decision without its record"
        log.append(database, number, batch.decisions, batch.state.position.incarnation, first_row_id)
    outbox.trim()
    if batch.recorded:
        inputs = [(batch.block_id.block, msgspec.json.encode(item).decode()) for item in batch.recorded]
        database.executemany(schema.RECORD_INPUT, inputs)
        database.execute(schema.FORGET_INPUTS)


def _write_block(database: sqlite3.Connection, batch: BatchCommit) -> int:
    """Put a block's state in the place of the one before; give the block's number."""
    block_id = batch.block_id
    state = msgspec.json.encode(batch.state).decode()
    database.execute(schema.PUT_BLOCK, (block_id.block, block_id.region, block_id.site, state))
    ((number,),) = database.execute(schema.BLOCK_NUMBER, (block_id.block,))
    return int(number)

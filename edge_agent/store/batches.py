"""Transactions of the store: a batch of one block, and changes that belong to no block's batch."""

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from edge_agent.core.records import OutboxRow, TooLarge
from edge_agent.store import schema
from edge_agent.store.decision_log import DecisionLog
from edge_agent.store.outbox_change import OutboxChange
from edge_agent.store.port import BatchCommit, DroppedTooLarge, Retry
from edge_agent.store.senders import Incarnations, write_senders

OPERATOR = "operator"


class SideBatch(msgspec.Struct, frozen=True):
    """A transaction that no batch caused: status, refused records, records to send again, an operator's order.

    ``oversized`` rows were refused by their target at ``refused_at`` (the agent's clock); they are dead-lettered.
    ``dropped_blocks`` is a GLOB of blocks: their dead-lettered rows are dropped if ``drops_set_apart``, otherwise their
    registrations. ``request`` is the id of the operator's row that ordered this; it receives the answer. ``status``
    replaces all rows of the status table, since those of an earlier run or of other settings must not pass for this
    run's; None leaves the table as it is.
    """

    status: Mapping[str, str] | None = None
    oversized: Sequence[tuple[OutboxRow, TooLarge]] = ()
    refused_at: int = 0
    retry: Retry | None = None
    forgotten: Sequence[DroppedTooLarge] = ()
    dropped_blocks: str = ""
    drops_set_apart: bool = False
    request: int = 0
    unpacks: bool = False


def write_side_batch(database: sqlite3.Connection, batch: SideBatch, outbox: OutboxChange) -> None:
    if batch.unpacks:
        outbox.unpack_acknowledged()
    for row, too_large in batch.oversized:
        outbox.set_apart(row, too_large, batch.refused_at)
    if batch.retry:
        outbox.retry(batch.retry)
    if batch.forgotten:
        outbox.forget_dropped(batch.forgotten)
    if batch.dropped_blocks:
        if batch.drops_set_apart:
            outbox.drop_set_apart(batch.dropped_blocks, OPERATOR)
        else:
            outbox.drop_unsent(batch.dropped_blocks, OPERATOR)
        answer = msgspec.json.encode(outbox.dropped).decode()
        database.execute(schema.ANSWER_REQUEST, (answer, batch.request))
    if batch.status is not None:
        database.execute(schema.CLEAR_STATUS)
        database.executemany(schema.PUT_STATUS, batch.status.items())


def write_block_batch(
    database: sqlite3.Connection,
    batch: BatchCommit,
    outbox: OutboxChange,
    incarnations: Incarnations,
    log: DecisionLog,
) -> None:
    """Write a batch into the open transaction; the caller then adopts it in incarnations and log, or forgets it."""
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
    """Replace a block's state and return the block's number."""
    block_id = batch.block_id
    state = msgspec.json.encode(batch.state).decode()
    database.execute(schema.PUT_BLOCK, (block_id.block, block_id.region, block_id.site, state))
    ((number,),) = database.execute(schema.BLOCK_NUMBER, (block_id.block,))
    return int(number)

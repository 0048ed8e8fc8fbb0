"""Write what stands beside the batches of blocks: status, what an operator asks for, what was let go."""

import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from edge_agent.core.records import OutboxRow
from edge_agent.delivery.shipment import TooLarge
from edge_agent.ingest.port import DroppedTooLarge, PutBack
from edge_agent.store import schema
from edge_agent.store.outbox_change import OutboxChange

OPERATOR = "operator"


class Oversized(msgspec.Struct, frozen=True):
    """Rows that their target cannot take, and when it said so, by the agent's clock."""

    rows: Sequence[tuple[OutboxRow, TooLarge]]
    at: int


class SideBatch(msgspec.Struct, frozen=True):
    """What one transaction writes. ``dropped_blocks`` is a GLOB: of what is set apart where ``drops_set_apart``, of
    registrations where not; ``request`` is the row that asked for that, if one did, and gets the answer.

    ``status`` takes the place of all that stood there, None leaves it: what an earlier run said, or one with other
    settings, must not be taken for this one's.
    """

    status: Mapping[str, str] | None = None
    oversized: Oversized | None = None
    put_back: PutBack | None = None
    forgotten: Sequence[DroppedTooLarge] = ()
    dropped_blocks: str = ""
    drops_set_apart: bool = False
    request: int = 0
    unpacks: bool = False


def write_beside_blocks(database: sqlite3.Connection, batch: SideBatch, outbox: OutboxChange) -> None:
    """Write it into the transaction under way."""
    if batch.unpacks:
        outbox.unpack_acknowledged()
    if batch.oversized:
        for row, too_large in batch.oversized.rows:
            outbox.set_apart(row, too_large, batch.oversized.at)
    if batch.put_back:
        outbox.put_back(batch.put_back)
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

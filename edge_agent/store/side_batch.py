"""Write what stands beside the batches of blocks: status, what an operator asks for, what was let go."""

import sqlite3
from collections.abc import Mapping

import msgspec

from edge_agent.core.outgoing import OutboxRow
from edge_agent.store import schema
from edge_agent.store.outbox import OutboxChange

OPERATOR = "operator"


class SideBatch(msgspec.Struct, frozen=True):
    """What one transaction writes. ``discarded`` is a row and the cause, ``dropped_blocks`` a GLOB;
    ``request`` is the row that asked for that, if one did, and gets the answer.

    ``status`` takes the place of all that stood there, None leaves it: what an earlier run said, or one with other
    settings, must not be taken for this one's.
    """

    status: Mapping[str, str] | None = None
    discarded: tuple[OutboxRow, str] | None = None
    dropped_blocks: str = ""
    request: int = 0
    unpacks: bool = False


def write_beside_blocks(database: sqlite3.Connection, batch: SideBatch, outbox: OutboxChange) -> None:
    """Write it into the transaction under way."""
    if batch.unpacks:
        outbox.unpack_acknowledged()
    if batch.discarded:
        outbox.discard(*batch.discarded)
    if batch.dropped_blocks:
        outbox.drop_unsent(batch.dropped_blocks, OPERATOR)
        answer = msgspec.json.encode(outbox.dropped).decode()
        database.execute(schema.ANSWER_REQUEST, (answer, batch.request))
    if batch.status is not None:
        database.execute(schema.CLEAR_STATUS)
        database.executemany(schema.PUT_STATUS, batch.status.items())

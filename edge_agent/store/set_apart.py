"""Read what is set apart, because its target cannot take it, and what was dropped for its size."""

import sqlite3

import msgspec

from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.store import schema
from edge_agent.store.port import DroppedTooLarge, SetApartSum

_headers = msgspec.json.Decoder(dict[str, str]).decode


def set_apart_row(database: sqlite3.Connection, row_id: int) -> tuple[OutboxRow, int]:
    """Read a row that is set apart, without its id, and since when it is."""
    ((lane, block, at, size, subject, headers, payload),) = database.execute(schema.SET_APART_ROW, (row_id,))
    headers_size = size - len(payload) - RECORD_OVERHEAD
    return OutboxRow(Lane(lane), block, subject, _headers(headers), payload, headers_size=headers_size), at


def set_apart_sums(database: sqlite3.Connection) -> list[SetApartSum]:
    """Sum up what is set apart, by block, lane and limit."""
    return [
        SetApartSum(block, Lane(lane).name.lower(), SizeLimit(cause), *measures)
        for block, lane, cause, *measures in database.execute(schema.SET_APART_BY_LIMIT)
    ]


def dropped_too_large(database: sqlite3.Connection) -> list[DroppedTooLarge]:
    """Say what is known to have been dropped for its size."""
    return [
        DroppedTooLarge(block, TooLarge(SizeLimit(cause), needed), at)
        for block, cause, needed, at in database.execute(schema.TOO_LARGE)
    ]

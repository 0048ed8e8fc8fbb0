"""Chunks: rows that hold up to 1,000 records each, in order, for large batches.

One row per record, with its entry in an index, is most of the cost of storing, and records that arrive by the thousand
leave by the thousand moments later. A chunk is immutable: whatever concerns one of its records alone (a newer
registration, the byte limit, an operator) first unpacks it into single rows.
"""

import re
import sqlite3
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, islice

import msgspec

from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow
from edge_agent.store import schema
from edge_agent.store.port import EVERYTHING
from shared import wire
from shared.decoding import Decoder, WireError

WORTH_A_CHUNK = 100
"""Smallest number of records for a chunk: fewer are cheap as rows, and one of them may soon be replaced."""

CHUNK_ROWS = 1_000
CHUNK_BYTES = 1 << 20

_encode = msgspec.msgpack.Encoder().encode
_headers = Decoder(dict[str, str], "headers")
_decode = Decoder(list[OutboxRow], "a chunk", msgspec.msgpack)


class Chunk(msgspec.Struct, frozen=True):
    """A chunk without its records; ``size`` in bytes."""

    last_row_id: int
    first_row_id: int
    block: str
    count: int
    size: int


def put_chunks(
    database: sqlite3.Connection, lane: Lane, rows: Sequence[OutboxRow]
) -> list[tuple[Sequence[OutboxRow], int]]:
    """Append rows of one block to a lane, with their ids set; return the rows of each chunk and its size in bytes."""
    pieces = list(_pieces(rows))
    for piece, size in pieces:
        values = (piece[-1].row_id, piece[0].row_id, piece[0].block, len(piece), size, _encode(piece))
        # One at a time: a statement keeps what was bound to it, and this is large.
        database.execute(schema.PUT_CHUNK[lane], values)
    return pieces


def first_chunk_behind(database: sqlite3.Connection, lane: Lane, row_id: int) -> Chunk | None:
    """Return a lane's first chunk with rows after ``row_id``, None if there is none; copies are never in chunks."""
    if lane not in schema.CHUNKS:
        return None
    row = database.execute(schema.FIRST_CHUNK_BEHIND[lane], (row_id,)).fetchone()
    return row and Chunk(*row)


def rows_of(database: sqlite3.Connection, lane: Lane, chunk: Chunk) -> list[OutboxRow]:
    ((body,),) = database.execute(schema.CHUNK_BODY[lane], (chunk.last_row_id,))
    return _decode(body)


def read_pending(
    database: sqlite3.Connection, lane: Lane, after_row_id: int, row_limit: int, byte_limit: int = EVERYTHING
) -> list[OutboxRow]:
    """Return a lane's rows after one, in order, ending with the row that reaches ``byte_limit``."""
    rows: list[OutboxRow] = []
    size = 0
    with closing(_rows_behind(database, lane, after_row_id)) as found:
        for row in islice(found, row_limit):
            rows.append(row)
            size += row.size
            if size >= byte_limit:
                break
    return rows


def _rows_behind(database: sqlite3.Connection, lane: Lane, after_row_id: int) -> Generator[OutboxRow, None, None]:
    while True:
        chunk = first_chunk_behind(database, lane, after_row_id)
        between = after_row_id, chunk.first_row_id if chunk else schema.EVERY_ROW
        with closing(database.execute(schema.PENDING_ROWS[lane], between)) as cursor:
            for row_id, block, sender_id, size, since, subject, headers, payload in cursor:
                # Depths were counted with the size in the file, which another version may have computed differently.
                headers_size = size - len(payload) - RECORD_OVERHEAD
                yield OutboxRow(
                    lane, block, subject, _headers(headers), payload, sender_id, since, row_id, headers_size
                )
        if chunk is None:
            return
        yield from (row for row in rows_of(database, lane, chunk) if row.row_id > after_row_id)
        after_row_id = chunk.last_row_id


def _pieces(rows: Sequence[OutboxRow]) -> Iterator[tuple[Sequence[OutboxRow], int]]:
    sizes = [row.size for row in rows]
    first = 0
    while first < len(rows):
        through = list(accumulate(sizes[first : first + CHUNK_ROWS]))
        count = max(bisect_right(through, CHUNK_BYTES), 1)
        yield rows[first : first + count], through[count - 1]
        first += count


_CHORIA_MILLISECONDS = 1_000
# A relay forwards the header of its sender unchanged: a number of more digits is no instant.
_UNIX_MILLISECONDS = re.compile(r"[0-9]{1,13}")


def oldest_at(database: sqlite3.Connection, lane: Lane) -> int:
    """Return the instant of a lane's first record; 0 if the lane is empty or the record carries none."""
    return instant_of(database, lane, 1)


def instant_of(database: sqlite3.Connection, lane: Lane, row_id: int) -> int:
    """Return the instant of the first record from ``row_id`` on; 0 if there is none, or it carries none."""
    rows = read_pending(database, lane, row_id - 1, 1)
    if not rows:
        return 0
    (row,) = rows
    if lane is not Lane.ADVISORIES:
        stored_at = row.headers.get(wire.SOURCE_HEADER, "").rpartition(" ")[2]
        return int(stored_at) * _CHORIA_MILLISECONDS if _UNIX_MILLISECONDS.fullmatch(stored_at) else 0
    try:
        if row.is_watermark:
            return wire.decode_watermark(row.payload).observed_through_us
        advisory = wire.decode_advisory(row.payload)
    except WireError:
        # Damage that SQLite does not notice: a listing of the outbox must still show the rest.
        return 0
    return advisory.at_us if isinstance(advisory, wire.Advisory) else 0

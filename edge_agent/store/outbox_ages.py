"""Tell how old what waits in the outbox is: by the instant that a record speaks of, which outlives restarts."""

import re
import sqlite3

from edge_agent.core.records import Lane
from edge_agent.store.chunks import read_pending
from shared import wire

_CHORIA_MILLISECONDS = 1_000
# What a relay passes on has the header that its sender gave it: of more digits it would be no instant.
_UNIX_MILLISECONDS = re.compile(r"[0-9]{1,13}")


def oldest_at(database: sqlite3.Connection, lane: Lane) -> int:
    """Give the instant of a lane's first record; 0 where none waits, or it does not say."""
    return instant_of(database, lane, 1)


def instant_of(database: sqlite3.Connection, lane: Lane, row_id: int) -> int:
    """Give the instant that the first record from ``row_id`` on speaks of; 0 where there is none, or it says none."""
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
    except wire.WireError:
        # Damage that SQLite does not notice: whoever looks at all that waits must see the rest.
        return 0
    return advisory.at_us if isinstance(advisory, wire.Advisory) else 0

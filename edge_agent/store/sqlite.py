"""Write many rows in few statements.

A statement lets go of the interpreter's lock and takes it back for every step; with a busy event loop beside it each of
them may wait for 1 ms (``edge_agent/daemon.py``). Of many rows in one statement there is one step. But a statement,
and what was bound to it, stays in memory until it is used again: of 400 senders 0.9 MB, of 2,000 it would be 4.6.
"""

import sqlite3
from collections.abc import Callable, Sequence
from itertools import chain

ROWS_PER_STATEMENT = (400, 100, 25, 5, 1)

Row = Sequence[object]


def put_rows(database: sqlite3.Connection, statement: Callable[[int], str], rows: Sequence[Row]) -> None:
    """Write rows by the statement for so many rows."""
    written = 0
    for count in ROWS_PER_STATEMENT[:-1]:
        while len(rows) - written >= count:
            values = chain.from_iterable(rows[written : written + count])
            database.execute(statement(count), list(values))
            written += count
    if written < len(rows):
        database.executemany(statement(1), rows[written:])

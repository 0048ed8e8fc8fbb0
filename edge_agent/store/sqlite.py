"""Statements on SQLite: transactions in the connection's thread, many rows at once, and which errors are damage.

A statement releases the interpreter's lock and takes it again for every step; with a busy event loop each step may wait
for 1 ms (``edge_agent/daemon.py``). Many rows in one statement take one step. But a statement and its bound values stay
in memory until it is used again: 0.9 MB for 400 senders; 2,000 would take 4.6 MB.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import TypeVar

import aiosqlite

from shared.decoding import WireError

T = TypeVar("T")

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_NOT_READ = sqlite3.SQLITE_IOERR_READ
"""What SQLite before 3.32 (EL8) says of EIO."""
_NO_TEXT = "Could not decode to UTF-8"


class StoreDamaged(Exception):
    """The store cannot be read; the message names the damage.

    ``is_proven`` if the bytes prove it. An error of SQLite alone proves nothing: it also calls a file malformed that
    its disk fails to read (EIO).
    """

    def __init__(self, found: str, *, is_proven: bool = True) -> None:
        super().__init__(found)
        self.is_proven = is_proven


@contextmanager
def damage_detection() -> Iterator[None]:
    """Raise StoreDamaged for errors that mean damage; other errors pass unchanged."""
    try:
        yield
    except (WireError, UnicodeDecodeError) as error:
        raise StoreDamaged(str(error)) from error
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise StoreDamaged(str(error), is_proven=not may_be_the_disk(error)) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Return True if SQLite found the file damaged. Python attaches no code if a text in it is not UTF-8."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGED or code == _NOT_READ or str(error).startswith(_NO_TEXT)


def may_be_the_disk(error: sqlite3.Error) -> bool:
    """Return True if SQLite reports a disk that fails to read (SQLITE_IOERR_CORRUPTFS) in the same way."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT or code == _NOT_READ


ROWS_PER_STATEMENT = (400, 100, 25, 5, 1)

Row = Sequence[object]


def put_rows(database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Insert rows by a statement for one row, which ends in its values."""
    written, (head, values) = 0, statement.split(" VALUES ")
    # Before 3.32 (EL8) SQLite binds 999 values to a statement, now 32,766.
    most = database.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER) // values.count("?")
    for count in ROWS_PER_STATEMENT[:-1]:
        while most >= count <= len(rows) - written:
            several = f"{head} VALUES {','.join([values] * count)}"
            database.execute(several, list(chain.from_iterable(rows[written : written + count])))
            written += count
    if written < len(rows):
        database.executemany(statement, rows[written:])


async def transact(
    database: aiosqlite.Connection, write: Callable[[sqlite3.Connection], None], committed: Callable[[], None]
) -> None:
    """Write one transaction; raise the errors of in_thread(), with nothing changed in the file.

    ``committed``, which must not fail, runs after it and before this returns. Both run in the connection's thread: the
    state of the program that they read must not change meanwhile.
    """
    await in_thread(database, lambda connection: _transaction(connection, write, committed))


async def in_thread(database: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Return the result of ``work`` in the connection's thread, in one go; raise its error, or StoreDamaged."""
    # aiosqlite offers this thread's statements one at a time, and nothing public for many.
    with damage_detection():
        found: T = await database._execute(lambda: work(database._conn))  # type: ignore[no-untyped-call]  # noqa: SLF001
    return found


def _transaction(
    connection: sqlite3.Connection, write: Callable[[sqlite3.Connection], None], committed: Callable[[], None]
) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        write(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    committed()

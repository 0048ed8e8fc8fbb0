"""Write many rows in few statements.

A statement lets go of the interpreter's lock and takes it back for every step; with a busy event loop beside it each of
them may wait for 1 ms (``edge_agent/daemon.py``). Of many rows in one statement there is one step. But a statement,
and what was bound to it, stays in memory until it is used again: of 400 senders 0.9 MB, of 2,000 it would be 4.6.
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
    """The store cannot be read; the message says what was found.

    ``is_proven`` where that is what stands there. SQLite's word is none: it calls a file malformed that its disk fails
    to give (EIO), too.
    """

    def __init__(self, found: str, *, is_proven: bool = True) -> None:
        super().__init__(found)
        self.is_proven = is_proven


@contextmanager
def damage_detection() -> Iterator[None]:
    """Raise StoreDamaged for whatever says that the file is damaged, and leave all other errors as they are."""
    try:
        yield
    except (WireError, UnicodeDecodeError) as error:
        raise StoreDamaged(str(error)) from error
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise StoreDamaged(str(error), is_proven=not may_be_the_disk(error)) from error


def is_damage(error: sqlite3.Error) -> bool:
    """Tell whether SQLite found the file damaged; Python, which reads its texts, gives no code where one is none."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGED or code == _NOT_READ or str(error).startswith(_NO_TEXT)


def may_be_the_disk(error: sqlite3.Error) -> bool:
    """Tell whether SQLite says of damage what it says of a disk that fails to read (SQLITE_IOERR_CORRUPTFS), too."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_CORRUPT or code == _NOT_READ


ROWS_PER_STATEMENT = (400, 100, 25, 5, 1)

Row = Sequence[object]


def put_rows(database: sqlite3.Connection, statement: str, rows: Sequence[Row]) -> None:
    """Write rows by a statement for one, which ends in its values."""
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
    """Write one transaction; raise what in_thread() does, having changed nothing in the file.

    ``committed``, which must not fail, runs behind it, before anybody hears of it. Both run in the thread of the
    connection: what they read of the program's state must not change meanwhile.
    """
    await in_thread(database, lambda connection: _transaction(connection, write, committed))


async def in_thread(database: aiosqlite.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    """Give what ``work`` gives in the thread of the connection, in one go; raise what it raises, or StoreDamaged."""
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

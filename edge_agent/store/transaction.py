"""Run a whole transaction in SQLite's thread: its statements do not wait for a busy event loop one by one."""

import sqlite3
from collections.abc import Callable

import aiosqlite

from edge_agent.store.damage import noticing_damage


async def transact(
    database: aiosqlite.Connection, write: Callable[[sqlite3.Connection], None], committed: Callable[[], None]
) -> None:
    """Write one transaction; raise what in_thread() does, having changed nothing in the file.

    ``committed``, which must not fail, runs behind it, before anybody hears of it. Both run in the thread of the
    connection: what they read of the program's state must not change meanwhile.
    """
    await in_thread(database, lambda connection: _transaction(connection, write, committed))


async def in_thread(database: aiosqlite.Connection, work: Callable[[sqlite3.Connection], None]) -> None:
    """Run ``work`` in the thread of the connection, in one go; raise what it raises, or StoreDamaged."""
    # aiosqlite offers this thread's statements one at a time, and nothing public for many.
    with noticing_damage():
        await database._execute(lambda: work(database._conn))  # type: ignore[no-untyped-call]  # noqa: SLF001


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

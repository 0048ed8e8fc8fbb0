"""Stores as released agents wrote them, each made out of a golden file of statements."""

import sqlite3
from contextlib import closing
from pathlib import Path

STATEMENTS = Path(__file__).parents[2] / "contract" / "old_stores"


def make_old_store(path: Path, version: int) -> None:
    """Make a store of an older version, with rows in every table, as an agent left it that ended well."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA auto_vacuum=INCREMENTAL")
        database.execute("PRAGMA journal_mode=WAL")
        database.executescript((STATEMENTS / f"version_{version}.sql").read_text(encoding="utf-8"))
        database.execute(f"PRAGMA user_version={version}")
    path.with_name(path.name + ".marker").touch()

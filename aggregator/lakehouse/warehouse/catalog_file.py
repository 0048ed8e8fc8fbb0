"""Look whether the SQLite file that names the tables is whole, and make it anew from the tables' own metadata.

The file is small, and all that it knows is which of a table's metadata files is the newest. A table without it is
there, but nobody finds it: to take that for a first run would read the archive from its start into a new one, and what
the archive has let go, and what was imported, would be gone.
"""

import fcntl
import gzip
import json
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.tables.schemas import TABLES
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG, LOCK_FILE, catalog_file
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from aggregator.lakehouse.warehouse.local_paths import local_path

REMEDY = "muster-aggregator rebuild-catalog makes it anew from the tables' own metadata"
_SECONDS = 60.0
_VERSION = re.compile(r"(\d+)-.*\.metadata\.json")
_SCHEMA = """
CREATE TABLE iceberg_tables(catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
  table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
  iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE iceberg_namespace_properties(catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
  property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""
"""As Iceberg's JDBC catalog makes them, which knows views too (version V1)."""


class Rebuilt(NamedTuple):
    """What a new catalog names, and which metadata files could not be read; ``kept`` is where the old one is."""

    tables: list[str]
    unreadable: list[Path]
    kept: Path | None


class _Metadata(NamedTuple):
    version: int
    written_at: int
    location: str


def check_catalog_file(warehouse: Path) -> None:
    """Raise TablesUnreadable where the file is damaged, or names no table though tables with rows are there."""
    file = catalog_file(warehouse)
    if not (_names_a_table(file) if file.exists() else False) and _has_rows(warehouse):
        raise TablesUnreadable(f"{file} names no table, but {warehouse / NAMESPACE} holds tables with rows: {REMEDY}")


def rebuild(warehouse: Path) -> Rebuilt:
    """Make the file anew, while no job is at work; the old one is kept beside it.

    Raise TablesUnreadable where there is nothing to name, or what is there is named by other paths; AlreadyRunning.
    """
    file, tables = catalog_file(warehouse), warehouse / NAMESPACE
    unreadable: list[Path] = []
    nothing = TablesUnreadable(f"there are no tables in {tables}: nothing to make a catalog of")
    if not tables.is_dir():
        raise nothing
    with (warehouse / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"another job is at work on the tables in {warehouse}: wait for it, or end it"
            ) from error
        # Not before: what a job has just written would be named by its state before that.
        found = {table.name: _newest(tables / table.name, unreadable) for table in TABLES}
        rows = [
            (CATALOG, NAMESPACE, name, newest.location, None, "TABLE")
            for name, newest in found.items()
            if newest is not None
        ]
        if not rows:
            raise nothing
        made = file.with_name(f"{file.name}.{os.getpid()}")
        made.unlink(missing_ok=True)
        try:
            with closing(sqlite3.connect(made)) as catalog, catalog:
                catalog.executescript(_SCHEMA)
                catalog.executemany("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, ?, ?)", rows)
                exists = (CATALOG, NAMESPACE, "exists", "true")
                catalog.execute("INSERT INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)", exists)
            kept = _put_aside(file)
            made.replace(file)
        finally:
            made.unlink(missing_ok=True)
    return Rebuilt([row[2] for row in rows], unreadable, kept)


def _names_a_table(file: Path) -> bool:
    """Tell whether a catalog names any table; raise TablesUnreadable where it is damaged."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_SECONDS)) as catalog:
            (verdict,) = catalog.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise TablesUnreadable(f"{file} cannot be read: {verdict.splitlines()[-1]}: {REMEDY}")
            known = "SELECT count(*) FROM sqlite_master WHERE name = 'iceberg_tables'"
            if not catalog.execute(known).fetchone()[0]:
                return False
            named = "SELECT count(*) FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
            return bool(catalog.execute(named, (CATALOG, NAMESPACE)).fetchone()[0])
    except sqlite3.OperationalError as error:
        raise TablesUnreadable(f"{file} cannot be read: {error}") from error
    except sqlite3.DatabaseError as error:
        raise TablesUnreadable(f"{file} cannot be read: {error}: {REMEDY}") from error


def _has_rows(warehouse: Path) -> bool:
    places = (warehouse / NAMESPACE / table.name / "data" for table in TABLES)
    return any(next(place.rglob("*.parquet"), None) is not None for place in places)


def _newest(directory: Path, unreadable: list[Path]) -> _Metadata | None:
    """Give the newest metadata file of a table that can be read; name those that cannot and would come before it."""
    versions = list(_versions(directory / "metadata"))
    for version in sorted({version for version, _ in versions}, reverse=True):
        found = []
        for path in (path for each, path in versions if each == version):
            try:
                described = json.loads(
                    gzip.decompress(data) if (data := path.read_bytes())[:2] == b"\x1f\x8b" else data
                )
                location = described["location"].rstrip("/")
                assert "table-uuid" in described
                found.append(_Metadata(version, described["last-updated-ms"], f"{location}/metadata/{path.name}"))
            except (OSError, EOFError, ValueError, KeyError, TypeError, AssertionError):
                unreadable.append(path)
                continue
            if local_path(location) != str(directory):
                raise TablesUnreadable(
                    f"{path} is of the table at {location}: tables are found at the path at which they were made, so"
                    " bring them back there"
                )
        if found:
            return max(found, key=lambda each: each.written_at)
    return None


def _versions(directory: Path) -> Iterator[tuple[int, Path]]:
    for path in directory.glob("*.metadata.json"):
        version = _VERSION.fullmatch(path.name)
        if version is not None:
            yield int(version[1]), path


def _put_aside(file: Path) -> Path | None:
    """Keep the old file, and what SQLite has beside it, under a name that nothing has yet."""
    if not file.exists():
        return None
    number = 1
    while (kept := file.with_name(f"{file.name}.old-{number}")).exists():
        number += 1
    for suffix in ("", "-wal", "-shm", "-journal"):
        part = file.with_name(file.name + suffix)
        if part.exists():
            part.replace(kept.with_name(kept.name + suffix))
    return kept

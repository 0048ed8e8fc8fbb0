"""The SQLite file that names the tables: checks of it, and a new one from the metadata of the tables.

All that the file holds is which of a table's metadata files is the newest. Without it the tables are there, but nothing
finds them: a rollup that took this for a first run would read the archive from its start into new tables, and what the
archive has deleted since, and what was imported, would be lost.
"""

import fcntl
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.tables.schemas import TABLES
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG, LOCK_FILE, catalog_file
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from aggregator.lakehouse.warehouse.place import REBUILD, TablesPlace, name_of_catalog, tables_place
from aggregator.lakehouse.warehouse.relocation import Metadata, read_metadata, relocate
from shared.whole_files import replacing

REMEDY = f"{REBUILD} makes it anew from the tables' own metadata"
_SECONDS = 60.0
_SCHEMA = """
CREATE TABLE iceberg_tables(catalog_name VARCHAR(255) NOT NULL, table_namespace VARCHAR(255) NOT NULL,
  table_name VARCHAR(255) NOT NULL, metadata_location VARCHAR(1000), previous_metadata_location VARCHAR(1000),
  iceberg_type VARCHAR(5), PRIMARY KEY (catalog_name, table_namespace, table_name));
CREATE TABLE iceberg_namespace_properties(catalog_name VARCHAR(255) NOT NULL, namespace VARCHAR(255) NOT NULL,
  property_key VARCHAR(255), property_value VARCHAR(1000), PRIMARY KEY (catalog_name, namespace, property_key));
"""
"""As Iceberg's JDBC catalog makes them, which knows views too (version V1)."""


class Rebuilt(NamedTuple):
    """The result of a rebuild: the tables that the new catalog names, those of them whose paths were rewritten,
    unreadable metadata files, and the path of the old catalog, None if there was none.
    """

    tables: list[str]
    relocated: list[str]
    unreadable: list[str]
    kept: Path | None


def named_tables(file: Path) -> Mapping[str, str]:
    """Return the URLs of metadata files by the names of the tables and views that a catalog's file names.

    Raise TablesUnreadable if the file is damaged.
    """
    if not file.exists():
        return {}
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True, timeout=_SECONDS)) as catalog:
            (verdict,) = catalog.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise TablesUnreadable(f"{file} cannot be read: {verdict.splitlines()[-1]}: {REMEDY}")
            known = "SELECT count(*) FROM sqlite_master WHERE name = 'iceberg_tables'"
            if not catalog.execute(known).fetchone()[0]:
                return {}
            named = (
                "SELECT table_name, metadata_location FROM iceberg_tables"
                " WHERE catalog_name = ? AND table_namespace = ?"
            )
            return dict(catalog.execute(named, (CATALOG, NAMESPACE)))
    except sqlite3.OperationalError as error:
        raise TablesUnreadable(f"{file} cannot be read: {error}") from error
    except sqlite3.DatabaseError as error:
        raise TablesUnreadable(f"{file} cannot be read: {error}: {REMEDY}") from error


def rebuild(warehouse: Path, settings: CatalogSettings = FILE_BESIDE_THE_TABLES) -> Rebuilt:
    """Make the file again, while no job is at work; the old one is kept next to it.

    Tables that are a copy of others are relocated: the new catalog names files of the copy only. Raise TablesUnreadable
    if there is nothing to name, the copy lacks files or another catalog owns the tables; AlreadyRunning; OSError;
    SecretUnreadable.
    """
    file, place = catalog_file(warehouse), tables_place(warehouse, settings)
    if place is None:
        raise TablesUnreadable(f"the tables in {settings.warehouse} can be read by Java only: restore {file}")
    nothing = TablesUnreadable(f"there are no tables in {place.url}: nothing to make a catalog of")
    if not any(True for table in TABLES for _ in place.metadata(table.name)):
        raise nothing
    # With its warehouse elsewhere, the whole directory may be lost.
    warehouse.mkdir(parents=True, exist_ok=True)
    with (warehouse / LOCK_FILE).open("ab") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise AlreadyRunning(
                f"another job is at work on the tables in {warehouse}: wait for it, or end it"
            ) from error
        # Under the lock: a job writes new metadata.
        unreadable: list[str] = []
        found = {table.name: _newest(place, table.name, unreadable) for table in TABLES}
        tables = {name: newest for name, newest in found.items() if newest is not None}
        if not tables:
            raise nothing
        copied = [name for name, newest in tables.items() if not place.is_of(name, newest.location)]
        owner = name_of_catalog(warehouse, settings)
        if not copied:
            place.check_owner(owner)
        # Before any table is relocated: after a kill between the two, the next rebuild would find no copied table, and
        # the owner that came with the copy.
        place.claim(owner)
        located = {name: newest.url for name, newest in tables.items()}
        located |= {name: relocate(place, name, tables[name]) for name in copied}
        with replacing(file) as made:
            with closing(sqlite3.connect(made)) as catalog, catalog:
                catalog.executescript(_SCHEMA)
                rows = [(CATALOG, NAMESPACE, name, url, None, "TABLE") for name, url in located.items()]
                catalog.executemany("INSERT INTO iceberg_tables VALUES (?, ?, ?, ?, ?, ?)", rows)
                exists = (CATALOG, NAMESPACE, "exists", "true")
                catalog.execute("INSERT INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)", exists)
            kept = _put_aside(file)
    return Rebuilt(list(located), copied, unreadable, kept)


def _newest(place: TablesPlace, table: str, unreadable: list[str]) -> Metadata | None:
    """Return the newest readable metadata of a table; add the files that are newer and unreadable to ``unreadable``."""
    versions = list(place.metadata(table))
    for version in sorted({version for version, _ in versions}, reverse=True):
        found = []
        for path in (path for each, path in versions if each == version):
            try:
                found.append(read_metadata(place, table, version, path))
            except (OSError, EOFError, ValueError):
                unreadable.append(path)
        if found:
            return max(found, key=lambda each: each.written_at)
    return None


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

"""Answer SQL over the Iceberg tables without Java: pyiceberg names the files, DuckDB reads them.

Every table, also one that is still empty, and every view of ``views.py`` can be asked for by its bare name, as
``muster.<name>`` or as ``lake.muster.<name>``, so that a query reads the same here and in Spark. Tables are read at the
snapshots that the last whole run recorded: what a run is writing meanwhile, or left half done, is not seen. Nothing is
ever written.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import quote

import duckdb
from pyarrow import parquet
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, PrimitiveType, StructType
from sqlalchemy.exc import DatabaseError

from aggregator.lakehouse.query_errors import TablesUnreadable, explained
from aggregator.lakehouse.schemas import NAMESPACE, POSITIONS, VIEWS
from aggregator.lakehouse.views import duckdb_statements

CATALOG: Final = "lake"
CATALOG_FILE: Final = "catalog.db"
_LOCK_TIMEOUT_SECONDS = 60
_BATCH = 1000
_DUCKDB_TYPES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ",
    "string": "VARCHAR",
    "uuid": "UUID",
    "binary": "BLOB",
}
# A PIVOT is several statements in one.
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    # Tables are read from this machine's files; nothing is ever fetched to answer a query.
    "SET autoinstall_known_extensions = false",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"CREATE SCHEMA {CATALOG}.{NAMESPACE}",
    f"USE {CATALOG}.{NAMESPACE}",
)


class Answer(NamedTuple):
    """The columns' names, and the rows as tuples, in their order."""

    names: tuple[str, ...]
    rows: Iterator[Any]


class Tables:
    """Hold the tables open for queries, at one state for its whole life. A context manager."""

    def __init__(self, catalog: SqlCatalog, names: Iterable[str]) -> None:
        self._catalog = catalog
        self._views = {view.name: sql for view, sql in zip(VIEWS, duckdb_statements(), strict=True)}
        self._tables = sorted(names)
        self._registered: set[str] = set()
        self._connection = duckdb.connect()
        for setting in _SETTINGS:
            self._connection.execute(setting)
        self._snapshots: Mapping[str, int] = {}
        if POSITIONS.name in self._tables:
            self._snapshots = dict(self.rows("SELECT table_name, snapshot_id FROM positions WHERE snapshot_id > 0"))

    @property
    def names(self) -> tuple[str, ...]:
        """Give what can be asked for: tables and views, in order."""
        return tuple(sorted([*self._tables, *self._views]))

    def answer(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> Answer:
        """Run one statement; its rows are there until the next one is run.

        Raise TablesUnreadable, also while rows are fetched, where it cannot be answered; its text is one clear line.
        """
        with self._errors_in_words(sql):
            self._register_mentioned(sql)
            cursor = self._connection.execute(sql, parameters)
        return Answer(tuple(column[0] for column in cursor.description or ()), self._fetched(sql, cursor))

    def rows(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run one statement and give all its rows, as tuples. Raise as ``answer``."""
        return list(self.answer(sql, parameters).rows)

    def write_parquet(self, sql: str, file: Path) -> int:
        """Write the answer to one statement as Parquet, the columns' types kept; give its rows. Raise as ``answer``."""
        with self._errors_in_words(sql):
            self._register_mentioned(sql)
            self._connection.sql(sql).write_parquet(str(file), compression="zstd")
        return int(parquet.read_metadata(file).num_rows)

    def load(self, name: str) -> tuple[Table, Snapshot | None]:
        """Give a table and the state in which it is read, None while it never had one; raise TablesUnreadable."""
        try:
            table = self._catalog.load_table((NAMESPACE, name))
        except (OSError, DatabaseError) as error:
            reason = error.orig if isinstance(error, DatabaseError) else error
            raise TablesUnreadable(f"{NAMESPACE}.{name} cannot be read: {reason}") from error
        recorded = self._snapshots.get(name)
        # One that was expired since is passed over for the current one: maintenance changes no rows.
        snapshot = table.snapshot_by_id(recorded) if recorded is not None else None
        return table, snapshot or table.current_snapshot()

    def interrupt(self) -> None:
        """End the statement that another thread runs."""
        self._connection.interrupt()

    def read_only_statement(self, sql: str) -> str:
        """Give ``sql`` back where it is one statement that only reads; raise TablesUnreadable where it is not."""
        with self._errors_in_words(sql):
            statements = list(self._connection.extract_statements(sql))
        if len(statements) != 1:
            raise TablesUnreadable(f"one statement at a time, please: there are {len(statements)}")
        if statements[0].type not in _READING:
            raise TablesUnreadable("the tables are written by rollup alone: begin with SELECT, WITH, DESCRIBE or SHOW")
        return sql

    def close(self) -> None:
        """Let the files go."""
        self._connection.close()
        self._catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetched(self, sql: str, cursor: duckdb.DuckDBPyConnection) -> Iterator[Any]:
        """Give rows as they are needed: an answer may be larger than memory."""
        while True:
            with self._errors_in_words(sql):
                batch = cursor.fetchmany(_BATCH)
            if not batch:
                return
            yield from batch

    @contextmanager
    def _errors_in_words(self, sql: str) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            self._register(self.names)
            raise TablesUnreadable(explained(error, sql, self._columns())) from error
        except RuntimeError as error:
            # What DuckDB makes of Ctrl-C.
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from error
            raise

    def _register_mentioned(self, sql: str) -> None:
        """Make what the statement speaks of known to DuckDB: to list the files of every table takes its time."""
        mentioned = _mentioned(sql, self.names)
        # A statement that names none of them may list them all, or put a name together.
        self._register(mentioned or self.names)

    def _register(self, names: Iterable[str]) -> None:
        wanted = set(names)
        # A view stands behind those that it rests on.
        for view in reversed(self._views):
            if view in wanted:
                wanted.update(_mentioned(self._views[view], self.names))
        for name in sorted(wanted & set(self._tables) - self._registered):
            try:
                select = _select(*self.load(name))
            except OSError as error:
                raise TablesUnreadable(f"{NAMESPACE}.{name} cannot be read: {error}") from error
            self._connection.execute(f'CREATE VIEW "{name}" AS {select}')
            self._registered.add(name)
        for name, statement in self._views.items():
            if name in wanted - self._registered and self._registered.issuperset(self._rested_on(name)):
                self._connection.execute(statement)
                self._registered.add(name)

    def _rested_on(self, view: str) -> set[str]:
        return set(_mentioned(self._views[view], self.names)) - {view}

    def _columns(self) -> dict[str, tuple[str, ...]]:
        """Give the columns of every table and view."""
        columns: dict[str, tuple[str, ...]] = dict.fromkeys(self.names, ())
        query = "SELECT table_name, list(column_name ORDER BY ordinal_position) FROM information_schema.columns"
        rows = self._connection.execute(f"{query} WHERE table_schema = ? GROUP BY 1", [NAMESPACE]).fetchall()
        return columns | {name: tuple(found) for name, found in rows}


def open_tables(warehouse: Path) -> Tables:
    """Open the tables below ``warehouse``; raise TablesUnreadable where there are none yet."""
    file = warehouse / CATALOG_FILE
    none_yet = TablesUnreadable(f"there are no tables in {warehouse} yet: run muster-aggregator rollup first")
    if not file.exists():
        raise none_yet
    try:
        # Without init_catalog_tables a catalog is only read, and mode=ro keeps SQLite to that.
        catalog = SqlCatalog(
            CATALOG,
            uri=f"sqlite:///file:{quote(str(file))}?mode=ro&timeout={_LOCK_TIMEOUT_SECONDS}&uri=true",
            warehouse=f"file://{warehouse}",
            init_catalog_tables="false",
        )
        names = [identifier[-1] for identifier in catalog.list_tables(NAMESPACE)]
        if names:
            return Tables(catalog, names)
    except NoSuchNamespaceError:
        pass
    except DatabaseError as error:
        raise TablesUnreadable(f"{file} cannot be read: {error.orig}") from error
    raise none_yet


def _mentioned(sql: str, names: Iterable[str]) -> list[str]:
    words = set(re.findall(r"\w+", sql.lower()))
    return [name for name in names if name.lower() in words]


def _select(table: Table, snapshot: Snapshot | None) -> str:
    """Give the SQL that reads a table: its columns are found by their Iceberg ids, whatever they were once called."""
    files = list(_files(table, snapshot)) if snapshot is not None else []
    fields = table.schema().fields
    if not files:
        columns = ", ".join(f'CAST(NULL AS {duckdb_type(field.field_type)}) AS "{field.name}"' for field in fields)
        return f"SELECT {columns} WHERE false"
    by_id = ", ".join(
        f"{field.field_id}: {{name: {_quoted(field.name)}, type: {_quoted(duckdb_type(field.field_type))},"
        " default_value: NULL}"
        for field in fields
    )
    listed = ", ".join(map(_quoted, files))
    # Names and paths come out of the catalog, each of them quoted.
    return f"SELECT * FROM read_parquet([{listed}], schema = MAP {{{by_id}}}, hive_partitioning = false)"  # noqa: S608


def _files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
        if task.delete_files:
            raise TablesUnreadable(
                f"{NAMESPACE}.{table.name()[-1]} has delete files, which only Spark reads: it must be copy-on-write"
            )
        # DuckDB takes * ? [ in a path for a pattern; in brackets each stands for itself.
        yield re.sub(r"([*?\[])", r"[\1]", task.file.file_path.removeprefix("file://"))


def duckdb_type(kind: IcebergType) -> str:
    """Name an Iceberg type in DuckDB's words."""
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if isinstance(kind, MapType):
        return f"MAP({duckdb_type(kind.key_type)}, {duckdb_type(kind.value_type)})"
    if isinstance(kind, ListType):
        return f"{duckdb_type(kind.element_type)}[]"
    if isinstance(kind, StructType):
        fields = ", ".join(f'"{field.name}" {duckdb_type(field.field_type)}' for field in kind.fields)
        return f"STRUCT({fields})"
    name = str(kind) if isinstance(kind, PrimitiveType) else ""
    if name not in _DUCKDB_TYPES:
        raise TablesUnreadable(f"a column of Iceberg's type {kind} can be read by Spark only")
    return _DUCKDB_TYPES[name]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

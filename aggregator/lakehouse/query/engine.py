"""Answer SQL over the Iceberg tables without Java: pyiceberg names the files, DuckDB reads them.

Every table, also one that is still empty, and every view of ``views.py`` can be asked for by its bare name, as
``muster.<name>`` or as ``lake.muster.<name>``, so that a query reads the same here and in Spark. Tables are read at the
snapshots that the last whole run recorded: what a run is writing meanwhile, or left half done, is not seen. Nothing is
ever written.
"""

import re
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit
from uuid import uuid4

import duckdb
from duckdb.func import FunctionNullHandling
from pyarrow import Table as ArrowTable
from pyarrow import parquet
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import RESTError
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from sqlalchemy.exc import SQLAlchemyError

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from aggregator.lakehouse.query.packed_content import FUNCTIONS
from aggregator.lakehouse.query.table_scan import create_table_view, pattern_of, quoted
from aggregator.lakehouse.tables.schemas import NAMESPACE, POSITIONS, TABLES, VIEWS
from aggregator.lakehouse.tables.view_sql import duckdb_statements
from aggregator.lakehouse.warehouse.catalog import open_catalog, reason_of
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG
from aggregator.lakehouse.warehouse.errors import TablesUnreadable, explained

# A PIVOT is several statements in one.
_READING = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN, duckdb.StatementType.MULTI)
_BEGINNING = re.compile("select|with|from|values|table|pivot(_wider|_longer)?|unpivot|desc(ribe)?|show|summarize")
_ROLLUP_ALONE = "writes, and the tables are written by rollup alone"
_WRITERS = {
    "copy": "writes files, which sql does not: --parquet does, and --format csv",
    **dict.fromkeys(("delete", "insert", "merge", "truncate", "update"), _ROLLUP_ALONE),
}
"""The words of statements that may stand within one that reads, or behind its WITH, also in an EXPLAIN."""
_ANALYZE = ("analyze", "analyse")
_READERS = re.compile(
    "read_(blob|text|parquet|csv|csv_auto|(nd)?json(_objects)?(_auto)?)|parquet_[a-z_]+|sniff_csv|glob|query_table"
    "|duckdb_[a-z_]+|pragma_[a-z_]+|json_each|json_tree|range|generate_series|repeat|repeat_row|unnest|summary"
    "|histogram|histogram_values|icu_calendar_names|pg_timezone_names"
)
"""The functions in a FROM that read, and do nothing else: ``query`` runs any text as a statement."""


def check_only_reads(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    """Raise TablesUnreadable where ``sql`` is not one statement that only reads, duckdb.Error where it is no SQL."""
    statements = connection.extract_statements(sql)
    if len(statements) != 1:
        raise TablesUnreadable(f"one statement at a time, please: there are {len(statements)}")
    words = _words(sql)
    explained = _explained(words) if words[:1] == ["explain"] else words
    beginning = next((word for word in explained if word != "("), "")
    writer = next((word for word in words if word in _WRITERS), "")
    reads = statements[0].type in _READING
    # The writer behind a WITH is named below: such a statement begins as it should.
    if not _BEGINNING.fullmatch(beginning) or not (reads or writer):
        raise TablesUnreadable("the tables are written by rollup alone: begin with SELECT, WITH, DESCRIBE or SHOW")
    called = {word.strip('"') for word, following in pairwise(words) if following == "("}
    for name in sorted(called & _doing()):
        raise TablesUnreadable(
            f"{name}() may do more than read the tables, so sql has no such function (is it a name of your own:"
            " call it otherwise)"
        )
    if writer:
        hint = " (a column of that name must be quoted)" if reads else ""
        raise TablesUnreadable(f"{writer.upper()} {_WRITERS[writer]}{hint}")


def _words(sql: str) -> list[str]:
    """Give the words, the quoted names and the parentheses of ``sql``, but for those in comments and texts.

    DuckDB counts in bytes, and takes characters for space that Python and its own ``tokenize`` count among a word's.
    """
    encoded, tokens = sql.encode(), duckdb.tokenize(sql)
    ends = [*(offset for offset, _ in tokens[1:]), len(encoded)]
    words = []
    for (offset, kind), end in zip(tokens, ends, strict=True):
        if kind not in (duckdb.token_type.comment, duckdb.token_type.string_const):
            words += re.findall(r'"(?:[^"]|"")*"|\w+|[()]', encoded[offset:end].decode().lower())
    return words


@cache
def _doing() -> frozenset[str]:
    """Name the functions in a FROM that may do more than read."""
    with duckdb.connect() as connection:
        found = connection.execute(
            "SELECT function_name FROM duckdb_functions() WHERE function_type = 'table'"
        ).fetchall()
    return frozenset(name.lower() for (name,) in found if not _READERS.fullmatch(name))


def _explained(words: list[str]) -> list[str]:
    """Leave out EXPLAIN with its options: what stands in the first parentheses, unless that is a query."""
    rest = words[2:] if words[1:2] and words[1] in _ANALYZE else words[1:]
    if rest[:1] == ["("] and not any(word == "(" or _BEGINNING.fullmatch(word) for word in rest[1:2]):
        rest = rest[rest.index(")") + 1 :]
    return rest


_LENGTH = "interval"
_KEPT_AS = {"hugeint": "DECIMAL(38, 0)", "uhugeint": "DECIMAL(38, 0)", _LENGTH: "VARCHAR"}


def parquet_columns(names: Sequence[str], types: Sequence[Any]) -> str | None:
    """Write the SELECT list that makes columns of ``types`` ones that Parquet has; None where they are all.

    Sums become DECIMAL(38, 0), and lengths of time a BIGINT of microseconds, a month counted as 30 days; a length
    within a list, a map or a structure becomes text. ``names`` may repeat: columns go by their place.
    """
    kept = [_kept(kind) for kind in types]
    if kept == [str(kind) for kind in types]:
        return None
    columns = []
    for place, (name, kind, wanted) in enumerate(zip(names, types, kept, strict=True), start=1):
        value = f"epoch_us(#{place})" if kind.id == _LENGTH else f"CAST(#{place} AS {wanted})"
        columns.append(f"#{place}" if wanted == str(kind) else f"{value} AS {_quoted(name)}")
    return ", ".join(columns)


def _kept(kind: Any) -> str:
    """Name the type of Parquet's that holds all of a type of DuckDB's."""
    if kind.id in _KEPT_AS:
        return _KEPT_AS[kind.id]
    if kind.id not in ("list", "array", "map", "struct"):
        return str(kind)
    children = dict(kind.children)
    if kind.id == "list":
        return f"{_kept(children['child'])}[]"
    if kind.id == "array":
        return f"{_kept(children['child'])}[{children['size']}]"
    if kind.id == "map":
        return f"MAP({_kept(children['key'])}, {_kept(children['value'])})"
    return f"STRUCT({', '.join(f'{_quoted(name)} {_kept(child)}' for name, child in children.items())})"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


_BATCH = 1000
_KNOWN = tuple(table.name for table in (*TABLES, *VIEWS))
_SETTINGS = (
    "SET TimeZone = 'UTC'",
    # Tables are read from this machine's files; nothing is ever fetched to answer a query.
    "SET autoinstall_known_extensions = false",
    # Else a name that is no table's would be looked for among the variables of the program that asks.
    "SET python_enable_replacements = false",
    # It would stand in the answer.
    "SET enable_progress_bar = false",
    # A year's query opens each of some thousand files several times; a table's file never changes.
    "SET parquet_metadata_cache = true",
    # What it spills it may also read: the directory of whoever asks is not for that. DuckDB makes and removes it.
    f"SET temp_directory = {quoted(f'{tempfile.gettempdir()}/muster-sql-{uuid4()}')}",
    f"ATTACH ':memory:' AS {CATALOG}",
    f"CREATE SCHEMA {CATALOG}.{NAMESPACE}",
    f"USE {CATALOG}.{NAMESPACE}",
)


def _confinement(location: str, output: Path | None) -> Iterator[str]:
    """Let DuckDB read what lies below ``location``, if it is of this machine, write ``output``, and nothing else."""
    if urlsplit(location).scheme in ("", "file"):
        # It is asked for files by their pattern, and looks up what the pattern stands for.
        places = {location.removeprefix("file://"), pattern_of(location)}
        yield f"SET allowed_directories = [{', '.join(quoted(f'{place}/') for place in sorted(places))}]"
    if output is not None:
        yield f"SET allowed_paths = [{quoted(str(output))}]"
    yield "SET enable_external_access = false"
    # Else a SELECT could have DuckDB write its log, or a profile of the query, into any file.
    yield "SET lock_configuration = true"


class QueryAnswer(NamedTuple):
    """The columns' names, and the rows as tuples, in their order."""

    names: tuple[str, ...]
    rows: Iterator[Any]


class Tables:
    """Hold the tables open for queries, at one state for its whole life. A context manager.

    DuckDB can open no file but the tables' own, and ``output``, the one that ``write_parquet`` is to write.
    """

    def __init__(self, catalog: Catalog, names: Iterable[str], output: Path | None = None) -> None:
        self._catalog = catalog
        self._views = {view.name: sql for view, sql in zip(VIEWS, duckdb_statements(), strict=True)}
        self._tables = sorted(names)
        self._registered: set[str] = set()
        self._snapshots: Mapping[str, int] = {}
        self._asked_at: float | None = None
        self._asked_seconds = 0.0
        self._connection = duckdb.connect()
        # All tables lie in one directory, that of their namespace.
        known = POSITIONS.name if POSITIONS.name in self._tables else self._tables[0]
        place = self.load(known)[0].location().rpartition("/")[0]
        for setting in (*_SETTINGS, *_confinement(place, output)):
            self._connection.execute(setting)
        for name, function in FUNCTIONS.items():
            self._connection.create_function(
                name, function, ["VARCHAR"], "VARCHAR", null_handling=FunctionNullHandling.SPECIAL
            )
        # Whoever forgets to close would be told of DuckDB's leaks when Python ends: a page of them.
        weakref.finalize(self, self._connection.close)
        self._recorded_as: int | None = None
        if POSITIONS.name in self._tables:
            self._recorded_as = self.load(POSITIONS.name)[0].metadata.current_snapshot_id
            self._snapshots = dict(self.rows("SELECT table_name, snapshot_id FROM positions WHERE snapshot_id > 0"))

    @property
    def is_asking(self) -> bool:
        """Tell whether a statement is being run, and not its answer read."""
        return self._asked_at is not None

    @property
    def asked_seconds(self) -> float:
        """Give for how long statements have been run so far."""
        asked_at = self._asked_at
        return self._asked_seconds + (time.monotonic() - asked_at if asked_at is not None else 0.0)

    @property
    def names(self) -> tuple[str, ...]:
        """Give what can be asked for: tables and views, in order."""
        return tuple(sorted([*self._tables, *self._views]))

    def answer(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> QueryAnswer:
        """Run one statement; its rows are there until the next one is run.

        Raise TablesUnreadable, also while rows are fetched, where it cannot be answered; its text is one clear line.
        """
        with self._errors_in_words(sql):
            self._register_mentioned(sql)
            cursor = self._connection.execute(sql, parameters)
        return QueryAnswer(tuple(column[0] for column in cursor.description or ()), self._fetched(sql, cursor))

    def rows(self, sql: str, parameters: Sequence[object] | Mapping[str, object] = ()) -> list[Any]:
        """Run one statement and give all its rows, as tuples. Raise as ``answer``."""
        return list(self.answer(sql, parameters).rows)

    def arrow(self, sql: str) -> ArrowTable:
        """Run one statement and give its answer as a table of pyarrow's. Raise as ``answer``."""
        with self._errors_in_words(sql):
            self._register_mentioned(sql)
            return self._connection.sql(sql).to_arrow_table()

    def write_parquet(self, sql: str, file: Path) -> int:
        """Write the answer to one statement as Parquet, the columns' types kept as ``parquet_columns`` says.

        Give its rows. Raise as ``answer``.
        """
        with self._errors_in_words(sql):
            self._register_mentioned(sql)
            answer = self._connection.sql(sql)
            columns = parquet_columns(answer.columns, answer.types)
            kept = answer if columns is None else answer.project(columns)
            kept.write_parquet(str(file), compression="zstd")
        return int(parquet.read_metadata(file).num_rows)

    def load(self, name: str) -> tuple[Table, Snapshot | None]:
        """Give a table and the state in which it is read, None while it never had one; raise TablesUnreadable."""
        try:
            table = self._catalog.load_table((NAMESPACE, name))
        except (OSError, SQLAlchemyError, RESTError) as error:
            raise TablesUnreadable(f"{NAMESPACE}.{name} cannot be read: {reason_of(error)}") from error
        recorded = self._snapshots.get(name)
        snapshot = table.snapshot_by_id(recorded) if recorded is not None else None
        if recorded is not None and snapshot is None and self._are_recorded_anew():
            raise TablesUnreadable(
                f"{NAMESPACE}.{name} is not there any more as it was when the tables were opened ([lakehouse]"
                " keep_snapshots): open them anew"
            )
        # One that another program expired is passed over for the current one: maintenance changes no rows.
        return table, snapshot or table.current_snapshot()

    def interrupt(self) -> None:
        """End the statement that another thread runs."""
        self._connection.interrupt()

    def read_only_statement(self, sql: str) -> str:
        """Give ``sql`` back where it is one statement that only reads; raise TablesUnreadable where it is not."""
        with self._errors_in_words(sql):
            check_only_reads(self._connection, sql)
        return sql

    def close(self) -> None:
        self._connection.close()
        self._catalog.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
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
        self._asked_at = time.monotonic()
        try:
            yield
        except duckdb.Error as error:
            self._register(self.names)
            raise TablesUnreadable(explained(error, sql, self._columns())) from error
        except OverflowError as error:
            raise TablesUnreadable(
                f"Python has no such length of time or instant ({error}): CAST it AS VARCHAR"
            ) from error
        except RuntimeError as error:
            # What DuckDB makes of Ctrl-C.
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from error
            raise
        finally:
            self._asked_seconds, self._asked_at = self.asked_seconds, None

    def _register_mentioned(self, sql: str) -> None:
        """Make what the statement speaks of known to DuckDB: to list the files of every table takes its time."""
        mentioned = _mentioned(sql, self.names)
        # A statement that names none of them may list them all, or put a name together.
        self._register(mentioned or self.names)
        for name in mentioned:
            if name not in self._registered:
                raise TablesUnreadable(
                    f"{name} needs tables or columns that are new in this version: run muster-aggregator rollup"
                )

    def _register(self, names: Iterable[str]) -> None:
        wanted = set(names)
        # A view stands behind those that it rests on.
        for view in reversed(self._views):
            if view in wanted:
                wanted.update(_mentioned(self._views[view], self.names))
        for name in sorted(wanted & set(self._tables) - self._registered):
            try:
                create_table_view(self._connection, name, *self.load(name))
            except OSError as error:
                raise TablesUnreadable(f"{NAMESPACE}.{name} cannot be read: {error}") from error
            self._registered.add(name)
        for name, statement in self._views.items():
            if name in wanted - self._registered and self._registered.issuperset(self._rested_on(name)):
                # Tables of an older version may lack a column, until the next rollup.
                with suppress(duckdb.BinderException):
                    self._connection.execute(statement)
                    self._registered.add(name)

    def _are_recorded_anew(self) -> bool:
        """Tell whether a run ended since the tables were opened: what is there now belongs to another state."""
        return self.load(POSITIONS.name)[0].metadata.current_snapshot_id != self._recorded_as

    def _rested_on(self, view: str) -> set[str]:
        return set(_mentioned(self._views[view], _KNOWN)) - {view}

    def _columns(self) -> dict[str, tuple[str, ...]]:
        columns: dict[str, tuple[str, ...]] = dict.fromkeys(self.names, ())
        query = "SELECT table_name, list(column_name ORDER BY ordinal_position) FROM information_schema.columns"
        rows = self._connection.execute(f"{query} WHERE table_schema = ? GROUP BY 1", [NAMESPACE]).fetchall()
        return columns | {name: tuple(found) for name, found in rows}


def open_tables(
    warehouse: Path, catalog: CatalogSettings = FILE_BESIDE_THE_TABLES, output: Path | None = None
) -> Tables:
    """Open the tables below ``warehouse``, or those that ``catalog`` names; raise TablesUnreadable where none are.

    ``output`` is the file that ``write_parquet`` may write.
    """
    return Tables(*open_catalog(warehouse, catalog), output)


def _mentioned(sql: str, names: Iterable[str]) -> list[str]:
    words = set(re.findall(r"\w+", sql.lower()))
    return [name for name in names if name.lower() in words]

"""Give DuckDB one Iceberg table to read: pyiceberg names the files of a snapshot, DuckDB reads them.

Files on this machine DuckDB reads by itself. Others come through pyiceberg's own file system, as Arrow: DuckDB's
extensions for object stores would have to be fetched.
"""

import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import duckdb
from pyarrow import dataset
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import DecimalType, IcebergType, ListType, MapType, PrimitiveType, StructType

from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.warehouse.errors import TablesUnreadable

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


def create_table_view(
    connection: duckdb.DuckDBPyConnection, name: str, table: Table, snapshot: Snapshot | None
) -> None:
    """Make the view ``name`` of a table as a snapshot has it, None: empty; raise TablesUnreadable, OSError."""
    files = list(_files(table, snapshot)) if snapshot is not None else []
    if not files or all(urlsplit(file).scheme in ("", "file") for file in files):
        select = _select(table, [pattern_of(file) for file in files])
    else:
        source = f"files of {name}"
        connection.register(source, _remote(table, files))
        select = f'SELECT * FROM temp."{source}"'  # noqa: S608 - a name of ours
    connection.execute(f'CREATE VIEW "{name}" AS {select}')


def _select(table: Table, files: list[str]) -> str:
    """Give the SQL that reads local files: columns are found by their Iceberg ids, whatever they were once called."""
    fields = table.schema().fields
    if not files:
        columns = ", ".join(f'CAST(NULL AS {duckdb_type(field.field_type)}) AS "{field.name}"' for field in fields)
        return f"SELECT {columns} WHERE false"
    by_id = ", ".join(
        f"{field.field_id}: {{name: {quoted(field.name)}, type: {quoted(duckdb_type(field.field_type))},"
        " default_value: NULL}"
        for field in fields
    )
    listed = ", ".join(map(quoted, files))
    # Names and paths come out of the catalog, each of them quoted.
    return f"SELECT * FROM read_parquet([{listed}], schema = MAP {{{by_id}}}, hive_partitioning = false)"  # noqa: S608


def _files(table: Table, snapshot: Snapshot) -> Iterator[str]:
    for task in table.scan(snapshot_id=snapshot.snapshot_id).plan_files():
        if task.delete_files:
            raise TablesUnreadable(
                f"{NAMESPACE}.{table.name()[-1]} has delete files, which only Spark reads: it must be copy-on-write"
            )
        yield task.file.file_path


def pattern_of(file: str) -> str:
    """Write a local file for DuckDB, which takes * ? [ in a path for a pattern; in brackets each stands for itself."""
    return re.sub(r"([*?\[])", r"[\1]", file.removeprefix("file://"))


def _remote(table: Table, files: list[str]) -> dataset.Dataset:
    """Read files of an object store with the credentials and the end point that the catalog has."""
    scheme, netloc, _ = PyArrowFileIO.parse_location(files[0])
    filesystem = PyArrowFileIO(table.io.properties).fs_by_scheme(scheme, netloc)
    paths = [PyArrowFileIO.parse_location(file)[2] for file in files]
    schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
    return dataset.dataset(paths, schema=schema, format="parquet", filesystem=filesystem)


def duckdb_type(kind: IcebergType) -> str:
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


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

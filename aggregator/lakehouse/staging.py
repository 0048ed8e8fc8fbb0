"""Write advisories as data files of their table while they are read: no snapshot knows the files until one adds them.

A task holds its slice's advisories in columns, and writes one file for each day at its end. When reading fails, the
files go; those of a job that is killed, or of a task that runs twice, are orphans, which upkeep removes. This is done
where the table's files are in a file system; elsewhere Spark writes, which knows every kind of store.
"""

import base64
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet


class StagedFile(msgspec.Struct, frozen=True):
    """One data file, by its name below the table's; ``day`` is its partition, as a date."""

    name: str
    day: str
    row_count: int


class Place(msgspec.Struct, frozen=True):
    """Where a table's files go, the columns that they have, and the sequence through which the table has its rows.

    ``location`` is what the table calls its ``directory``. ``schema`` is Arrow's, in base 64; each field has Iceberg's
    number for it. ``chunk`` begins the names of the files of one reading.
    """

    location: str
    directory: str
    schema: str
    after: int
    chunk: str

    @classmethod
    def of(cls, location: str, schema: pa.Schema, after: int) -> "Place | None":
        """Name the place of a table at a URL; None where that is not in a file system."""
        directory = local_path(location)
        if directory is None:
            return None
        described = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return cls(location, directory, described, after, uuid4().hex)

    def arrow_schema(self) -> pa.Schema:
        """Give the columns."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def path(self, file: StagedFile) -> Path:
        """Say where a file is."""
        return Path(self.directory, file.name)

    def forget(self) -> None:
        """Remove what tasks have written, where no commit can know of it."""
        for path in Path(self.directory).glob(f"data/*/{self.chunk}-*.parquet"):
            path.unlink(missing_ok=True)


def local_path(location: str) -> str | None:
    """Give the path of a URL in a file system, None for another kind of store.

    >>> local_path("file:///srv/lake/muster/advisories"), local_path("file:/srv/lake"), local_path("s3://lake/muster")
    ('/srv/lake/muster/advisories', '/srv/lake', None)
    """
    path = location.removeprefix("file:")
    return "/" + path.lstrip("/") if path.startswith("/") else None


def stage(batches: Sequence[pa.RecordBatch], place: Place) -> list[StagedFile]:
    """Write the rows that the table has not, one file for each day on which they happened."""
    rows = pa.Table.from_batches(batches)
    rows = rows.filter(pc.greater(rows["hub_sequence"], place.after)) if place.after else rows
    days = rows["occurred_at"].cast(pa.date32())
    found = pc.unique(days)
    if len(found) <= 1:
        return [_write(rows, str(day), place) for day in found]
    return [_write(rows.filter(pc.equal(days, day)), str(day), place) for day in found]


def _write(rows: pa.Table, day: str, place: Place) -> StagedFile:
    name = f"data/occurred_at_day={day}/{place.chunk}-{uuid4()}.parquet"
    path = Path(place.directory, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(rows, path, compression="zstd")
    return StagedFile(name, day, rows.num_rows)

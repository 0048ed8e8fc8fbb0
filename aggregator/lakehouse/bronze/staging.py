"""Write advisories as data files of their table while they are read: no snapshot knows the files until one adds them.

A task holds its slice's advisories in columns, and writes one file for each day at its end, or for each month where
they are of many days. All other messages, and
advisories to quarantine, go into a file of their own beside them. When reading fails, the files go; those of a job that
is killed, or of a task that runs twice, are orphans, which upkeep removes. This is done where the table's files are in
a file system; elsewhere Spark reads and writes, which knows every kind of store.
"""

import base64
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Self, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pandas.util import hash_array
from pyarrow import parquet

from aggregator.archive.hub_clock import HubClock
from aggregator.lakehouse.archive.hub_time import ClockReport, SliceClock
from aggregator.lakehouse.archive.slices import StreamSlices
from aggregator.lakehouse.bronze.advisories import decode
from aggregator.lakehouse.bronze.spark_source import ARROW_SCHEMA, rows_of_others
from aggregator.lakehouse.warehouse.local_paths import local_path, remove
from aggregator.records.judge import LOOK_BACK
from shared.identifiers import BlockId

FEW_DAYS = 3
"""Of so many a run writes a file each, since their rows are many where a fleet is large: what one replaces or forgets
are days. Of more it writes a file for each month, since each would have few."""
_MOST_DIGITS = 18
"""Of what fits into a BIGINT whatever the digits are."""
Fingerprints: TypeAlias = np.ndarray[tuple[int], np.dtype[np.uint64]]


def fingerprints(event_ids: pa.ChunkedArray) -> Fingerprints:
    """Give those of advisories: which block one is of is left out, for its id stands for that too.

    >>> one, other, same = fingerprints(pa.chunked_array([["a", "b"], ["a"]]))
    >>> one == same, one == other
    (np.True_, np.False_)
    """
    found: Fingerprints = hash_array(event_ids.to_numpy(), categorize=False)
    return found


def have_any(wanted: Fingerprints, paths: Iterable[str]) -> Iterator[bool]:
    """Say of each data file of advisories whether it has any of ``wanted``, which are sorted and at least one."""
    for path in paths:
        with parquet.ParquetFile(path) as file:
            yield any(_overlap(wanted, batch) for batch in file.iter_batches(columns=["event_id"]))


def _overlap(wanted: Fingerprints, batch: pa.RecordBatch) -> bool:
    found = fingerprints(pa.chunked_array([batch.column("event_id")]))
    places = np.minimum(np.searchsorted(wanted, found), len(wanted) - 1)
    return bool((wanted[places] == found).any())


class StagedFile(msgspec.Struct, frozen=True):
    """One data file, by its name below the table's, of rows of ``days``: its ``partition`` is one, or their month."""

    name: str
    partition: str
    days: Sequence[date]
    row_count: int


class StagedSlice(msgspec.Struct, frozen=True):
    """What a task has staged of ``sequences``, both ends included, and what these did to the hub's clock (``clock``).

    ``fingerprints`` has 8 bytes for each row of its files: of its identity.

    ``last_archived`` is the hub's time (microseconds) of the last of those rows, and of others that the table has
    already; 0 where there were none. ``others`` names the file of all other messages, "" for none.
    ``ahead_count`` and ``backdated_count`` as in ``writer.Counts``. ``blocks`` names the blocks of its advisories and
    watermarks, in the order of their first ones, with the sequences of these.
    """

    sequences: tuple[int, int]
    clock: ClockReport
    files: Sequence[StagedFile] = ()
    fingerprints: bytes = b""
    last_archived: int = 0
    others: str = ""
    ahead_count: int = 0
    backdated_count: int = 0
    blocks: Sequence[tuple[int, str, str, str]] = ()

    @property
    def names(self) -> list[str]:
        """The names of all its files."""
        return [*(file.name for file in self.files), *([self.others] if self.others else [])]


class StagingPlace(msgspec.Struct, frozen=True):
    """Where a table's files go, the columns that they have, and the sequence through which the table has its rows.

    ``location`` is what the table calls its ``directory``. ``schema`` is Arrow's, in base 64; each field has Iceberg's
    number for it. ``reading`` begins the names of the files of one reading.
    """

    location: str
    directory: str
    schema: str
    after: int
    reading: str

    @classmethod
    def of(cls, location: str, schema: pa.Schema, after: int) -> "StagingPlace | None":
        """Name the place of a table at a URL; None where that is not in a file system."""
        directory = local_path(location)
        if directory is None:
            return None
        described = base64.b64encode(schema.serialize().to_pybytes()).decode()
        return cls(location, directory, described, after, uuid4().hex)

    def for_next_reading(self) -> "StagingPlace":
        """Give the same place for another reading."""
        return msgspec.structs.replace(self, reading=uuid4().hex)

    def arrow_schema(self) -> pa.Schema:
        """Give the columns."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def path(self, name: str) -> Path:
        """Say where a file is."""
        return Path(self.directory, name)

    def name_in(self, directory: str) -> str:
        """Name a new file in a directory of data, and make that."""
        name = f"data/{directory}/{self.reading}-{uuid4()}.parquet"
        self.path(name).parent.mkdir(parents=True, exist_ok=True)
        return name

    def forget(self) -> None:
        """Remove what tasks have written, where no commit can know of it."""
        for path in Path(self.directory).glob(f"data/*/{self.reading}-*.parquet"):
            remove(path)


def stage_slice(
    source: StreamSlices, place: StagingPlace, excess: Collection[BlockId], sequences: tuple[int, int], before: HubClock
) -> StagedSlice:
    """Read ``sequences``, both ends included, after the hub's clock ``before``, and stage them; raise ReadFailed.

    Records of the blocks in ``excess`` are quarantined.
    """
    schema, batches, blocks = place.arrow_schema(), list[pa.RecordBatch](), dict[BlockId, int]()
    clock = SliceClock(before, source.choria_region)
    with _OthersFile(place) as others:
        for stamped in source.read(*sequences):
            messages = clock.read(stamped)
            decoded = decode(messages, schema, source.choria_region, excess)
            batches.append(decoded.rows)
            rows_left = rows_of_others(messages, decoded, excess)
            if rows_left is not None:
                others.write(rows_left)
            for first, *block_id in (*decoded.blocks(messages), *_blocks_of_watermarks(rows_left)):
                blocks.setdefault(BlockId(*block_id), first)
    named = sorted((first, each.region, each.site, each.block) for each, first in blocks.items())
    if not any(batch.num_rows for batch in batches):
        return StagedSlice(sequences, clock.report, others=others.name, blocks=named)
    rows = pa.Table.from_batches(batches)
    last_archived = pc.max(rows["archived_at"]).cast(pa.int64()).as_py()
    new = rows.filter(pc.greater(rows["hub_sequence"], place.after)) if place.after else rows
    prints = fingerprints(new["event_id"]).tobytes()
    staged = _stage(new, place), prints, last_archived, others.name
    return StagedSlice(sequences, clock.report, *staged, *_astray(new), named)


def _blocks_of_watermarks(others: pa.RecordBatch | None) -> Iterator[tuple[int, str, str, str]]:
    """Yield the blocks of watermarks, each with the sequence of its first one."""
    if others is None:
        return
    column, names = others.column("watermark"), ["region", "site", "block"]
    rows = pa.Table.from_struct_array(column.filter(column.is_valid()))
    found = rows.group_by(names).aggregate([("hub_sequence", "min")]).to_pydict()
    yield from zip(found["hub_sequence_min"], *(found[name] for name in names), strict=True)


def _astray(rows: pa.Table) -> tuple[int, int]:
    """Count the advisories that claim a time after the hub stored them, and those that look back too far."""
    occurred, seen, stored = (
        rows[name].cast(pa.int64()).to_numpy() for name in ("occurred_at", "last_seen_at", "archived_at")
    )
    lives = pc.fill_null(rows["incarnation"], "").combine_chunks().dictionary_encode()
    created = np.array([_created(life) for life in lives.dictionary.to_pylist()], np.int64)
    of_stream = created[lives.indices.to_numpy()] if len(rows) else created
    is_backdated = (seen < occurred - LOOK_BACK) | ((seen < of_stream) & (of_stream <= occurred))
    return int(np.count_nonzero(occurred > stored)), int(np.count_nonzero(is_backdated))


def _created(life: str) -> int:
    """Read when its stream was created (microseconds) out of an incarnation; 0 where it does not say so."""
    created = life.partition("-")[0]
    return int(created) if created.isascii() and created.isdigit() and len(created) <= _MOST_DIGITS else 0


class _OthersFile:
    """A file that is there once something was written. A context manager; it has a ``name`` by then."""

    def __init__(self, place: StagingPlace) -> None:
        self.name = ""
        self._place = place
        self._opened = ExitStack()
        self._writer: parquet.ParquetWriter

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._opened.close()

    def write(self, rows: pa.RecordBatch) -> None:
        if not self.name:
            self.name = self._place.name_in("others")
            writer = parquet.ParquetWriter(self._place.path(self.name), ARROW_SCHEMA, compression="zstd")
            self._writer = self._opened.enter_context(writer)
        self._writer.write_batch(rows)


def _stage(rows: pa.Table, place: StagingPlace) -> list[StagedFile]:
    days = rows["occurred_at"].cast(pa.date32())
    found = sorted(pc.unique(days).to_pylist())
    length = len("2026-11-26" if len(found) <= FEW_DAYS else "2026-11")
    parts = {label: [*part] for label, part in groupby(found, key=lambda day: str(day)[:length])}
    return [
        _write(rows.filter(pc.is_in(days, pa.array(part, pa.date32()))) if len(parts) > 1 else rows, label, part, place)
        for label, part in parts.items()
    ]


def _write(rows: pa.Table, partition: str, days: Sequence[date], place: StagingPlace) -> StagedFile:
    kind = "month" if len(partition) == len("2026-11") else "day"
    name = place.name_in(f"occurred_at_{kind}={partition}")
    # A dictionary of what differs in nearly every row takes more time, and more room, than to write it down.
    differ = ("sender_id", "event_id")
    texts = [field.name for field in rows.schema if field.type in (pa.string(), pa.large_string())]
    repeated = [name for name in texts if name not in differ]
    parquet.write_table(rows, place.path(name), compression="zstd", use_dictionary=repeated)
    return StagedFile(name, partition, days, rows.num_rows)

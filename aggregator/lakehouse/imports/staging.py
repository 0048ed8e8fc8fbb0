"""Stage the rows of a file as Parquet next to the tables: Spark reads them in one piece, and memory stays flat.

Each run has a directory of its own. The next run removes those of killed processes, which no longer hold their lock.
"""

import fcntl
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.rows import ImportedSpan, ImportReason, RowReader, Unreadable
from aggregator.lakehouse.imports.source_file import SourceFile
from aggregator.lakehouse.imports.times import EARLIEST, latest

INTERVALS, QUARANTINE = "intervals.parquet", "quarantine.parquet"
_PREFIX = "import-staging-"
_LOCK = "lock"
_BATCH = 50_000
_PROGRESS_SECONDS = 2.0
_TEXT, _LONG = pa.string(), pa.int64()
_INTERVAL_SCHEMA = pa.schema(
    {
        "region": _TEXT,
        "site": _TEXT,
        "sender_id": _TEXT,
        "groups": pa.map_(_TEXT, _TEXT),
        "state": _TEXT,
        "started_us": _LONG,
        "ended_us": _LONG,
        "line": _LONG,
    }
)
_QUARANTINE_SCHEMA = pa.schema({"reason": _TEXT, "detail": _TEXT, "payload": pa.binary(), "line": _LONG})
_REMEDIES = {
    ImportReason.WRONG_COLUMN_COUNT: " (how columns are parted: --separator)",
    ImportReason.NAME_NOT_OF_SHAPE: " (what the parts of a name are: --groups)",
    ImportReason.UNKNOWN_STATE: " (which values mean what: --up, --down, --unknown, --gone)",
    ImportReason.UNREADABLE_START: " (how times are written: --time; from when numbers count: --epoch)",
    ImportReason.UNREADABLE_STOP: " (how times are written: --time; if that is how long it lasted: --duration)",
    ImportReason.UNREADABLE_DURATION: " (a number, --duration-unit says of what, or hours:minutes:seconds)",
    ImportReason.AMBIGUOUS_TIME: " (which of two instants a local time is on a night of changed clocks: --ambiguous)",
    ImportReason.STOPS_BEFORE_START: " (if that is how long it lasted: --duration)",
    ImportReason.NO_STOP: " (when such a row ends: --until)",
    ImportReason.IMPLAUSIBLE_INSTANT: " (in which unit times are: --time ms, us or ns; from when they count: --epoch;"
    " when a row ends that goes on: --until)",
}
"""The options to correct, by reason."""


class Staged(msgspec.Struct, frozen=True):
    """One file, read whole. ``reasons`` counts quarantined rows, ``examples`` has the first row of each reason.

    ``ambiguous_count`` counts the local times that named two instants, or none. Its first start and its last stop
    are in microseconds.
    """

    file: str
    import_id: str
    directory: Path | None
    row_count: int
    reasons: dict[ImportReason, int]
    examples: dict[ImportReason, str]
    first: ImportedSpan | None
    started_at: int
    ended_at: int
    ambiguous_count: int

    @property
    def quarantined_count(self) -> int:
        return sum(self.reasons.values())


class _Batches:
    """Writer of one Parquet file, a batch at a time; without a path it writes nothing."""

    def __init__(self, path: Path | None, schema: pa.Schema) -> None:
        self._writer = pq.ParquetWriter(path, schema) if path else None
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []

    def add(self, row: tuple[Any, ...]) -> None:
        if self._writer is not None:
            self._rows.append(row)
            if len(self._rows) >= _BATCH:
                self._flush()

    def close(self) -> None:
        if self._writer is not None:
            self._flush()
            self._writer.close()

    def _flush(self) -> None:
        if self._rows and self._writer is not None:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
            self._rows = []


def stage(path: Path, mapping: Mapping, directory: Path | None, now: int, progress: Callable[[str], None]) -> Staged:
    """Read one file whole, into ``directory`` where there is one; raise ImportRefused. ``now`` is in microseconds.

    A file without one readable row is refused: the mapping does not fit it.
    """
    reasons: Counter[ImportReason] = Counter()
    examples: dict[ImportReason, str] = {}
    first: ImportedSpan | None = None
    count, started_at, ended_at = 0, latest(now), EARLIEST
    with ExitStack() as opened:
        source = opened.enter_context(closing(SourceFile(path, mapping)))
        reader = RowReader(mapping, source.columns, now)
        if not mapping.columns and _is_row(reader, source.columns, mapping):
            names = ",".join(str(number) for number in range(1, len(source.columns) + 1))
            raise ImportRefused(
                f"{path}: its first line is a row, and does not name the columns: name them yourself, for example"
                f" --columns {names}"
            )
        if directory is not None:
            directory.mkdir()
        intervals = opened.enter_context(closing(_Batches(directory and directory / INTERVALS, _INTERVAL_SCHEMA)))
        quarantine = opened.enter_context(closing(_Batches(directory and directory / QUARANTINE, _QUARANTINE_SCHEMA)))
        reported_at = time.monotonic()
        for row in source.rows():
            count += 1
            found = Unreadable(ImportReason.NOT_A_ROW, "") if row.fields is None else reader.read(row.fields)
            if isinstance(found, Unreadable):
                detail = found.detail.encode("utf-8", "backslashreplace").decode()
                reasons[found.reason] += 1
                examples.setdefault(found.reason, f"line {row.line}: {detail[:80]!r}")
                quarantine.add((found.reason.value, detail, row.text.rstrip(b"\r\n"), row.line))
            else:
                sender, state, *instants = found
                first = first or found
                started_at, ended_at = min(started_at, instants[0]), max(ended_at, instants[1])
                groups = list(sender.groups.items())
                intervals.add((sender.region, sender.site, sender.sender_id, groups, state, *instants, row.line))
            if not count % 4096 and time.monotonic() - reported_at > _PROGRESS_SECONDS:
                reported_at = time.monotonic()
                progress(f"{path.name}: {count:,} rows ({100 * source.bytes_read // max(1, source.size)} %)")
    if first is None:
        why = "; ".join(f"{reason}, {examples[reason]}{remedy(reason)}" for reason in reasons)
        why = why or "it has no rows"
        raise ImportRefused(f"{path}: not one of {count:,} rows can be read as an interval: {why}")
    counts = count, dict(reasons), examples, first, started_at, ended_at, reader.ambiguous_count
    return Staged(path.name, source.import_id, directory, *counts)


def remedy(reason: ImportReason) -> str:
    """Return the options to correct for this reason, in brackets, or an empty text."""
    return _REMEDIES.get(reason, "")


@contextmanager
def staging_area(warehouse: Path) -> Iterator[Path]:
    """Yield a directory and remove it afterwards; remove those of killed processes."""
    warehouse.mkdir(parents=True, exist_ok=True)
    for left in warehouse.glob(f"{_PREFIX}*"):
        _remove_if_abandoned(left)
    area = Path(mkdtemp(prefix=_PREFIX, dir=warehouse))
    with (area / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield area
        finally:
            shutil.rmtree(area, ignore_errors=True)


def _remove_if_abandoned(left: Path) -> None:
    try:
        with (left / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    except (FileNotFoundError, BlockingIOError, PermissionError):
        # Another process is making it, or uses it.
        return


def _is_row(reader: RowReader, first_line: Sequence[str], mapping: Mapping) -> bool:
    """Return True if the line that should name the columns is a row, be it one that would be quarantined.

    Columns may be called 0, 1, 2, as pandas calls them: names in the mapping are no instants.
    """
    if isinstance(reader.read(first_line), ImportedSpan):
        return True
    return reader.has_start(first_line) and not set(mapping.named_columns) <= set(first_line)

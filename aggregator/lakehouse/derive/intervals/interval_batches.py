"""Adapter of the pure fold of episodes to batches of Arrow, which Spark's workers call.

Rows come sorted by sender, and in the order of each sender's advisories. A row of the result is made of the rows that
it rests on, by their numbers: names never become Python objects. From one batch to the next, two rows are carried: the
last one, whose interval has not ended, and the one that opened its episode.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from aggregator.records.episode import REPORTED, AdvisedRow, EpisodeFold, Interval, IntervalRow, State
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST

NAMES = ("region", "site", "block", "sender_id")
_INSTANTS = ("occurred_at", "last_seen_at", "unheard_until", "opened_at")
ADVISED = (*NAMES, "event_id", "opened_by", "basis", "report", *_INSTANTS)
"""The columns that are read, and ``store_end`` where several stores have spoken for a block."""
INTERVAL_TYPES = (
    "region STRING, site STRING, block STRING, sender_id STRING, episode STRING, episode_started_at TIMESTAMP,"
    " state STRING, started_at TIMESTAMP, ended_at TIMESTAMP, ended_by STRING, advisory_at TIMESTAMP,"
    " advisory_kind STRING, advisory_id STRING, basis STRING"
)
INFERRED = "inferred"

_TIMESTAMP = pa.timestamp("us", "UTC")
_COLUMNS = [part.split()[0] for part in INTERVAL_TYPES.split(", ")]
_STATES = pa.array([state.name.lower() for state in State])
_KINDS = pa.array(map(str, REPORTED))
_ENDS = pa.array([*map(str, AdvisoryKind), "rebuilt", "unheard", AdvisoryKind.RETIRED, "lost_store"])


def intervals(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the intervals of all senders of a partition; ``batches`` have the columns ``ADVISED``."""
    fold, carried = EpisodeFold(), None
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = batch if carried is None else pa.concat_batches([carried, batch])
        yield _rows_of(rows, fold.fold(_advised(rows, 0 if carried is None else carried.num_rows)))
        carried = rows.take(pa.array([fold.opened, fold.place]))
        fold.opened, fold.place = 0, 1
    if carried is not None:
        yield _rows_of(carried, fold.end())


def _advised(rows: pa.RecordBatch, begin: int) -> Iterable[AdvisedRow]:
    """Return the rows from number ``begin`` on as the fold takes them."""
    is_first = np.zeros(rows.num_rows, bool)
    is_first[0] = True
    for name in NAMES:
        column = rows.column(name)
        is_first[1:] |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    numbers: list[Any] = [rows.column("report").to_numpy()]
    numbers += (pc.fill_null(rows.column(name).cast(pa.int64()), 0).to_numpy() for name in _INSTANTS)
    if "store_end" in rows.schema.names:
        numbers.append(rows.column("store_end").to_numpy())
    else:
        numbers.append(np.full(rows.num_rows, LATEST))
    columns = (each[begin:].tolist() for each in (is_first, *numbers))
    return zip(range(begin, rows.num_rows), *columns, strict=True)


def _rows_of(rows: pa.RecordBatch, found: Sequence[IntervalRow]) -> pa.RecordBatch:
    """Return ``found`` as rows of ``INTERVAL_TYPES``."""
    fields = zip(*found, strict=True) if found else repeat((), len(Interval._fields))
    place, opened, opened_at, state, started_at, ended_at, ended_by, is_inferred = fields
    numbers, openings = pa.array(place, pa.int32()), pa.array(opened, pa.int32())

    def of_advisory(name: str) -> pa.Array:
        return rows.column(name).take(numbers)

    def instants(values: tuple[int | None, ...]) -> pa.Array:
        return pa.array(values, pa.int64()).cast(_TIMESTAMP)

    opened_by = pc.coalesce(rows.column("opened_by"), rows.column("event_id"))
    columns = [
        *map(of_advisory, NAMES),
        opened_by.take(openings),
        instants(opened_at),
        _STATES.take(pa.array(state, pa.int32())),
        instants(started_at),
        instants(ended_at),
        _ENDS.take(pa.array(ended_by, pa.int32())),
        of_advisory("occurred_at"),
        _KINDS.take(of_advisory("report")),
        of_advisory("event_id"),
        pc.if_else(pa.array(is_inferred, pa.bool_()), INFERRED, of_advisory("basis")),
    ]
    return pa.RecordBatch.from_arrays(columns, _COLUMNS)

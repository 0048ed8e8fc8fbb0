"""Make a stream a Spark data source: fixed ranges of sequences, read in parallel, the same again when read again.

Options (Spark lower-cases their names): ``slices_of`` (``StreamSlices`` as JSON), ``first``, ``last`` (sequences, both
included), ``clocks`` (the hub's before each slice, as JSON), ``excess`` (blocks whose records are quarantined, as
JSON). The last row of each slice has nothing but a sequence and ``clock``, what its messages did to that.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from nats.aio.client import Client
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aggregator.archive.consumer import Messages
from aggregator.archive.hub_clock import HubClock
from aggregator.lakehouse.archive.hub_time import SliceClock
from aggregator.lakehouse.archive.json_repair import repaired
from aggregator.lakehouse.archive.slices import StreamSlices, cut
from aggregator.lakehouse.bronze import advisories, records
from aggregator.lakehouse.tables.schemas import ADVISORIES
from aggregator.records.judge import QuarantineReason
from shared.identifiers import BlockId
from shared.subjects import RecordType
from shared.wire import ORIGIN_HEADER, REASON_HEADER, SENDER_HEADER, SOURCE_HEADER, parse_sender_header

SCHEMA = (
    "hub_sequence BIGINT, subject STRING, archived_at TIMESTAMP, origin STRING, source STRING, reason STRING,"
    f" sender STRING, repaired STRING, payload BINARY, advisory {records.struct_of(ADVISORIES.columns)},"
    f" {', '.join(f'{name} {type_}' for name, type_, _ in records.COLUMNS)}, clock STRING"
)
_ADVISORY = pa.struct(list(advisories.SCHEMA))
ARROW_SCHEMA = pa.schema(
    [
        ("hub_sequence", pa.int64()),
        ("subject", pa.string()),
        ("archived_at", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in ("origin", "source", "reason", "sender", "repaired")),
        ("payload", pa.binary()),
        ("advisory", _ADVISORY),
        *((name, type_) for name, _, type_ in records.COLUMNS),
        ("clock", pa.string()),
    ]
)
_AS_WRITTEN = (ORIGIN_HEADER, SOURCE_HEADER, REASON_HEADER)
_NONE = (None,) * (len(_AS_WRITTEN) + 1)
_OF_SENDERS = (RecordType.REGISTRATION, RecordType.COPY)
_FOREIGN = records.Subject(RecordType.ADVISORY, None, None, None)
"""The subject of a plain Choria advisory, which its body says the rest of."""


class Slice(InputPartition):
    """One task's range of sequences, both ends included, and the hub's clock before it."""

    def __init__(self, first: int, last: int, before: HubClock) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last
        self.before = before


class ArchiveDataSource(DataSource):
    """The data source ``jetstream``."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "jetstream"

    def schema(self) -> str:
        """Give the columns: what the server says of a message, the headers that Muster reads, and the payload.

        ``sender`` is decoded; ``repaired`` is a registration's payload as JSON, where it is not. Of an advisory, a
        watermark and a revision there is the row of their table, or ``quarantine_reason`` says why there is none.
        """
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - there is one schema
        """Read by ranges."""
        return JetStreamReader(self.options)


class JetStreamReader(DataSourceReader):
    """Read ``first`` to ``last`` in ``slices`` tasks."""

    def __init__(self, options: Any) -> None:
        self._source = msgspec.json.decode(options["slices_of"], type=StreamSlices)
        self._first, self._last = int(options["first"]), int(options["last"])
        self._clocks = msgspec.json.decode(options["clocks"], type=list[HubClock])
        self._excess = msgspec.json.decode(options["excess"], type=frozenset[BlockId])

    def partitions(self) -> list[InputPartition]:
        """Cut the range into slices of like length; nothing is read for it."""
        slices = cut(self._first, self._last, len(self._clocks))
        return [Slice(*sequences, before) for sequences, before in zip(slices, self._clocks, strict=True)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice; raise ReadFailed where the servers do not answer or retention was faster."""
        assert isinstance(partition, Slice)
        clock = SliceClock(partition.before, self._source.choria_region)
        for messages in self._source.read(partition.first, partition.last):
            yield rows_of(clock.read(messages), self._source.choria_region, self._excess)
        row = {"hub_sequence": partition.first, "clock": str(clock.report)}
        yield pa.RecordBatch.from_pylist([row], schema=ARROW_SCHEMA)


def load(
    spark: SparkSession,
    source: StreamSlices,
    sequences: tuple[int, int],
    clocks: Sequence[HubClock],
    excess: Collection[BlockId] = (),
) -> DataFrame:
    """Read ``sequences``, both ends included, in as many slices as ``clocks``: the hub's before each of them.

    Records of the blocks in ``excess`` are quarantined.
    """
    spark.dataSource.register(ArchiveDataSource)
    options = {
        "slices_of": msgspec.json.encode(source).decode(),
        "first": str(sequences[0]),
        "last": str(sequences[1]),
        "clocks": msgspec.json.encode(clocks).decode(),
        "excess": msgspec.json.encode(excess).decode(),
    }
    return spark.read.format(ArchiveDataSource.name()).options(**options).load()


def rows_of(messages: Messages, choria_region: str = "", excess: Collection[BlockId] = ()) -> pa.RecordBatch:
    """Make rows of all messages."""
    decoded = advisories.decode(messages, choria_region=choria_region, excess=excess)
    row_at = {place: row for row, place in enumerate(decoded.places)}
    rows = pa.StructArray.from_arrays(decoded.rows.columns, fields=list(decoded.rows.schema))
    every = range(len(messages.sequences))
    taken = rows.take(pa.array([row_at.get(place) for place in every], pa.int64()))
    return _rows(messages, decoded.reasons, taken, excess)


def rows_of_others(
    messages: Messages, decoded: advisories.Decoded, excess: Collection[BlockId] = ()
) -> pa.RecordBatch | None:
    """Return rows of the messages that are no advisories, or are quarantined; None if there are none.

    Watermarks of the blocks in ``excess`` are quarantined.
    """
    others = sorted({*range(len(messages.sequences))}.difference(decoded.places))
    if not others:
        return None
    reasons = {row: decoded.reasons[place] for row, place in enumerate(others) if place in decoded.reasons}
    return _rows(messages.at(others), reasons, pa.nulls(len(others), _ADVISORY), excess)


def _rows(
    messages: Messages,
    reasons: Mapping[int, QuarantineReason],
    rows_of_advisories: pa.Array,
    excess: Collection[BlockId] = (),
) -> pa.RecordBatch:
    headers = [_ours_in(block) for block in messages.headers]
    judged = list(_judged(messages, reasons, rows_of_advisories.is_valid().to_pylist(), headers))
    judged = [records.without_excess(each, excess) for each in judged] if excess else judged
    columns = (
        messages.sequences,
        # Servers pass any bytes; rows are text.
        [subject.decode(errors="backslashreplace") for subject in messages.subjects],
        messages.archived_at,
        *zip(*headers, strict=True),
        [
            repaired(payload) if each.subject and each.subject.record in _OF_SENDERS else None
            for each, payload in zip(judged, messages.payloads, strict=True)
        ],
        # What has become a row is not kept twice.
        [
            None if each.watermark or each.revision else payload
            for each, payload in zip(judged, messages.payloads, strict=True)
        ],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=False)]
    no_clock = pa.nulls(len(rows_of_advisories), pa.string())
    arrays += [rows_of_advisories, *records.columns(judged), no_clock]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _judged(
    messages: Messages,
    reasons: Mapping[int, QuarantineReason],
    are_advisories: Sequence[bool],
    headers: Sequence[Sequence[str | None]],
) -> Iterator[records.Judged]:
    """Judge each message; of advisories that is done, and ``reasons`` are why some are quarantined, by place."""
    columns = messages.subjects, messages.sequences.tolist(), messages.archived_at.tolist(), messages.payloads, headers
    for place, (name, sequence, archived_at, payload, ours) in enumerate(zip(*columns, strict=True)):
        subject = records.subject_of(name)
        if are_advisories[place] or place in reasons:
            yield records.Judged(subject or _FOREIGN, reasons.get(place))
        else:
            yield records.judge(subject, (sequence, archived_at), ours, payload)


def _ours_in(block: bytes) -> Sequence[str | None]:
    """Read the headers that Muster's agents write; None where there is none."""
    if b"Muster-" not in block and SOURCE_HEADER.encode() not in block:
        return _NONE
    parsed = Client._parse_header_lines(block)  # noqa: SLF001 - nats-py is pinned, and offers no other way
    sender = parsed.get(SENDER_HEADER)
    return [*(parsed.get(name) for name in _AS_WRITTEN), sender and parse_sender_header(sender)]

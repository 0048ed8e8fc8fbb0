"""Make a stream a Spark data source: fixed ranges of sequences, read in parallel, the same again when read again.

Options (Spark lower-cases their names): ``slices_of`` (``StreamSlices`` as JSON), ``first``, ``last`` (sequences, both
included), ``slices`` (how many), ``choria_region`` (see ``advisories.py``).
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
from nats.aio.client import Client
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aggregator.archive.consumer import Messages
from aggregator.lakehouse.archive.json_repair import repaired
from aggregator.lakehouse.archive.slices import StreamSlices, cut
from aggregator.lakehouse.bronze import advisories
from aggregator.lakehouse.tables.schemas import ADVISORIES
from shared.subjects import RecordType
from shared.wire import ORIGIN_HEADER, REASON_HEADER, SENDER_HEADER, SOURCE_HEADER, parse_sender_header

SCHEMA = (
    "hub_sequence BIGINT, subject STRING, archived_at TIMESTAMP, origin STRING, source STRING, reason STRING,"
    " sender STRING, repaired STRING, payload BINARY, quarantine_reason STRING,"
    f" advisory STRUCT<{', '.join(f'{name}: {type_}' for name, type_, _ in ADVISORIES.columns)}>"
)
_ADVISORY = pa.struct(list(advisories.SCHEMA))
ARROW_SCHEMA = pa.schema(
    [
        ("hub_sequence", pa.int64()),
        ("subject", pa.string()),
        ("archived_at", pa.timestamp("us", "UTC")),
        *((name, pa.string()) for name in ("origin", "source", "reason", "sender", "repaired")),
        ("payload", pa.binary()),
        ("quarantine_reason", pa.string()),
        ("advisory", _ADVISORY),
    ]
)
_AS_WRITTEN = (ORIGIN_HEADER, SOURCE_HEADER, REASON_HEADER)
_NONE = (None,) * (len(_AS_WRITTEN) + 1)


class Slice(InputPartition):
    """One task's range of sequences, both ends included."""

    def __init__(self, first: int, last: int) -> None:
        super().__init__((first, last))
        self.first = first
        self.last = last


class JetStreamSource(DataSource):
    """The data source ``jetstream``."""

    @classmethod
    def name(cls) -> str:
        """Give the format's name."""
        return "jetstream"

    def schema(self) -> str:
        """Give the columns: what the server says of a message, the headers that Muster reads, and the payload.

        ``sender`` is decoded; ``repaired`` is a registration's payload as JSON, where it is not. Of an advisory,
        ``advisory`` is the row of its table, or ``quarantine_reason`` says why there is none.
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
        self._slices = int(options["slices"])
        self._choria_region = options["choria_region"]

    def partitions(self) -> list[InputPartition]:
        """Cut the range into slices of like length; nothing is read for it."""
        return [Slice(first, last) for first, last in cut(self._first, self._last, self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice; raise ReadFailed where the servers do not answer or retention was faster."""
        assert isinstance(partition, Slice)
        for messages in self._source.read(partition.first, partition.last):
            yield rows_of(messages, self._choria_region)


def load(
    spark: SparkSession, source: StreamSlices, sequences: tuple[int, int], slices: int, choria_region: str
) -> DataFrame:
    """Read ``sequences``, both ends included."""
    spark.dataSource.register(JetStreamSource)
    options = {
        "slices_of": msgspec.json.encode(source).decode(),
        "first": str(sequences[0]),
        "last": str(sequences[1]),
        "slices": str(slices),
        "choria_region": choria_region,
    }
    return spark.read.format(JetStreamSource.name()).options(**options).load()


def rows_of(messages: Messages, choria_region: str = "") -> pa.RecordBatch:
    """Make rows of all messages."""
    decoded = advisories.decode(messages, choria_region=choria_region)
    row_at = {place: row for row, place in enumerate(decoded.places)}
    rows = pa.StructArray.from_arrays(decoded.rows.columns, fields=list(decoded.rows.schema))
    every = range(len(messages.sequences))
    return _rows(messages, decoded.reasons, rows.take(pa.array([row_at.get(place) for place in every], pa.int64())))


def rows_of_others(messages: Messages, decoded: advisories.Decoded) -> pa.RecordBatch | None:
    """Make rows of the messages that are no advisories, or that are quarantined; None where there are none."""
    others = sorted({*range(len(messages.sequences))}.difference(decoded.places))
    if not others:
        return None
    reasons = {row: decoded.reasons[place] for row, place in enumerate(others) if place in decoded.reasons}
    return _rows(messages.at(others), reasons, pa.nulls(len(others), _ADVISORY))


def _rows(messages: Messages, reasons: Mapping[int, str], rows_of_advisories: pa.Array) -> pa.RecordBatch:
    columns = (
        messages.sequences,
        # Servers pass any bytes; rows are text.
        [subject.decode(errors="backslashreplace") for subject in messages.subjects],
        messages.archived_at,
        *zip(*map(_ours_in, messages.headers), strict=True),
        [
            repaired(payload) if _is_of_a_sender(subject) else None
            for subject, payload in zip(messages.subjects, messages.payloads, strict=True)
        ],
        messages.payloads,
        [reasons.get(place) for place in range(len(messages.sequences))],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=False)]
    arrays.append(rows_of_advisories)
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _ours_in(block: bytes) -> Sequence[str | None]:
    """Read the headers that Muster's agents write; None where there is none."""
    if b"Muster-" not in block and SOURCE_HEADER.encode() not in block:
        return _NONE
    parsed = Client._parse_header_lines(block)  # noqa: SLF001 - nats-py is pinned, and offers no other way
    sender = parsed.get(SENDER_HEADER)
    return [*(parsed.get(name) for name in _AS_WRITTEN), sender and parse_sender_header(sender)]


@lru_cache(maxsize=10_000)
def _is_of_a_sender(subject: bytes) -> bool:
    """Tell by its subject whether a message's payload is what a sender wrote."""
    return subject.split(b".")[4:5] in ([RecordType.REGISTRATION.encode()], [RecordType.COPY.encode()])

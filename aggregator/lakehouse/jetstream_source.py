"""Make a stream a Spark data source: fixed ranges of sequences, read in parallel, the same again when read again.

Options (Spark lower-cases their names): ``slices_of`` (``StreamSlices`` as JSON), ``first``, ``last`` (sequences, both
included), ``slices`` (how many).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aggregator.lakehouse.direct_headers import our_headers
from aggregator.lakehouse.stream_reader import Messages
from aggregator.lakehouse.stream_slices import StreamSlices, cut

SCHEMA = (
    "hub_sequence STRING, subject STRING, archived_at STRING, origin STRING, source STRING, reason STRING,"
    " payload BINARY"
)
"""Numbers and instants are left as the server wrote them."""

ARROW_SCHEMA = pa.schema(
    [(name, pa.string()) for name in ("hub_sequence", "subject", "archived_at", "origin", "source", "reason")]
    + [("payload", pa.binary())]
)


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
        """Give the columns: what the server says of a message, the headers that Muster reads, and the payload."""
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

    def partitions(self) -> list[InputPartition]:
        """Cut the range into slices of like length; nothing is read for it."""
        return [Slice(first, last) for first, last in cut(self._first, self._last, self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice; raise ReadFailed where the servers do not answer or retention was faster."""
        assert isinstance(partition, Slice)
        yield from map(rows_of, self._source.read(partition.first, partition.last))


def load(spark: SparkSession, source: StreamSlices, sequences: tuple[int, int], slices: int) -> DataFrame:
    """Read ``sequences``, both ends included."""
    options = {
        "slices_of": msgspec.json.encode(source).decode(),
        "first": str(sequences[0]),
        "last": str(sequences[1]),
        "slices": str(slices),
    }
    return spark.read.format(JetStreamSource.name()).options(**options).load()


def rows_of(messages: Messages, indices: Sequence[int] | None = None) -> pa.RecordBatch:
    """Make rows of the messages, of those at ``indices`` where such are given."""
    if indices is not None and len(indices) < len(messages.sequences):
        messages = messages.at(indices)
    columns = (
        [str(sequence) for sequence in messages.sequences],
        # Servers pass any bytes; rows are text.
        [subject.decode(errors="backslashreplace") for subject in messages.subjects],
        messages.archived_at,
        *zip(*map(our_headers, messages.headers), strict=True),
        messages.payloads,
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)

"""Make a stream a Spark data source: fixed ranges of sequences, read in parallel, the same again when read again.

Options (Spark lower-cases their names): ``connection`` (ConnectionSettings as JSON), ``stream``, ``fallback`` (the
stream that has what the first one's retention dropped), ``first``, ``last`` (sequences, both included), ``slices``.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import uvloop
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aggregator.lakehouse.direct_headers import our_headers
from aggregator.lakehouse.stream_reader import CONNECT_DEADLINE, Message, ReadFailed, StreamReader
from shared.nats_connection import ConnectionSettings
from shared.settings import FilePath

SCHEMA = (
    "hub_sequence STRING, subject STRING, archived_at STRING, origin STRING, source STRING, reason STRING,"
    " payload BINARY"
)
"""Numbers and instants are left as the server wrote them: Spark reads them faster than Python does."""

_ARROW = pa.schema(
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
        self._connection = decoded_connection(options["connection"])
        self._streams = [name for name in (options["stream"], options.get("fallback", "")) if name]
        self._first, self._last = int(options["first"]), int(options["last"])
        self._slices = int(options["slices"])

    def partitions(self) -> list[InputPartition]:
        """Cut the range into slices of like length; nothing is read for it."""
        return [Slice(first, last) for first, last in cut(self._first, self._last, self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice; raise ReadFailed where the servers do not answer or retention was faster."""
        assert isinstance(partition, Slice)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            batches = self._batches(partition)
            try:
                while (messages := runner.run(_next(batches))) is not None:
                    if messages:
                        yield _arrow(messages)
            finally:
                runner.run(batches.aclose())

    async def _batches(self, wanted: Slice) -> AsyncGenerator[list[Message], None]:
        """Read from the first stream, and from the next one what the first does not hold (any more)."""
        async with StreamReader(self._connection, deadline=CONNECT_DEADLINE) as reader:
            missing = [(wanted.first, wanted.last)]
            for stream in self._streams:
                holes: list[tuple[int, int]] = []
                for first, last in missing:
                    following = first
                    async for messages in reader.read(stream, first, last):
                        for message in messages:
                            sequence = message.sequence
                            if sequence > following:
                                holes.append((following, sequence - 1))
                            following = sequence + 1
                        yield messages
                    if following <= last:
                        holes.append((following, last))
                missing = holes
            # What the last stream lacks was deleted there, except before its first message: there retention was faster.
            kept = (await reader.state(self._streams[-1])).first_sequence if missing else 0
            missing = [(first, min(last, kept - 1)) for first, last in missing if first < kept]
            if missing:
                raise ReadFailed(
                    f"stream {self._streams[-1]}: retention removed {missing[0][0]} to {missing[-1][1]} before they"
                    " were read; run again to be told what to do"
                )


def load(
    spark: SparkSession,
    connection: ConnectionSettings,
    streams: tuple[str, str],
    sequences: tuple[int, int],
    slices: int,
) -> DataFrame:
    """Read ``sequences``, both ends included, of the first of ``streams``, and of the second what that one lacks."""
    options = {
        "connection": encoded_connection(connection),
        "stream": streams[0],
        "fallback": streams[1],
        "first": str(sequences[0]),
        "last": str(sequences[1]),
        "slices": str(slices),
    }
    return spark.read.format(JetStreamSource.name()).options(**options).load()


def cut(first: int, last: int, slices: int) -> list[tuple[int, int]]:
    """Cut ``first`` to ``last`` into at most ``slices`` ranges of like length.

    >>> cut(1, 10, 3)
    [(1, 4), (5, 7), (8, 10)]
    """
    count = last - first + 1
    slices = max(1, min(slices, count))
    begins = [first + -(-count * number // slices) for number in range(slices + 1)]
    return [(begin, end - 1) for begin, end in pairwise(begins)]


def encoded_connection(settings: ConnectionSettings) -> str:
    """Write connection settings as the text of an option: paths of secrets, never secrets."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decoded_connection(text: str) -> ConnectionSettings:
    """Read them back."""
    return msgspec.json.decode(text, type=ConnectionSettings, dec_hook=lambda _type, found: FilePath(found))


async def _next(batches: AsyncGenerator[list[Message], None]) -> list[Message] | None:
    return await anext(batches, None)


def _arrow(messages: list[Message]) -> pa.RecordBatch:
    headers, payloads = zip(*messages, strict=True)
    _, subjects, sequences, instants, _, _ = zip(*headers, strict=True)
    columns = (sequences, subjects, instants, *zip(*map(our_headers, headers), strict=True), payloads)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

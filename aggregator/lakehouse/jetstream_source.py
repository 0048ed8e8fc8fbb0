"""Make a stream a Spark data source: fixed ranges of sequences, read in parallel, the same again when read again.

Options (Spark lower-cases their names): ``connection`` (ConnectionSettings as JSON), ``stream``, ``fallback`` (the
stream that has what the first one's retention dropped), ``first``, ``last`` (sequences, both included), ``slices``,
``place`` (where whole advisories are written while they are read, as JSON of ``staging.Place``; without it, nowhere).
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import pyarrow as pa
import uvloop
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from aggregator.lakehouse.direct_headers import our_headers
from aggregator.lakehouse.staging import Place, StagedFile, stage
from aggregator.lakehouse.stream_reader import CONNECT_DEADLINE, Messages, ReadFailed, StreamReader
from aggregator.lakehouse.whole_advisories import take
from shared.nats_connection import ConnectionSettings
from shared.settings import FilePath

SCHEMA = (
    "hub_sequence STRING, subject STRING, archived_at STRING, origin STRING, source STRING, reason STRING,"
    " payload BINARY, staged STRING"
)
"""Numbers and instants are left as the server wrote them. ``staged`` is in one row of a slice, which has no message: it
names the files in which its whole advisories are (JSON), and the last of them by sequence and instant."""

_ARROW = pa.schema(
    [(name, pa.string()) for name in ("hub_sequence", "subject", "archived_at", "origin", "source", "reason")]
    + [("payload", pa.binary()), ("staged", pa.string())]
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
        self._place = msgspec.json.decode(options["place"], type=Place) if options.get("place") else None

    def partitions(self) -> list[InputPartition]:
        """Cut the range into slices of like length; nothing is read for it."""
        return [Slice(first, last) for first, last in cut(self._first, self._last, self._slices)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one slice; raise ReadFailed where the servers do not answer or retention was faster."""
        assert isinstance(partition, Slice)
        if self._place is None:
            yield from map(_arrow, self._messages(partition))
            return
        schema, rows, last = self._place.arrow_schema(), list[pa.RecordBatch](), (0, b"")
        for messages in self._messages(partition):
            taken = take(messages, schema)
            if taken.rows:
                rows += taken.rows
                last = max(last, (messages.sequences[-1], messages.archived_at[-1]))
            if taken.left:
                yield _arrow(messages, taken.left)
        if rows:
            yield _manifest(stage(rows, self._place), *last)

    def _messages(self, partition: Slice) -> Iterator[Messages]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            batches = self._batches(partition)
            # Nothing of a batch refers to itself: to look for what does, again and again, would find nothing.
            gc.disable()
            # Runner.run() sets a signal handler each time, for which Python writes all that a task returned as text.
            run = runner.get_loop().run_until_complete
            try:
                while (messages := run(_next(batches))) is not None:
                    yield messages
            finally:
                gc.enable()
                run(batches.aclose())

    async def _batches(self, wanted: Slice) -> AsyncGenerator[Messages, None]:
        """Read from the first stream, and from the next one what the first does not hold (any more)."""
        async with StreamReader(self._connection, deadline=CONNECT_DEADLINE) as reader:
            missing = [(wanted.first, wanted.last)]
            for stream in self._streams:
                holes: list[tuple[int, int]] = []
                for first, last in missing:
                    following = first
                    async for messages in reader.read(stream, first, last):
                        holes += _holes(messages.sequences, following)
                        following = messages.sequences[-1] + 1
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
    place: Place | None = None,
) -> DataFrame:
    """Read ``sequences``, both ends included, of the first of ``streams``, and of the second what that one lacks.

    Whole advisories are written to ``place``, None: to nowhere.
    """
    options = {
        "connection": encoded_connection(connection),
        "stream": streams[0],
        "fallback": streams[1],
        "first": str(sequences[0]),
        "last": str(sequences[1]),
        "slices": str(slices),
        "place": msgspec.json.encode(place).decode() if place else "",
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


async def _next(batches: AsyncGenerator[Messages, None]) -> Messages | None:
    return await anext(batches, None)


def _holes(sequences: Sequence[int], following: int) -> list[tuple[int, int]]:
    """Give the ranges that are missing; ``following`` is the sequence that would be first.

    >>> _holes([3, 4, 7], 2)
    [(2, 2), (5, 6)]
    """
    if sequences[-1] - following + 1 == len(sequences):
        return []
    pairs = pairwise((following - 1, *sequences))
    return [(before + 1, after - 1) for before, after in pairs if after > before + 1]


def _arrow(messages: Messages, indices: Sequence[int] | None = None) -> pa.RecordBatch:
    """Make rows of the messages, of those at ``indices`` where such are given."""
    if indices is not None and len(indices) < len(messages.sequences):
        messages = messages.at(indices)
    count = len(messages.sequences)
    columns = (
        [str(sequence) for sequence in messages.sequences],
        # Servers pass any bytes; rows are text.
        [subject.decode(errors="backslashreplace") for subject in messages.subjects],
        messages.archived_at,
        *zip(*map(our_headers, messages.headers), strict=True),
        messages.payloads,
        [None] * count,
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _ARROW, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)


def _manifest(files: list[StagedFile], sequence: int, archived_at: bytes) -> pa.RecordBatch:
    row = {"hub_sequence": str(sequence), "archived_at": archived_at, "staged": msgspec.json.encode(files)}
    arrays = [pa.array([row.get(field.name)], field.type) for field in _ARROW]
    return pa.RecordBatch.from_arrays(arrays, schema=_ARROW)

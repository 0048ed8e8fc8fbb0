"""Read a range of sequences in slices, each by a task of its own: from the first stream that has a message.

What the first stream lacks (any more) is read from the next; the last one is the archive, which the others mirror. A
slice is given in the order of its sequences, and is the same again when it is read again.
"""

import asyncio
import gc
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import aclosing
from itertools import pairwise

import msgspec
import numpy as np
import uvloop

from aggregator.archive.consumer import Messages, Numbers
from aggregator.archive.reader import CONNECT_DEADLINE, PAUSES, ReadFailed, StreamReader
from aggregator.config import Reading
from aggregator.lakehouse.archive.mirror import Witnesses, check_witnesses
from shared.nats.connection import ConnectionSettings
from shared.settings import FilePath


class StreamSlices(msgspec.Struct, frozen=True):
    """Where slices are read. ``connection`` is ConnectionSettings as text: paths of secrets, never secrets.

    ``choria_region`` is that of plain Choria advisories on subjects outside ``fleet.>``; with "" they are none.
    """

    connection: str
    streams: tuple[str, ...]
    reading: Reading = "consumer"
    choria_region: str = ""

    @classmethod
    def of(
        cls, connection: ConnectionSettings, *streams: str, reading: Reading = "consumer", choria_region: str = ""
    ) -> "StreamSlices":
        """Read from ``streams``, the first one that has a message first."""
        return cls(encoded_connection(connection), streams, reading, choria_region)

    def read(self, first: int, last: int) -> Generator[Messages, None, None]:
        """Give the messages ``first`` to ``last``, some MiB at a time.

        Raise ReadFailed where the servers do not answer, retention was faster, or a stream mirrors another archive.
        """
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            batches = self._batches(first, last)
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

    async def _batches(self, first: int, last: int) -> AsyncGenerator[Messages, None]:
        archive = self.streams[-1]
        connection = decoded_connection(self.connection)
        async with StreamReader(connection, deadline=CONNECT_DEADLINE, reading=self.reading) as reader:
            witnesses, missing = {stream: Witnesses() for stream in self.streams}, list[tuple[int, int]]()
            async with aclosing(_in_order(reader, self.streams, (first, last), witnesses, missing)) as batches:
                async for messages in batches:
                    yield messages
            for stream in self.streams[:-1]:
                await check_witnesses(reader, stream, archive, witnesses[stream])
            # What the last stream lacks was deleted there, except before its first message: there retention was faster.
            kept = (await reader.state(archive, PAUSES)).first_sequence if missing else 0
            missing = [(begin, min(end, kept - 1)) for begin, end in missing if begin < kept]
            if missing:
                raise ReadFailed(
                    f"stream {archive}: retention removed {missing[0][0]} to {missing[-1][1]} before they"
                    " were read; run again to be told what to do"
                )


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
    """Write connection settings as text: paths of secrets, never secrets."""
    return msgspec.json.encode(settings, enc_hook=str).decode()


def decoded_connection(text: str) -> ConnectionSettings:
    return msgspec.json.decode(text, type=ConnectionSettings, dec_hook=lambda _type, found: FilePath(found))


async def _in_order(
    reader: StreamReader,
    streams: Sequence[str],
    wanted: tuple[int, int],
    witnesses: Mapping[str, Witnesses],
    missing: list[tuple[int, int]],
) -> AsyncGenerator[Messages, None]:
    """Yield the messages ``wanted`` in order, each of the first stream that has it; add the others to ``missing``.

    The hub's time of a message rests on all before it, so a hole is filled before what follows it is given.
    """
    if not streams:
        missing.append(wanted)
        return
    stream, *others = streams
    following, last = wanted
    async with aclosing(reader.read(stream, following, last)) as batches:
        async for messages in batches:
            witnesses[stream].see(messages)
            begin = 0
            for hole in _holes(messages.sequences, following):
                end = int(np.searchsorted(messages.sequences, hole[0]))
                if begin < end:
                    yield messages.part(begin, end)
                async with aclosing(_in_order(reader, others, hole, witnesses, missing)) as fillings:
                    async for filling in fillings:
                        yield filling
                begin = end
            following = int(messages.sequences[-1]) + 1
            yield messages.part(begin, len(messages.sequences)) if begin else messages
    if following <= last:
        async with aclosing(_in_order(reader, others, (following, last), witnesses, missing)) as fillings:
            async for filling in fillings:
                yield filling


async def _next(batches: AsyncGenerator[Messages, None]) -> Messages | None:
    return await anext(batches, None)


def _holes(sequences: Numbers, following: int) -> list[tuple[int, int]]:
    """Give the ranges that are missing; ``following`` is the sequence that would be first.

    >>> _holes(np.array([3, 4, 7]), 2)
    [(2, 2), (5, 6)]
    """
    steps = np.diff(sequences, prepend=following - 1)
    return [(int(sequences[at] - steps[at]) + 1, int(sequences[at]) - 1) for at in np.flatnonzero(steps > 1)]

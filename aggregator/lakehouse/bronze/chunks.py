"""Read what is new in chunks, one ahead: while a chunk is compared and committed, the next one is read.

A chunk ahead lies on the disk, so that memory does not grow for it. Where files cannot be staged, Spark reads a chunk
when it is taken, and nothing is read ahead.
"""

from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import Any, NamedTuple, Self
from uuid import uuid4

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from aggregator.archive.hub_clock import ClockStep, HubClock
from aggregator.lakehouse.archive.hub_time import ClockReport, Settled, clock_report, settled
from aggregator.lakehouse.archive.reading_plan import Span
from aggregator.lakehouse.archive.slices import StreamSlices, cut
from aggregator.lakehouse.bronze.decode import decode, first_by_block
from aggregator.lakehouse.bronze.spark_source import load
from aggregator.lakehouse.bronze.staged_files import StagedFiles, removed_on_failure
from aggregator.lakehouse.bronze.staging import StagedSlice, StagingPlace, stage_slice
from aggregator.lakehouse.spark.process import GONE
from aggregator.lakehouse.warehouse.local_paths import remove
from aggregator.records.judge import SiteBlocks
from shared.identifiers import BlockId

SLICE_MESSAGES, SLICE_BYTES = 100_000, 64 << 20
"""What one task reads at most."""
_WORTH_MESSAGES, _WORTH_BYTES = 20_000, 8 << 20
"""From so much on a task of its own pays, where a core has nothing else to do."""
POOL = "reading"
"""Of Spark's scheduler, which gives each pool its share of the cores: else what is read ahead would go first."""


class ReadChunk(NamedTuple):
    """Messages of ``span``: advisories in ``staged`` files, the others as rows ``decoded``, None where there are none.

    ``staged`` is None where files cannot be staged: then ``decoded``, which is persisted, has the advisories too. The
    hub's ``clock`` is the one after them; ``steps`` of it have ended in them.
    """

    span: Span
    decoded: DataFrame | None
    staged: StagedFiles | None
    clock: HubClock
    steps: Sequence[ClockStep]


def read_chunks(  # noqa: PLR0913 - the one place where all of it comes together
    spark: SparkSession,
    source: StreamSlices,
    spans: Sequence[Span],
    place: StagingPlace | None,
    message_size: int,
    clock: HubClock,
    *,
    site_blocks: SiteBlocks,
) -> Generator[ReadChunk, None, None]:
    """Give the messages of each of ``spans``, in their order; close it, or what was read ahead stays.

    ``message_size``: bytes of a message on the average. The hub's ``clock`` is the one before them. ``site_blocks`` are
    the blocks that count; advisories and watermarks of others are quarantined.
    """
    count = partial(slice_count, message_size=message_size, parallelism=spark.sparkContext.defaultParallelism)
    if place is None:
        for span in spans:
            rows, read = _read_by_spark(spark, source, span, count(span), clock, site_blocks)
            clock = read.clock
            yield ReadChunk(span, rows.where("clock IS NULL"), None, clock, read.steps)
            rows.unpersist()
        return
    with _Ahead(spark, partial(stage_slice, source), place, count, (clock, site_blocks)) as ahead:
        for span, following in zip_longest(spans, spans[1:]):
            staged, found = ahead.take(span)
            if following is not None:
                ahead.begin(following)
            decoded: DataFrame | None = None
            try:
                with removed_on_failure(staged):
                    others = staged.others(spark)
                    decoded = None if others is None else decode(others).persist(StorageLevel.MEMORY_AND_DISK)
                yield ReadChunk(span, decoded, staged, found.clock, found.steps)
            finally:
                if decoded is not None:
                    decoded.unpersist()
                staged.remove_others()


class _SliceRows(NamedTuple):
    """A slice that Spark has read, both ends of its ``sequences`` included."""

    sequences: tuple[int, int]
    clock: ClockReport


def _excess(site_blocks: SiteBlocks, first_by_block: Iterable[tuple[Any, ...]]) -> frozenset[BlockId]:
    """Return the blocks that do not count: a site's first ones do, in the order of their first records."""
    return frozenset(BlockId(*names) for _, *names in sorted(first_by_block) if not site_blocks.admits(*names))


def _read_by_spark(
    spark: SparkSession, source: StreamSlices, span: Span, count: int, before: HubClock, site_blocks: SiteBlocks
) -> tuple[DataFrame, Settled[_SliceRows]]:
    """Read and decode ``span`` by Spark.

    Spark reads it again if the hub's clock was set back, after the right clocks, and if some blocks do not count.
    """
    slices = cut(span.first, span.last, count)

    def read(clocks: Sequence[HubClock], excess: Collection[BlockId] = ()) -> DataFrame:
        rows = load(spark, source, (span.first, span.last), clocks, excess)
        return decode(rows).persist(StorageLevel.MEMORY_AND_DISK)

    def read_again(reading: _SliceRows, clock: HubClock) -> _SliceRows:
        task = partial(clock_report, source, clock)
        return reading._replace(clock=spark.sparkContext.parallelize([reading.sequences], 1).map(task).collect()[0])

    decoded = read([before, *(HubClock() for _ in slices[1:])])
    rows = decoded.where("clock IS NOT NULL").select("hub_sequence", "clock").collect()
    reports = (ClockReport.parse(row.clock) for row in sorted(rows))
    readings = list(map(_SliceRows, slices, reports))
    found = settled(before, readings, read_again)
    if found.readings != readings:
        decoded.unpersist()
        decoded = read([reading.clock.before for reading in found.readings])
    excess = _excess(site_blocks, first_by_block(decoded).collect())
    if excess:
        # Their records are quarantined as they came, and the rows of advisories have no payloads any more.
        decoded.unpersist()
        decoded = read([reading.clock.before for reading in found.readings], excess)
    return decoded, found


class _Ahead:
    """Reads one chunk at a time in a thread of its own. A context manager; what nobody took is removed at its end.

    The hub's ``clock`` is the one before the first of them.
    """

    def __init__(
        self,
        spark: SparkSession,
        stage: Callable[..., StagedSlice],
        place: StagingPlace,
        count: Callable[[Span], int],
        before: tuple[HubClock, SiteBlocks],
    ) -> None:
        self._spark, self._stage, self._place, self._count = spark, stage, place, count
        self._clock, self._site_blocks = before
        self._group = f"reading-{uuid4()}"
        self._thread = ThreadPoolExecutor(1, "reading")
        self._reading: Future[tuple[StagedFiles, Settled[StagedSlice]]] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            if self._reading is not None:
                # A JVM that is gone reads nothing any more.
                with suppress(*GONE):
                    self._spark.sparkContext.cancelJobGroup(self._group)
                if not self._reading.exception():
                    staged, _ = self._reading.result()
                    staged.remove()
                    staged.remove_others()
        finally:
            self._thread.shutdown()

    def begin(self, span: Span) -> None:
        """Begin to read ``span``, which follows what was taken."""
        self._reading = self._thread.submit(self._read, span, self._place.for_next_reading(), self._clock)

    def take(self, span: Span) -> tuple[StagedFiles, Settled[StagedSlice]]:
        """Give what was read of ``span``, which was begun unless it is the first."""
        if self._reading is None:
            self.begin(span)
        assert self._reading is not None
        staged, found = self._reading.result()
        self._reading, self._clock = None, found.clock
        return staged, found

    def _read(self, span: Span, place: StagingPlace, before: HubClock) -> tuple[StagedFiles, Settled[StagedSlice]]:
        first, *others = cut(span.first, span.last, self._count(span))

        def read_again(slice_: StagedSlice, clock: HubClock) -> StagedSlice:
            for name in slice_.names:
                remove(place.path(name))
            (again,) = self._staged(span, place, [(slice_.sequences, clock)])
            return again

        read = self._staged(span, place, [(first, before), *((sequences, HubClock()) for sequences in others)])
        found = settled(before, read, read_again)
        excess = _excess(self._site_blocks, (each for one in found.readings for each in one.blocks))
        if excess:
            # Their records are quarantined as they came, and what was staged has no payloads any more.
            place.forget()
            slices = [(each.sequences, each.clock.before) for each in found.readings]
            found = found._replace(readings=self._staged(span, place, slices, excess))
        return StagedFiles(place, found.readings), found

    def _staged(
        self,
        span: Span,
        place: StagingPlace,
        slices: Sequence[tuple[tuple[int, int], HubClock]],
        excess: frozenset[BlockId] = frozenset(),
    ) -> list[StagedSlice]:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(self._group, f"reading {span}")
        try:
            stage = partial(self._stage, place, excess)
            return context.parallelize(slices, len(slices)).map(lambda each: stage(*each)).collect()
        except BaseException:
            # Nobody will ask for what some of the slices have staged.
            place.forget()
            raise


def slice_count(span: Span, message_size: int, parallelism: int) -> int:
    """Say into how many slices ``span`` is cut: none too large, and one for each core if that pays.

    ``message_size``: bytes of a message on the average.
    """
    messages, size = span.count, span.count * message_size
    needed = max(-(-messages // SLICE_MESSAGES), -(-size // SLICE_BYTES))
    worth = max(-(-messages // _WORTH_MESSAGES), -(-size // _WORTH_BYTES))
    return max(1, needed, min(parallelism, worth))

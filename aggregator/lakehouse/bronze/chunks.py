"""Read what is new in chunks, one ahead: while a chunk is compared and committed, the next one is read.

A chunk ahead lies on the disk, so that memory does not grow for it. Where files cannot be staged, Spark reads a chunk
when it is taken, and nothing is read ahead.
"""

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import zip_longest
from typing import NamedTuple, Self
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from aggregator.archive.judgement import SiteBlocks
from aggregator.lakehouse.archive.reading_plan import Span
from aggregator.lakehouse.archive.slices import StreamSlices, cut
from aggregator.lakehouse.bronze.spark_source import load
from aggregator.lakehouse.bronze.staged_files import StagedFiles, removed_on_failure
from aggregator.lakehouse.bronze.staging import Place, StagedSlice, stage_slice
from aggregator.lakehouse.spark.process import GONE
from shared.identifiers import BlockId

SLICE_MESSAGES, SLICE_BYTES = 100_000, 64 << 20
"""What one task reads at most."""
_WORTH_MESSAGES, _WORTH_BYTES = 20_000, 8 << 20
"""From so much on a task of its own pays, where a core has nothing else to do."""
POOL = "reading"
"""Of Spark's scheduler, which gives each pool its share of the cores: else what is read ahead would go first."""


class Chunk(NamedTuple):
    """Messages of ``span``: advisories in ``staged`` files, the others as rows ``raw``, None where there are none.

    ``staged`` is None where files cannot be staged: then ``raw`` has the advisories too.
    """

    span: Span
    raw: DataFrame | None
    staged: StagedFiles | None


def read_chunks(  # noqa: PLR0913 - the one place where all of it comes together
    spark: SparkSession,
    source: StreamSlices,
    spans: Sequence[Span],
    place: Place | None,
    message_size: int,
    choria_region: str = "",
    *,
    site_blocks: SiteBlocks,
) -> Generator[Chunk, None, None]:
    """Give the messages of each of ``spans``, in their order; close it, or what was read ahead stays.

    ``message_size``: bytes of a message on the average. ``choria_region`` is that of plain Choria advisories on
    subjects outside ``fleet.>``. ``site_blocks`` are the blocks that count; of others, where files can be staged,
    advisories and watermarks are quarantined.
    """
    count = partial(slice_count, message_size=message_size, parallelism=spark.sparkContext.defaultParallelism)
    if place is None:
        for span in spans:
            raw = load(spark, source, (span.first, span.last), count(span), choria_region)
            yield Chunk(span, raw, None)
        return
    with _Ahead(spark, partial(stage_slice, source, choria_region), place, count, site_blocks) as ahead:
        for span, following in zip_longest(spans, spans[1:]):
            staged = ahead.take(span)
            if following is not None:
                ahead.begin(following)
            try:
                with removed_on_failure(staged):
                    others = staged.others(spark)
                yield Chunk(span, others, staged)
            finally:
                staged.remove_others()


class _Ahead:
    """Reads one chunk at a time in a thread of its own. A context manager; what nobody took is removed at its end."""

    def __init__(
        self,
        spark: SparkSession,
        stage: Callable[[Place, frozenset[BlockId], tuple[int, int]], StagedSlice],
        place: Place,
        count: Callable[[Span], int],
        site_blocks: SiteBlocks,
    ) -> None:
        self._spark, self._stage, self._place, self._count = spark, stage, place, count
        self._site_blocks = site_blocks
        self._group = f"reading-{uuid4()}"
        self._thread = ThreadPoolExecutor(1, "reading")
        self._reading: Future[StagedFiles] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        try:
            if self._reading is not None:
                # A JVM that is gone reads nothing any more.
                with suppress(*GONE):
                    self._spark.sparkContext.cancelJobGroup(self._group)
                if not self._reading.exception():
                    staged = self._reading.result()
                    staged.remove()
                    staged.remove_others()
        finally:
            self._thread.shutdown()

    def begin(self, span: Span) -> None:
        """Begin to read ``span``."""
        self._reading = self._thread.submit(self._read, span, self._place.for_next_reading())

    def take(self, span: Span) -> StagedFiles:
        """Give what was read of ``span``, which was begun unless it is the first."""
        if self._reading is None:
            self.begin(span)
        assert self._reading is not None
        staged = self._reading.result()
        self._reading = None
        return staged

    def _read(self, span: Span, place: Place) -> StagedFiles:
        found = self._staged(span, place, frozenset())
        named = sorted(each for one in found for each in one.blocks)
        excess = {BlockId(*block_id) for _, *block_id in named if not self._site_blocks.admits(*block_id)}
        if excess:
            # Their records are quarantined as they came, and what was staged has no payloads any more.
            place.forget()
            found = self._staged(span, place, frozenset(excess))
        return StagedFiles(place, found)

    def _staged(self, span: Span, place: Place, excess: frozenset[BlockId]) -> list[StagedSlice]:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(self._group, f"reading {span}")
        slices = cut(span.first, span.last, self._count(span))
        try:
            return context.parallelize(slices, len(slices)).map(partial(self._stage, place, excess)).collect()
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

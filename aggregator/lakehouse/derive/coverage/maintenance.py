"""Know which time was declared maintenance, and cut coverage and lives there.

Maintenance of whole blocks is looked at as coverage is: once for a block, however many senders it has. Of senders that
are named, the lives themselves are cut on the days that they are named for, where they or their blocks are in
maintenance, and these days are listed. What else is declared changes nothing on such a day, nor they on any other.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple
from zlib import crc32

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import BLOCK, MAINTENANCE, SENDER, site_bucket
from aggregator.lakehouse.spark.effort import computed_once
from aggregator.lakehouse.tables.causes import Cause
from aggregator.lakehouse.tables.policy import CANCEL_KIND, MAINTENANCE_KIND, POLICY
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.windows import DAY_US, floor_to

_FOR_EVER = 1 << 62
_SPAN = "array<struct<started_at: bigint, ended_at: bigint>>"


class Declared(NamedTuple):
    """One window: ``site`` and ``block`` "" stand for all, and so do no ``sender_ids``. Instants in microseconds."""

    region: str
    site: str
    block: str
    sender_ids: tuple[str, ...]
    started_at: int
    ended_at: int


def declared(spark: SparkSession, sequence: int) -> frozenset[Declared]:
    """Read what is declared, and not taken back, as of a position of the hub's archive."""
    if not Iceberg(spark).row_count(POLICY):
        return frozenset()
    rows = (
        spark.table(POLICY.identifier)
        .where((f.col("hub_sequence") <= sequence) & f.col("kind").isin(MAINTENANCE_KIND, CANCEL_KIND))
        .select(
            "kind",
            f.unix_micros("stream_created_at").alias("past"),
            "revision",
            "cancelled_revision",
            f.coalesce("region", f.lit("")).alias("region"),
            f.coalesce("site", f.lit("")).alias("site"),
            f.coalesce("block", f.lit("")).alias("block"),
            f.coalesce("sender_ids", f.array()).alias("sender_ids"),
            f.unix_micros("started_at").alias("started_at"),
            f.unix_micros("ended_at").alias("ended_at"),
        )
        .collect()
    )
    void = {(row.past, row.cancelled_revision) for row in rows if row.kind == CANCEL_KIND}
    return frozenset(
        Declared(row.region, row.site, row.block, tuple(sorted(row.sender_ids)), row.started_at, row.ended_at)
        for row in rows
        if row.kind == MAINTENANCE_KIND and (row.past, row.revision) not in void
    )


def begin_with(begins: Mapping[int, int], before: Collection[Declared], now: Collection[Declared]) -> Mapping[int, int]:
    """Let ``begins`` (a midnight for each bucket of sites) reach back to what was declared or cancelled since."""
    found = dict(begins)
    for window in set(before) ^ set(now):
        midnight = window.started_at - window.started_at % DAY_US
        buckets = [crc32(window.site.encode()) % SITE_BUCKETS] if window.site else list(found)
        for bucket in buckets:
            found[bucket] = min(found[bucket], midnight)
    return found


class DeclaredMaintenance:
    """What was declared, over the time that is looked at."""

    def __init__(self, spark: SparkSession, windows: Iterable[Declared], begin: int, known_through: int) -> None:
        self._spark, self._known_through = spark, known_through
        relevant = [each for each in windows if each.started_at < known_through and each.ended_at > begin]
        self._of_blocks = [each for each in relevant if not each.sender_ids]
        self._of_senders = [each for each in relevant if each.sender_ids]
        self._found: DataFrame | None = None

    def cut_coverage(self, coverage: DataFrame) -> DataFrame:
        """Give rows of ``site_coverage`` in which maintenance of whole blocks is a cause, and outranks all others."""
        planned = self._spans_of_blocks(coverage)
        if planned is None:
            return coverage
        started_at, ended_at = f.unix_micros("started_at"), f.unix_micros("ended_at")
        others = [name for name in coverage.columns if name not in ("started_at", "ended_at", "known", "cause")]
        pieces = _pieces(started_at, ended_at, f.coalesce("planned", f.array().cast(_SPAN)))
        cut = coverage.join(f.broadcast(planned), [*BLOCK], "left").select(*others, "known", "cause", f.inline(pieces))
        return cut.select(
            *others,
            f.timestamp_micros("piece_started_at").alias("started_at"),
            f.timestamp_micros("piece_ended_at").alias("ended_at"),
            (f.col("known") & ~f.col("is_planned")).alias("known"),
            f.when(f.col("is_planned"), Cause.MAINTENANCE).otherwise(f.col("cause")).alias("cause"),
        )

    def cut_spans(self, spans: DataFrame) -> DataFrame:
        """Give ``spans``, as of ``window_accounts.spans_since``, with the lives of named senders cut.

        ``before_at`` is added: when the part of the same span before it ended that is not maintenance; null: none.
        """
        with_nothing = spans.withColumn("before_at", f.lit(None).cast("bigint"))
        planned = self._spans_of_senders(spans)
        if planned is None:
            return with_nothing
        ended_at = f.coalesce("ended_at", f.lit(_FOR_EVER))
        parts = f.filter("pieces", lambda piece: ~piece["is_planned"])

        def ended_before(piece: Column) -> Column:
            earlier = f.filter(parts, lambda part: part["piece_ended_at"] <= piece["piece_started_at"])
            return f.array_max(f.transform(earlier, lambda part: part["piece_ended_at"]))

        cut = computed_once(
            spans.join(f.broadcast(planned), [*SENDER])
            .withColumn("pieces", _pieces(f.col("started_at"), ended_at, f.col("planned")))
            .withColumn(
                "pieces", f.transform("pieces", lambda piece: piece.withField("before_at", ended_before(piece)))
            )
            .select(*SENDER, "state", f.inline("pieces"))
            .select(
                *SENDER,
                f.when(f.col("is_planned"), MAINTENANCE).otherwise(f.col("state")).alias("state"),
                f.col("piece_started_at").alias("started_at"),
                f.when(f.col("piece_ended_at") < _FOR_EVER, f.col("piece_ended_at")).alias("ended_at"),
                "before_at",
            )
            .where(f.col("started_at") < self._known_through)
        )
        named = planned.select(*SENDER)
        others = with_nothing.join(f.broadcast(named), [*SENDER], "left_anti")
        return others.unionByName(cut)

    def sender_days(self, spans: DataFrame) -> DataFrame:
        """Give the rows of the table ``sender_maintenance_days``, since where ``spans`` begin."""
        planned = self._spans_of_senders(spans)
        if planned is None:
            return self._spark.sql(
                "SELECT CAST(NULL AS DATE) AS day, '' AS region, '' AS site, '' AS block, '' AS sender_id,"
                " 0 AS site_bucket WHERE false"
            )
        ended_at = f.least(f.coalesce("ended_at", f.lit(_FOR_EVER)), f.lit(self._known_through))
        lived = spans.select(*SENDER, f.col("started_at").alias("lived_from"), ended_at.alias("lived_until"))
        since, until = f.greatest("lived_from", "started_at"), f.least("lived_until", "ended_at")
        days = f.sequence(floor_to(since, DAY_US), until - 1, f.lit(DAY_US))
        return (
            lived.join(f.broadcast(planned), [*SENDER])
            .select(*SENDER, "lived_from", "lived_until", f.inline("planned"))
            .where(since < until)
            .select(*SENDER, f.explode(days).alias("at"))
            .select(f.to_date(f.timestamp_micros("at")).alias("day"), *SENDER, site_bucket().alias("site_bucket"))
            .distinct()
        )

    def _spans_of_blocks(self, blocks: DataFrame) -> DataFrame | None:
        """Give (region, site, block, ``planned``: its spans) for the blocks that are in maintenance as a whole."""
        if not self._of_blocks:
            return None
        windows = self._frame([(each, "") for each in self._of_blocks])
        return _gathered(blocks.select(*BLOCK).distinct(), windows, BLOCK)

    def _spans_of_senders(self, spans: DataFrame) -> DataFrame | None:
        """Give (sender, ``planned``) for those that are named: their own spans, and their blocks' on the same days."""
        if not self._of_senders:
            return None
        if self._found is None:
            self._found = computed_once(self._named(spans))
        return self._found

    def _named(self, spans: DataFrame) -> DataFrame:
        named = self._frame([(each, sender_id) for each in self._of_senders for sender_id in each.sender_ids])
        names = sorted({sender_id for each in self._of_senders for sender_id in each.sender_ids})
        of_names = self._spark.createDataFrame([(name,) for name in names], "sender_id string")
        candidates = spans.select(*SENDER).join(f.broadcast(of_names), ["sender_id"], "left_semi").distinct()
        own = _gathered(candidates, named, SENDER)
        of_blocks = self._spans_of_blocks(own)
        if of_blocks is None:
            return own
        together = own.join(of_blocks.withColumnRenamed("planned", "of_block"), [*BLOCK], "left")
        of_block = _on_days_of(f.col("planned"), f.coalesce("of_block", f.array().cast(_SPAN)))
        return together.select(*SENDER, f.array_union("planned", of_block).alias("planned"))

    def _frame(self, windows: list[tuple[Declared, str]]) -> DataFrame:
        rows = [
            (each.region, each.site, each.block, sender_id, each.started_at, each.ended_at)
            for each, sender_id in windows
        ]
        schema = "in_region string, in_site string, in_block string, named string, started_at bigint, ended_at bigint"
        return self._spark.createDataFrame(rows, schema)


def _gathered(of: DataFrame, windows: DataFrame, keys: tuple[str, ...]) -> DataFrame:
    """Gather the windows of each of ``of``, whose columns are ``keys``; those without any are left out."""
    meant = (f.col("in_region") == f.col("region")) & f.col("in_site").isin("", f.col("site"))
    meant &= f.col("in_block").isin("", f.col("block"))
    if "sender_id" in keys:
        meant &= f.col("named") == f.col("sender_id")
    return (
        of.join(f.broadcast(windows), meant)
        .groupBy(*keys)
        .agg(f.collect_set(f.struct("started_at", "ended_at")).cast(_SPAN).alias("planned"))
    )


def _on_days_of(named: Column, spans: Column) -> Column:
    """Give of ``spans`` what lies on the days that ``named`` ones touch."""

    def on_days_of(one: Column) -> Column:
        begin_at, end_at = floor_to(one["started_at"], DAY_US), floor_to(one["ended_at"] - 1, DAY_US) + DAY_US
        within = f.transform(
            spans,
            lambda span: f.struct(
                f.greatest(span["started_at"], begin_at).alias("started_at"),
                f.least(span["ended_at"], end_at).alias("ended_at"),
            ),
        )
        return f.filter(within, lambda span: span["started_at"] < span["ended_at"])

    return f.flatten(f.transform(named, on_days_of))


def _pieces(started_at: Column, ended_at: Column, planned: Column) -> Column:
    """Cut a span wherever a planned one starts or ends, and say of each piece whether it is planned."""
    inner = f.concat(
        f.transform(planned, lambda span: span["started_at"]), f.transform(planned, lambda span: span["ended_at"])
    )
    inside = f.filter(inner, lambda at: (at > started_at) & (at < ended_at))
    edges = f.array_sort(f.array_distinct(f.concat(f.array(started_at, ended_at), inside)))

    def piece(begin: Column, end: Column) -> Column:
        is_planned = f.exists(planned, lambda span: (span["started_at"] <= begin) & (span["ended_at"] >= end))
        return f.struct(begin.alias("piece_started_at"), end.alias("piece_ended_at"), is_planned.alias("is_planned"))

    return f.zip_with(f.slice(edges, 1, f.size(edges) - 1), f.slice(edges, 2, f.size(edges) - 1), piece)

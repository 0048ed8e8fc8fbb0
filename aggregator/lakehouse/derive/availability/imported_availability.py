"""Availability of imported senders, by each definition in use; it counts imports only.

Its tables are stored. As views, one query of the 588,463 intervals of the Grid'5000 trace took Spark more than nine
minutes, because Spark computes the pieces again for each part of the query. Nor can they be derived from
``sender_intervals``, which joins neighbours of one state and drops intervals of no length: it has 588,414 intervals of
that trace, whose mean is 32.409 hours up instead of the published 32.406.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals.episodes import DOWN, SENDER, UNKNOWN, UP
from aggregator.lakehouse.derive.intervals.imported_intervals import pieces
from aggregator.lakehouse.tables.imports import IMPORT_AVAILABILITY, IMPORT_SENDER_AVAILABILITY
from shared.instants import HOUR, MINUTE

_SUM = "decimal(38,0)"


def import_sender_availability(imports: DataFrame) -> DataFrame:
    """Return the rows of the table ``import_sender_availability``."""
    length = f.col("ended_at") - f.col("started_at")
    of_sender = Window.partitionBy(*SENDER)
    first_up = f.min(f.when((f.col("state") == UP) & (length > 0), f.col("started_at"))).over(of_sender)
    is_up, is_down = f.col("state") == UP, f.col("state") == DOWN
    before_first_up = is_down & (f.col("first_up").isNull() | (f.col("started_at") < f.col("first_up")))
    sums = (
        pieces(imports)
        .withColumn("first_up", first_up)
        .groupBy(*SENDER)
        .agg(
            f.max_by("groups", "started_at").alias("groups"),
            f.timestamp_micros(f.min("started_at")).alias("observed_from"),
            f.timestamp_micros(f.max("ended_at")).alias("observed_to"),
            _time(is_up, length).alias("up_us"),
            _time(is_down, length).alias("down_us"),
            _time(f.col("state") == UNKNOWN, length).alias("unknown_us"),
            _time(before_first_up, length).alias("initial_down_us"),
            f.count_if(is_up).alias("up_interval_count"),
            f.count_if(is_down).alias("down_interval_count"),
            f.count_if(length == 0).alias("zero_length_count"),
        )
    )
    return sums.select("*", *_ratios()).select(*IMPORT_SENDER_AVAILABILITY.column_names)


def import_availability(imports: DataFrame, senders: DataFrame) -> DataFrame:
    """Return the rows of the table ``import_availability``; ``senders`` are those of ``import_sender_availability``."""
    keys = ["block", "grouping", "region", "site", "group_name"]
    of_block = Window.partitionBy("block")
    period_us = f.unix_micros(f.max("observed_to").over(of_block)) - f.unix_micros(
        f.min("observed_from").over(of_block)
    )
    summed = ("up_us", "down_us", "unknown_us", "initial_down_us")
    counted = ("up_interval_count", "down_interval_count", "zero_length_count")
    times = (
        _in_groups(senders.withColumn("period_us", period_us))
        .groupBy(*keys)
        .agg(
            f.count(f.lit(1)).alias("sender_count"),
            f.min("observed_from").alias("observed_from"),
            f.max("observed_to").alias("observed_to"),
            f.first("period_us").alias("period_us"),
            *(f.sum(f.col(name).cast(_SUM)).cast(_SUM).alias(name) for name in summed),
            f.avg("availability_observed").alias("availability_sender_mean"),
            *(f.sum(name).alias(name) for name in counted),
        )
        .select("*", *_ratios())
    )
    whole = f.col("sender_count").cast("double") * f.col("period_us").cast("double")
    published = times.withColumn("availability_whole_period", f.try_divide(f.col("up_us").cast("double"), whole))
    same = [published[key].eqNullSafe(f.col(f"l.{key}")) for key in keys]
    lengths = _lengths(_in_groups(pieces(imports)), keys).alias("l")
    return (
        published.join(lengths, same)
        .drop(*(f.col(f"l.{key}") for key in keys))
        .select(*IMPORT_AVAILABILITY.column_names)
    )


def _in_groups(rows: DataFrame) -> DataFrame:
    """Repeat every row for each group of its sender; region and site are null where the group spans several."""
    nothing = f.lit(None).cast("string")

    def group(grouping: Column, region: Column, site: Column, name: Column) -> Column:
        return f.struct(
            grouping.alias("grouping"), region.alias("of_region"), site.alias("of_site"), name.alias("group_name")
        )

    region, site = f.col("region"), f.col("site")
    named = f.transform(f.map_entries("groups"), lambda entry: group(entry["key"], region, site, entry["value"]))
    levels = f.array(
        group(f.lit("all"), nothing, nothing, nothing),
        group(f.lit("region"), region, nothing, nothing),
        group(f.lit("site"), region, site, nothing),
    )
    kept = [name for name in rows.columns if name not in ("region", "site")]
    return rows.select(*kept, f.inline(f.concat(levels, named))).withColumnsRenamed(
        {"of_region": "region", "of_site": "site"}
    )


def _lengths(grouped: DataFrame, keys: list[str]) -> DataFrame:
    length = f.col("ended_at") - f.col("started_at")
    up, down = f.col("state") == UP, f.col("state") == DOWN
    hours = length.cast("double") / HOUR
    figures = []
    for name, of_state in (("up", up), ("down", down)):
        logarithm = f.ln(f.when(of_state & (length > 0), hours))
        figures += [
            f.avg(f.when(of_state, hours)).alias(f"{name}_mean_hours"),
            f.avg(logarithm).alias(f"{name}_lognormal_mu"),
            f.stddev_pop(logarithm).alias(f"{name}_lognormal_sigma"),
        ]
    median = f.percentile(f.when(down, length), 0.5)
    return grouped.groupBy(*keys).agg(
        *figures,
        f.round(median).cast("bigint").alias("down_median_us"),
        f.count_if(down & (length > 5 * MINUTE)).alias("down_over_5m_count"),
        f.count_if(down & (length > 15 * MINUTE)).alias("down_over_15m_count"),
    )


def _time(condition: Column, length: Column) -> Column:
    return f.sum(f.when(condition, length).otherwise(0))


def _ratios() -> list[Column]:
    up, known = f.col("up_us").cast("double"), (f.col("up_us") + f.col("down_us")).cast("double")
    total = (f.col("up_us") + f.col("down_us") + f.col("unknown_us")).cast("double")
    return [
        f.try_divide(up, known).alias("availability_observed"),
        f.try_divide(up, total).alias("availability_total"),
        f.try_divide(known, total).alias("coverage"),
        f.try_divide(up, known - f.col("initial_down_us").cast("double")).alias("availability_after_first_up"),
    ]

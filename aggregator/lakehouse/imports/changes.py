"""Make intervals of rows that say when a state began: each lasts until its sender's next row that says otherwise."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.intervals import SENDER


def until_next(rows: DataFrame, until: int | None) -> DataFrame:
    """Give rows of ``imports`` that end; of those that repeat a state the first only.

    A sender's last state lasts until its last row, or until ``until`` (microseconds), where that is later.
    """
    in_time = Window.partitionBy(*SENDER).orderBy("started_at", "import_id", "line")
    changes = (
        rows.withColumn("before", f.lag("state").over(in_time))
        .withColumn("last_row_at", f.max("started_at").over(Window.partitionBy(*SENDER)))
        .where(~f.col("state").eqNullSafe(f.col("before")))
    )
    end = f.greatest("last_row_at", f.timestamp_micros(f.lit(until))) if until is not None else f.col("last_row_at")
    return (
        changes.withColumn("ended_at", f.coalesce(f.lead("started_at").over(in_time), end))
        .withColumn("zero_length", f.col("started_at") == f.col("ended_at"))
        .select(*rows.columns)
    )

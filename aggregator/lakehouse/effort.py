"""Plan and compile less where there is little to compute: for a few rows, planning is nearly all that a run does."""

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from aggregator.lakehouse.iceberg import Iceberg
from aggregator.lakehouse.table import Table

FEW_ROWS = 200_000
"""Rows that are computed faster one by one than it takes to compile code for them."""

_FOR_FEW = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "1",
}


def fit(spark: SparkSession, tables: Iterable[Table], new_count: int, chosen: Mapping[str, str]) -> None:
    """Set up the session for ``tables`` and as many new rows. What an operator has ``chosen`` stays."""
    iceberg = Iceberg(spark)
    rows = new_count + sum(iceberg.row_count(table) for table in tables)
    started_with = dict(spark.sparkContext.getConf().getAll())
    for name, value in _FOR_FEW.items():
        if name in chosen:
            continue
        wanted = value if rows <= FEW_ROWS else started_with.get(name)
        if wanted is None:
            # What nobody set has Spark's default again.
            spark.conf.unset(name)
        else:
            spark.conf.set(name, wanted)

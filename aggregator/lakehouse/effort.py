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


_FOR_MANY = {"spark.sql.codegen.factoryMode": "FALLBACK", "spark.sql.codegen.wholeStage": "true"}


def fit(spark: SparkSession, tables: Iterable[Table], new_count: int, chosen: Mapping[str, str]) -> None:
    """Set up the session for ``tables`` and as many new rows. What an operator has ``chosen`` stays."""
    iceberg = Iceberg(spark)
    rows = new_count + sum(iceberg.row_count(table) for table in tables)
    for_many = {**_FOR_MANY, **dict(spark.sparkContext.getConf().getAll())}
    for name, value in _FOR_FEW.items():
        if name not in chosen:
            spark.conf.set(name, value if rows <= FEW_ROWS else for_many[name])

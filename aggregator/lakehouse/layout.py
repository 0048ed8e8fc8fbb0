"""Lay rows out as their table wants them, one file for each partition where that is not too large, sorted inside.

Iceberg would, but asks ``days()`` anew in every comparison of the sort: that took longer than all the rest of a rollup.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.warehouse.windows import DAY_US, floor_to


def laid_out(rows: DataFrame, table: Table) -> DataFrame:
    """Bring the rows of each partition together, in the table's order; the columns are the table's."""
    if not table.partitioned_by:
        return rows.sortWithinPartitions(*table.sorted_by) if table.sorted_by else rows
    parts = {f"partition_{place}": _partition(transform) for place, transform in enumerate(table.partitioned_by)}
    placed = rows.withColumns(parts).repartition(*parts).sortWithinPartitions(*parts, *table.sorted_by)
    return placed.select(*table.column_names)


def _partition(transform: str) -> Column:
    name = transform.removeprefix("days(").removesuffix(")")
    return f.col(name) if name == transform else floor_to(f.unix_micros(name), DAY_US)

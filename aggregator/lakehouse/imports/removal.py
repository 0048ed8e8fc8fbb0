"""Forget imports: what they brought goes, and the next derivation makes the tables as if they had never come.

Order of commits: what was quarantined, then the intervals. A removal that is killed between the two still finds the
import, and ends it when it is asked for again.
"""

from collections.abc import Collection

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from aggregator.lakehouse.derive.imported_intervals import reached_by_row
from aggregator.lakehouse.imports.listing import Imported
from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.imports import IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.commits import HubPosition


def remove(spark: SparkSession, imports: Collection[Imported], stands: HubPosition) -> HubPosition:
    """Take the rows of ``imports`` out of both tables, and advance ``imports``, which stands at ``stands``."""
    _without(spark, IMPORT_QUARANTINE, imports, stands)
    left = spark.table(IMPORTS.identifier).where(~f.col("import_id").isin(*(each.import_id for each in imports)))
    reached = left.agg(f.max(f.unix_micros(reached_by_row()))).first()
    position = msgspec.structs.replace(
        stands, sequence=stands.sequence + 1, known_through=(reached[0] if reached else None) or 0
    )
    _without(spark, IMPORTS, imports, position)
    return position


def _without(spark: SparkSession, table: Table, imports: Collection[Imported], position: HubPosition) -> None:
    """Write the blocks again that any of ``imports`` is in, without them: a block is a partition."""
    of_blocks = f.col("block").isin(*{each.block for each in imports})
    kept = ~f.col("import_id").isin(*(each.import_id for each in imports))
    commits.replace(spark.table(table.identifier).where(of_blocks & kept), table, of_blocks, position)

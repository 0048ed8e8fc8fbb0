"""Make the tables, the columns and the views that a warehouse lacks: also after an update that brings new ones."""

import hashlib

from pyspark.sql import SparkSession

from aggregator.lakehouse.table_upgrade import TableUpgrade
from aggregator.lakehouse.tables.schemas import POSITIONS, TABLES
from aggregator.lakehouse.tables.view_sql import spark_queries
from aggregator.lakehouse.warehouse.iceberg import Iceberg, quoted

_PROPERTIES = {
    "format-version": "2",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    # Ids and instants hardly repeat: with room for all of a file's, each is looked up for nothing and written twice.
    "write.parquet.dict-size-bytes": "65536",
}
_VIEW_DEFINITION = "muster.view"
DEFINITION = "muster.tables"
"""Property of one table that says of all tables and views which version they are of: to load each takes its time."""


def prepare(spark: SparkSession) -> None:
    """Make the namespace, the tables and the views that are not there yet; make those views anew that have changed.

    Tables that an older version made get the columns and comments that they lack; raise TableDiffers where they cannot.
    """
    iceberg = Iceberg(spark)
    iceberg.make_namespaces()
    present = iceberg.names()
    for table in TABLES:
        if table.name not in present:
            iceberg.create(table, _PROPERTIES)
    is_of_this_version = iceberg.load(POSITIONS).properties().get(DEFINITION) == definition()
    if not is_of_this_version:
        upgrade = TableUpgrade(spark)
        for table in TABLES:
            if table.name in present:
                upgrade.bring(table)
    for view, query in spark_queries():
        digest = _digest(repr((view, query)))
        if view.name in present and iceberg.view_property(view, _VIEW_DEFINITION) == digest:
            continue
        comments = ", ".join(f"{column.name} COMMENT {quoted(column.comment)}" for column in view.columns)
        spark.sql(
            f"CREATE OR REPLACE VIEW {view.identifier} ({comments}) COMMENT {quoted(view.comment)}"
            f" TBLPROPERTIES ('{_VIEW_DEFINITION}' = '{digest}') AS {query}"
        )
    if not is_of_this_version:
        # Last: it says that everything else is done.
        iceberg.load(POSITIONS).updateProperties().set(DEFINITION, definition()).commit()


def definition() -> str:
    """Name all that ``prepare`` makes: with another version's tables or views it is another."""
    return _digest(repr((TABLES, list(spark_queries()))))


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

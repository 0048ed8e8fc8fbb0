"""Give a table that an older version made the columns and comments of this one: in place, and no row is written.

Columns are found by Iceberg's own numbers, so what older files lack is null there, for every engine. What Iceberg
cannot change in place is refused before anything of the table was changed.
"""

from typing import Any

from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.jvm import java_class


class TableDiffers(RuntimeError):
    """A table cannot become what this version needs. The text is one line: which table, what differs, what to do."""


class TableUpgrade:
    """The catalog of one session, whose tables are compared with those of ``schemas.py``."""

    def __init__(self, spark: SparkSession) -> None:
        self._iceberg = Iceberg(spark)
        self._may_become = java_class(spark, "org.apache.iceberg.types.TypeUtil").isPromotionAllowed

    def bring(self, table: Table) -> None:
        """Add what ``table`` lacks, in one commit, or none where it lacks nothing; raise TableDiffers."""
        loaded = self._iceberg.load(table)
        wanted = self._iceberg.schema(table)
        self._check(table, loaded, wanted)
        found, change, differs = loaded.schema(), loaded.updateSchema(), False
        before = None
        for column in table.columns:
            name, there, field = column.name, found.findField(column.name), wanted.findField(column.name)
            if there is None:
                differs = True
                change.addColumn(name, field.type(), column.comment)
                # Whoever says SELECT * finds it where the documents have it.
                if before is None:
                    change.moveFirst(name)
                else:
                    change.moveAfter(name, before)
            else:
                if str(there.type()) != str(field.type()):
                    differs = True
                    change.updateColumn(name, field.type().asPrimitiveType())
                if there.doc() != column.comment:
                    differs = True
                    change.updateColumnDoc(name, column.comment)
            before = name
        if differs:
            change.commit()
        if loaded.properties().get("comment") != table.comment:
            loaded.updateProperties().set("comment", table.comment).commit()

    def _check(self, table: Table, loaded: Any, wanted: Any) -> None:
        found = loaded.schema()
        unknown = [field.name() for field in found.columns() if field.name() not in table.column_names]
        if unknown:
            raise TableDiffers(
                f"{table.identifier} has a column {unknown[0]} that this version of Muster does not know: a newer one"
                " has written these tables; run that one"
            )
        for column in table.columns:
            there = found.findField(column.name)
            if there is not None:
                old, new = there.type(), wanted.findField(column.name).type()
                same = str(old) == str(new)
                if not same and not (new.isPrimitiveType() and self._may_become(old, new.asPrimitiveType())):
                    raise self._refusal(table, f"its column {column.name} is {old}, not {new}")
        parts = [f"{found.findColumnName(each.sourceId())}:{each.transform()}" for each in loaded.spec().fields()]
        wanted_spec = self._iceberg.partition_spec(table, wanted)
        wanted_parts = [f"{wanted.findColumnName(each.sourceId())}:{each.transform()}" for each in wanted_spec.fields()]
        if parts != wanted_parts:
            raise self._refusal(table, f"it is partitioned by {', '.join(parts) or 'nothing'}")

    @staticmethod
    def _refusal(table: Table, what: str) -> TableDiffers:
        return TableDiffers(
            f"{table.identifier} was made by another version of Muster ({what}) and cannot be changed in place: name"
            " another directory as [lakehouse] path, and roll up into it"
        )

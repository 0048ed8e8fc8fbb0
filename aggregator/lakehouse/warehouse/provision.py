"""Make the tables, the columns and the views that a warehouse lacks: also after an update that brings new ones."""

from typing import Any

from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.tables.schemas import DERIVED, POSITIONS, TABLES
from aggregator.lakehouse.tables.view_sql import spark_queries
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.interruption import Check, unstoppable
from aggregator.lakehouse.warehouse.jvm import java_class
from shared.blake2 import blake2b


class TableDiffers(RuntimeError):
    """A table cannot become what this version needs. The text is one line: which table, what differs, what to do."""


class TableUpgrade:
    """The catalog of one session, whose tables are compared with those of ``schemas.py``."""

    def __init__(self, spark: SparkSession) -> None:
        self._iceberg = Iceberg(spark)
        self._may_become = java_class(spark, "org.apache.iceberg.types.TypeUtil").isPromotionAllowed
        self._expressions = java_class(spark, "org.apache.iceberg.expressions.Expressions")

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
        self._partition(table, loaded, wanted)
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
                    raise self._why_not(table, f"its column {column.name} is {old}, not {new}")
        parts = _parts(loaded.spec(), found)
        wanted_parts = _parts(self._iceberg.partition_spec(table, wanted), wanted)
        # Of derived tables a run makes all files anew where an update asks for it; upkeep makes months of days.
        if table not in DERIVED and {name for name, _ in parts} != {name for name, _ in wanted_parts}:
            raise self._why_not(
                table, f"it is partitioned by {', '.join(':'.join(part) for part in parts) or 'nothing'}"
            )

    def _partition(self, table: Table, loaded: Any, wanted: Any) -> None:
        """Have what is written from now on partitioned as ``table`` is, in one commit; files that are there stay."""
        parts, spec = _parts(loaded.spec(), loaded.schema()), self._iceberg.partition_spec(table, wanted)
        wanted_parts = _parts(spec, wanted)
        if parts.keys() == wanted_parts.keys():
            return
        change = loaded.updateSpec()
        for part in parts.keys() - wanted_parts.keys():
            change.removeField(parts[part].name())
        for part in wanted_parts.keys() - parts.keys():
            term = self._expressions.transform(part[0], wanted_parts[part].transform())
            change.addField(wanted_parts[part].name(), term)
        change.commit()

    @staticmethod
    def _why_not(table: Table, what: str) -> TableDiffers:
        return TableDiffers(
            f"{table.identifier} was made by another version of Muster ({what}) and cannot be changed in place: name"
            " another directory as [lakehouse] path, and roll up into it"
        )


def _parts(spec: Any, schema: Any) -> dict[tuple[str, str], Any]:
    """Give the fields of a partition spec by column and transform, however many values that puts together."""
    return {
        (schema.findColumnName(each.sourceId()), str(each.transform()).partition("[")[0]): each
        for each in spec.fields()
    }


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


def prepare(spark: SparkSession, check: Check = unstoppable) -> None:
    """Make the namespace, the tables and the views that do not exist yet; replace the views that have changed.

    Tables that an older version made get the columns and comments that they lack; raise TableDiffers where they cannot.
    Call ``check`` before each table and view: to make all takes many seconds, and the next run makes the rest.
    """
    iceberg = Iceberg(spark)
    iceberg.make_namespace()
    present = iceberg.names()
    for table in TABLES:
        check()
        if table.name not in present:
            iceberg.create(table, _PROPERTIES)
    is_of_this_version = iceberg.load(POSITIONS).properties().get(DEFINITION) == definition()
    if not is_of_this_version:
        upgrade = TableUpgrade(spark)
        for table in TABLES:
            check()
            if table.name in present:
                upgrade.bring(table)
    for view, query in spark_queries():
        check()
        digest = _digest(repr((view, query)))
        if view.name in present and iceberg.view_property(view, _VIEW_DEFINITION) == digest:
            continue
        iceberg.put_view(view, query, {_VIEW_DEFINITION: digest})
    if not is_of_this_version:
        # Last: it says that everything else is done.
        iceberg.load(POSITIONS).updateProperties().set(DEFINITION, definition()).commit()


def definition() -> str:
    """Name all that ``prepare`` makes: with another version's tables or views it is another."""
    return _digest(repr((TABLES, list(spark_queries()))))


def _digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()

"""Reach Iceberg's own Java interface: to make, look at and advance tables without a Spark job for each."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.definition import NAMESPACE, Table
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG
from aggregator.lakehouse.warehouse.jvm import java_class, make_active
from aggregator.lakehouse.warehouse.windows import day_ranges

_EPOCH = date(1970, 1, 1)


class Iceberg:
    """The catalog of one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        # What a catalog is, Spark reads in the active session's settings, not in those of the session it is given.
        make_active(spark)
        session = spark._jsparkSession  # noqa: SLF001 - the only way to Iceberg's Java interface
        self._catalog = self._class("spark.Spark3Util").loadIcebergCatalog(session, CATALOG)

    def make_namespace(self) -> None:
        """Make the tables' namespace where it is missing."""
        namespace = self._identifier("any").namespace()
        if not self._catalog.namespaceExists(namespace):
            self._catalog.createNamespace(namespace)

    def names(self) -> set[str]:
        """Give the tables and views that are there. The namespace must exist."""
        namespace = self._identifier("any").namespace()
        found = [*self._catalog.listTables(namespace), *self._catalog.listViews(namespace)]
        return {str(identifier.name()) for identifier in found}

    def create(self, table: Table, properties: Mapping[str, str]) -> None:
        """Make a table that is not there, as ``CREATE TABLE`` would."""
        schema = self.schema(table)
        order = self._class("SortOrder").builderFor(schema)
        for column in table.sorted_by:
            order.asc(column)
        # One sender out of millions is found by the bounds of the row groups only where rows are sorted.
        distribution = {"write.distribution-mode": "hash"} if table.sorted_by else {}
        builder = self._catalog.buildTable(self._identifier(table.name), schema)
        builder.withPartitionSpec(self.partition_spec(table, schema)).withSortOrder(order.build()).withProperties(
            {**properties, **distribution, "comment": table.comment}
        ).create()

    def put_view(self, view: Table, query: str, properties: Mapping[str, str]) -> None:
        """Make a view as ``CREATE OR REPLACE VIEW`` would, whose columns are those of ``query`` in name and type.

        Spark would take each query apart first, with those of the views that it asks: that takes as long as it starts.
        """
        identifier = self._identifier(view.name)
        names = ",".join(view.column_names)
        builder = self._catalog.buildView(identifier).withSchema(self.schema(view)).withQuery("spark", query)
        builder.withDefaultNamespace(identifier.namespace()).withProperties(
            {**properties, "comment": view.comment, "spark.query-column-names": names}
        ).createOrReplace()

    def schema(self, table: Table) -> Any:
        """Give the columns that ``table`` is to have as Iceberg's own Schema."""
        columns = ", ".join(f"`{name}` {type_} COMMENT {quoted(comment)}" for name, type_, comment in table.columns)
        fields = java_class(self._spark, "org.apache.spark.sql.types.StructType").fromDDL(columns)
        return self._class("spark.SparkSchemaUtil").convert(fields)

    def partition_spec(self, table: Table, schema: Any) -> Any:
        """Give the partitions that ``table`` is to have as Iceberg's own PartitionSpec."""
        partitions = self._class("PartitionSpec").builderFor(schema)
        for transform in table.partitioned_by:
            kind, name = parsed(transform)
            if kind == "truncate":
                partitions.truncate(name, SITE_BUCKETS)
            else:
                {"months": partitions.month, "years": partitions.year, "": partitions.identity}[kind](name)
        return partitions.build()

    def load(self, table: Table) -> Any:
        """Give Iceberg's own Table as it is now."""
        return self._catalog.loadTable(self._identifier(table.name))

    def days_spec(self, table: Table) -> Any:
        """Give the second partitioning of a table that is partitioned by months: by days. Add it where it is missing.

        Not when the table is made: that would be a second commit, and a job may be killed before it.
        """
        loaded, column = self.load(table), table.dated_by
        for spec in loaded.specs().values():
            if [str(field.transform()) for field in spec.fields()] == ["day"]:
                return spec
        by_day = self._class("expressions.Expressions").day(column)
        change = loaded.updateSpec().removeField(f"{column}_month").addField(f"{column}_day", by_day)
        change.addNonDefaultSpec().commit()
        return self.days_spec(table)

    def add_files(
        self, table: Table, files: Sequence[tuple[str, str]], properties: Mapping[str, str], seen: int | None
    ) -> int:
        """Add data files in one commit, each with the day or month (2026-11) of its rows; give how many rows came.

        Iceberg reads of each file how many rows it has, and between which bounds. It refuses where rows came to the
        table after the snapshot ``seen``, None: ever.
        """
        by_day = self.days_spec(table)
        loaded = self.load(table)
        by_month = loaded.spec()
        metrics = self._class("MetricsConfig").forTable(loaded)
        of_rows = self._class("expressions.Expressions")
        # Takes the place of nothing, so it adds; but unlike an append it is checked for what was added meanwhile.
        commit = loaded.newOverwrite().overwriteByRowFilter(of_rows.alwaysFalse())
        commit.conflictDetectionFilter(of_rows.alwaysTrue()).validateNoConflictingData()
        if seen is not None:
            commit.validateFromSnapshot(seen)
        for path, part in files:
            year, month, *day = part.split("-")
            spec, value = (by_day, part) if day else (by_month, str((int(year) - 1970) * 12 + int(month) - 1))
            (field,) = spec.fields()
            file = loaded.io().newInputFile(path)
            builder = self._class("DataFiles").builder(spec).withInputFile(file).withFormat("PARQUET")
            builder.withMetrics(self._class("parquet.ParquetUtil").fileMetrics(file, metrics))
            commit.addFile(builder.withPartitionPath(f"{field.name()}={value}").build())
        for name, value in properties.items():
            commit.set(name, value)
        commit.commit()
        return int(self.load(table).currentSnapshot().summary().get("added-records") or 0)

    def files_on(self, table: Table, snapshot: int, days: Collection[date]) -> list[str]:
        """Name the data files with rows of ``days`` that a table partitioned by months may have at a snapshot."""
        loaded, of_rows = self.load(table), self._class("expressions.Expressions")
        wanted = of_rows.alwaysFalse()
        for begin, end in day_ranges(days):
            since, until = ((midnight - _EPOCH) // timedelta(microseconds=1) for midnight in (begin, end))
            within = getattr(of_rows, "and")(
                of_rows.greaterThanOrEqual(table.dated_by, since), of_rows.lessThan(table.dated_by, until)
            )
            wanted = getattr(of_rows, "or")(wanted, within)
        files = loaded.newScan().useSnapshot(snapshot).filter(wanted).planFiles()
        try:
            tasks, found = files.iterator(), list[str]()
            while tasks.hasNext():
                found.append(str(tasks.next().file().location()))
            return found
        finally:
            files.close()

    def file_sizes(self, table: Table) -> dict[str, list[int]]:
        """Give the bytes of each data file of a table partitioned by months, by the file's day or month (2026-11)."""
        loaded, found = self.load(table), defaultdict[str, list[int]](list)
        specs = {int(number): spec for number, spec in loaded.specs().items()}
        files = loaded.newScan().planFiles()
        try:
            for task in files.iterator():
                file = task.file()
                _, _, part = str(specs[int(file.specId())].partitionToPath(file.partition())).partition("=")
                found[part].append(int(file.fileSizeInBytes()))
        finally:
            files.close()
        return found

    def row_count(self, table: Table, snapshot_id: int | None = None) -> int:
        """Say how many rows a table has, or had at a snapshot: 0 where that is not there any more."""
        loaded = self.load(table)
        snapshot = loaded.currentSnapshot() if snapshot_id is None else loaded.snapshot(snapshot_id)
        return 0 if snapshot is None else int(snapshot.summary().get("total-records") or 0)

    def null_count(self, table: Table, name: str) -> int:
        """Say how many rows have nothing in a column of a table whose partitions keep these apart."""
        where = self._class("expressions.Expressions").isNull(name)
        files = self.load(table).newScan().filter(where).planFiles()
        try:
            return sum(int(task.file().recordCount()) for task in files.iterator())
        finally:
            files.close()

    def rows(self, loaded: Any, columns: Sequence[str], snapshot_id: int | None = None) -> list[tuple[Any, ...]]:
        """Give all rows of a small table, as it is or as a snapshot has it; instants come as microseconds."""
        reading = self._class("data.IcebergGenerics").read(loaded)
        records = (reading if snapshot_id is None else reading.useSnapshot(snapshot_id)).build()
        try:
            return [tuple(_plain(record.getField(name)) for name in columns) for record in records.iterator()]
        finally:
            records.close()

    def view_property(self, view: Table, name: str) -> str | None:
        """Give one property of a view that is there."""
        found: str | None = self._catalog.loadView(self._identifier(view.name)).properties().get(name)
        return found

    def _class(self, name: str) -> Any:
        return java_class(self._spark, f"org.apache.iceberg.{name}")

    def _identifier(self, name: str) -> Any:
        return self._class("catalog.TableIdentifier").parse(f"{NAMESPACE}.{name}")


def _plain(value: Any) -> Any:
    if isinstance(value, JavaObject):
        instant = value.toInstant()
        return int(instant.getEpochSecond()) * 1_000_000 + int(instant.getNano()) // 1_000
    return value


def parsed(transform: str) -> tuple[str, str]:
    """Give what a table is partitioned by as kind and column: ("days", "occurred_at"), ("", "block")."""
    kind, _, column = transform.removesuffix(")").rpartition("(")
    return kind, column


def quoted(text: str) -> str:
    """Write ``text`` as a literal of Spark's SQL."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"

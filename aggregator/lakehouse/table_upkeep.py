"""Keep one table small: few large files, few snapshots, no row that is too old, no file that a dead job left.

Every commit made here carries the table's position, and the newest snapshot is never expired: how far a table has come
does not depend on a snapshot that goes. No commit changes what the table says, but for rows that are too old.
"""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from aggregator.lakehouse.bronze.staging import local_path
from aggregator.lakehouse.tables.definition import Table
from aggregator.lakehouse.warehouse.iceberg import Iceberg
from aggregator.lakehouse.warehouse.jvm import java_class

_MANY_FILES = "5"
"""Files of a partition that are made one: fewer are left alone, so that old days are not written again and again."""
_FILE_BYTES = str(256 << 20)


class TableUpkeep:
    """One table, whose commits carry ``properties``: its position."""

    def __init__(self, spark: SparkSession, table: Table, properties: Mapping[str, str]) -> None:
        self._spark = spark
        self._iceberg = Iceberg(spark)
        self._table = table
        self._properties = properties

    def compact(self) -> tuple[int, int]:
        """Make few large files of many small ones, in one commit; give how many there were and how many there are."""
        rewrite = self._actions().rewriteDataFiles(self._loaded())
        rewrite = rewrite.sort() if self._table.sorted_by else rewrite.binPack()
        rewrite = rewrite.option("min-input-files", _MANY_FILES).option("target-file-size-bytes", _FILE_BYTES)
        for name, value in self._properties.items():
            rewrite = rewrite.snapshotProperty(name, value)
        result = rewrite.execute()
        return int(result.rewrittenDataFilesCount()), int(result.addedDataFilesCount())

    def forget(self, column: str, midnight: int) -> int:
        """Remove the rows whose ``column`` lies before ``midnight`` (microseconds): whole days, so no file is written.

        Give how many there were.
        """
        loaded = self._loaded()
        too_old = self._class("expressions.Expressions").lessThan(column, midnight)
        files = loaded.newScan().filter(too_old).planFiles()
        try:
            if not files.iterator().hasNext():
                return 0
        finally:
            files.close()
        delete = loaded.newDelete().deleteFromRowFilter(too_old)
        for name, value in self._properties.items():
            delete.set(name, value)
        delete.commit()
        return int(self._loaded().currentSnapshot().summary().get("deleted-records") or 0)

    def expire(self, superseded_before: int, recorded: int | None = None) -> int:
        """Let go of the snapshots that were no longer the newest at an instant (milliseconds), with their files.

        A snapshot's age says little: the newest one may be days old until a minute ago, and be read since. An older one
        may be the newest again, where a table went back to it. And ``recorded``, by which readers went at that instant,
        lies before what a killed run wrote: neither goes, nor what is younger. Give how many went.
        """
        loaded = self._loaded()
        metadata = json.loads(self._class("TableMetadataParser").toJson(loaded.operations().current()))
        log = metadata.get("snapshot-log", ())
        begin = max((entry["timestamp-ms"] for entry in log if entry["timestamp-ms"] <= superseded_before), default=0)
        read = {recorded, *(entry["snapshot-id"] for entry in log if entry["timestamp-ms"] >= begin)}
        made_at = {snapshot["snapshot-id"]: snapshot["timestamp-ms"] for snapshot in metadata.get("snapshots", ())}
        older_than = min(begin, *(made_at.get(snapshot_id, begin) for snapshot_id in read))
        current = metadata.get("current-snapshot-id")
        going = [
            snapshot
            for snapshot in metadata.get("snapshots", ())
            if snapshot["timestamp-ms"] < older_than and snapshot["snapshot-id"] != current
        ]
        if going:
            loaded.expireSnapshots().expireOlderThan(older_than).retainLast(1).commit()
        return len(going)

    def remove_orphans(self, older_than: int) -> int:
        """Remove the files that no snapshot knows and that were written before an instant (milliseconds).

        Whoever is writing has files that no snapshot knows yet: be sure that they are not that old. Give how many.
        """
        loaded = self._loaded()
        search = self._actions().deleteOrphanFiles(loaded).olderThan(older_than)
        # Hadoop lists directories, and knows no object store; Iceberg's own access to one lists what begins so.
        search = search.usePrefixListing(local_path(str(loaded.location())) is None)
        result = search.execute()
        return sum(1 for _ in result.orphanFileLocations())

    def _actions(self) -> Any:
        session = self._spark._jsparkSession  # noqa: SLF001 - the only way to Iceberg's actions
        return self._class("spark.actions.SparkActions").get(session)

    def _class(self, name: str) -> Any:
        return java_class(self._spark, f"org.apache.iceberg.{name}")

    def _loaded(self) -> Any:
        return self._iceberg.load(self._table)

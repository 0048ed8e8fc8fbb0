"""Add data files that were staged while they were read to their table, in one commit with the position."""

from collections.abc import Sequence
from datetime import date
from typing import NamedTuple

import msgspec
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyspark.sql import DataFrame, SparkSession

from aggregator.lakehouse import catalog
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.iceberg import Iceberg
from aggregator.lakehouse.java_class import java_class
from aggregator.lakehouse.schemas import Table
from aggregator.lakehouse.staging import Place, StagedFile


def place_of(spark: SparkSession, table: Table, after: int) -> Place | None:
    """Say where files of a table may be staged, whose rows go through the sequence ``after``; None where nowhere."""
    loaded = Iceberg(spark).load(table)
    parser = java_class(spark, "org.apache.iceberg.SchemaParser")
    schema = Schema.model_validate_json(parser.toJson(loaded.schema()))
    return Place.of(str(loaded.location()), schema_to_pyarrow(schema), after)


class StagedFiles(NamedTuple):
    """Files of one table that no snapshot knows yet."""

    spark: SparkSession | None
    place: Place | None
    files: Sequence[StagedFile]

    @classmethod
    def read(cls, spark: SparkSession, place: Place | None, manifests: Sequence[str]) -> "StagedFiles":
        """Read what the tasks tell of their files."""
        found = [file for text in manifests for file in msgspec.json.decode(text, type=list[StagedFile])]
        return cls(spark, place, found)

    @property
    def row_count(self) -> int:
        """Count the rows of all files."""
        return sum(file.row_count for file in self.files)

    @property
    def days(self) -> set[date]:
        """Name the days that files are of."""
        return {date.fromisoformat(file.day) for file in self.files}

    def rows(self, table: Table) -> DataFrame:
        """Read the files as rows of ``table``."""
        assert self.spark is not None
        assert self.place is not None
        paths = [f"file://{self.place.path(file)}" for file in self.files]
        schema = self.spark.table(table.identifier).schema
        return self.spark.read.schema(schema).parquet(*paths).select(*table.column_names)

    def add(self, table: Table, position: HubPosition, seen: int | None) -> int:
        """Add the files to ``table`` and advance it to ``position``, in one commit; give how many rows came to it.

        ``seen`` is the snapshot that they were compared with, None where there was none.
        """
        assert self.spark is not None
        assert self.place is not None
        named = [(f"{self.place.location}/{file.name}", file.day) for file in self.files]
        return catalog.add_files(self.spark, table, named, position, seen)

    def remove(self) -> None:
        """Remove the files, whose rows were written otherwise."""
        for file in self.files:
            assert self.place is not None
            self.place.path(file).unlink(missing_ok=True)


NOTHING_STAGED = StagedFiles(None, None, ())

"""Say what a table is: its columns with their meaning, its identity, its partitioning. Nothing here needs Spark."""

from typing import NamedTuple

NAMESPACE = "muster"


class Column(NamedTuple):
    """One column: ``type`` is Spark SQL's, ``comment`` gives meaning and unit."""

    name: str
    type: str
    comment: str


class Table(NamedTuple):
    """One table. ``partitioned_by`` holds Iceberg transforms, ``identity`` the columns that make a row what it is.
    How many values ``truncate`` puts in one partition follows the number of sites.

    ``follows`` names the day or instant by which rows come, where a file holds those of many days (``layout.py``).
    A table partitioned by ``months`` has a second partitioning by days, for files that a run writes of few of them.
    """

    name: str
    comment: str
    columns: tuple[Column, ...]
    identity: tuple[str, ...]
    partitioned_by: tuple[str, ...] = ()
    sorted_by: tuple[str, ...] = ()
    follows: str | None = None

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def dated_by(self) -> str:
        """Name the instant by whose months a table is partitioned, "" where it is by none."""
        found = (part.removeprefix("months(").removesuffix(")") for part in self.partitioned_by if "months(" in part)
        return next(found, "")

    @property
    def identifier(self) -> str:
        return f"{NAMESPACE}.{self.name}"


SITE_COLUMNS = (Column("region", "STRING", "region"), Column("site", "STRING", "site"))
BLOCK_COLUMNS = (*SITE_COLUMNS, Column("block", "STRING", "stream block of the site's agent"))
SENDER_COLUMNS = (*BLOCK_COLUMNS, Column("sender_id", "STRING", "the sender"))
RATIO_COLUMNS = (
    Column("availability_known", "DOUBLE", "up / (up + down): of known time; null where nothing is known"),
    Column("availability_total", "DOUBLE", "up / (up + down + unknown): of total time, maintenance left out"),
    Column("coverage", "DOUBLE", "(up + down) / (up + down + unknown): how much of the time lived is known"),
)

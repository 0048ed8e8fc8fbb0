"""Refuse a file that says anew what is there already, with other words on what lies between and around its rows.

A row that is there keeps what it came with. Where that is not what the person asks for now, half of it would be lost.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.tables.imports import IMPORTS

_SHOWN = 3


def refuse_other_gaps(rows: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused where any of ``rows`` is ``present``, and came with other gaps."""
    identity = list(IMPORTS.identity)
    there = present.where(f.col("gaps") != mapping.gaps).select(*identity, "gaps", "import_id")
    found = there.join(rows.select(*identity).distinct(), identity, "left_semi")
    of_imports = found.groupBy("import_id", "gaps").count().sort("import_id").collect()
    if of_imports:
        count, said = sum(each["count"] for each in of_imports), of_imports[0]["gaps"]
        raise ImportRefused(
            f"nothing was imported: {count:,} rows are there already, and came with --gaps {said};"
            f" {remedy([each['import_id'] for each in of_imports])}"
        )


def refuse_lost_watch(rows: DataFrame, fresh: DataFrame, present: DataFrame, mapping: Mapping) -> None:
    """Raise ImportRefused where no row is left, of ``fresh``, to say for how long the source watched."""
    if (mapping.since is None and mapping.until is None) or not fresh.isEmpty():
        return
    begins, ends = f.unix_micros("watched_from"), f.unix_micros("watched_to")
    covers = f.lit(True)
    if mapping.since is not None:
        covers &= begins <= mapping.since
    if mapping.until is not None:
        covers &= ends >= mapping.until
    if not present.where(covers).isEmpty():
        return
    there = present.join(rows.select(*IMPORTS.identity).distinct(), list(IMPORTS.identity), "left_semi")
    identifiers = sorted(each["import_id"] for each in there.select("import_id").distinct().collect())
    raise ImportRefused(
        "nothing was imported: every row is there already, and came with another --since or --until;"
        f" {remedy(identifiers)}"
    )


def remedy(identifiers: Sequence[str]) -> str:
    """Say how a list takes the place of what these imports brought."""
    shown = " ".join(identifiers[:_SHOWN]) + (" ..." if len(identifiers) > _SHOWN else "")
    return f"`muster-aggregator import remove {shown}`, then import the whole list again"

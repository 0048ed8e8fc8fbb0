"""Describe the tables out of their schemas: what the catalog says and what the manual says is one text."""

from collections.abc import Iterator

from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS, IMPORT_QUARANTINE, IMPORTS
from aggregator.lakehouse.tables.schemas import (
    BRONZE,
    CLOCK_STEPS,
    CONTINUATIONS,
    DERIVED,
    LOSSES,
    POSITIONS,
    SENDER_MAINTENANCE_DAYS,
    VIEWS,
    Table,
)
from tests.support.documents.example_queries import EXAMPLES

_INTRODUCTION = """\
# The tables, column by column

Written from `aggregator/lakehouse/tables/schemas.py` by `make docs`; the same comments stand in
the catalog. What up, down, unknown, maintenance and absent mean, and how to ask:
[First questions](../howto/analyst/first-questions.md).

Instants are TIMESTAMP, in microseconds and UTC. Durations end in `_us` and are whole microseconds: BIGINT for one
sender, DECIMAL(38,0) for sums over senders. A `day` is a UTC date. Intervals are `[started_at, ended_at)`.
Each example is for `muster-aggregator sql`.
"""
_PARTS = (
    ("Ask these first", "Availability, ready to be asked, and every outage.", (*DERIVED[4:8], *VIEWS)),
    ("What they rest on", "Lives of senders, and what was observed.", (*DERIVED[:4], SENDER_MAINTENANCE_DAYS)),
    ("Bronze", "The records as they came, each once.", BRONZE),
    (
        "Imports",
        "What other monitoring systems had, and how available that was. Imported senders are in every table above too.",
        (IMPORTS, *DERIVED_FROM_IMPORTS, IMPORT_QUARANTINE),
    ),
    (
        "Bookkeeping",
        "What was given up, how far each table goes, and where the next rollup goes on.",
        (LOSSES, CLOCK_STEPS, POSITIONS, CONTINUATIONS),
    ),
)


def table_reference() -> str:
    """Give the whole document."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for title, meaning, tables in _PARTS:
        yield f"## {title}\n\n{meaning}\n"
        for table in tables:
            yield from _table(table)


def _table(table: Table) -> Iterator[str]:
    yield f"### `{table.name}`\n\n{_text(table.comment)}\n"
    yield f"One row for each: {', '.join(f'`{name}`' for name in table.identity)}."
    if table.partitioned_by:
        yield f"Partitioned by {', '.join(f'`{part}`' for part in table.partitioned_by)}."
    yield "\n| column | type | meaning |\n| --- | --- | --- |"
    for column in table.columns:
        yield f"| `{column.name}` | `{column.type}` | {_text(column.comment)} |"
    yield f"\nFor example:\n\n```sql\n{EXAMPLES[table.name].strip()}\n```\n"


def _text(comment: str) -> str:
    """Keep what Markdown would take for a tag or for the end of a cell."""
    return comment.replace("<", "&lt;").replace(">", "&gt;").replace("|", "\\|")

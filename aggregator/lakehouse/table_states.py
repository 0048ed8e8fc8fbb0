"""Say of every table how much it holds, how fresh it is, and what it stands for. Without Java."""

from collections.abc import Iterator

import msgspec

from aggregator.lakehouse.query import Tables
from aggregator.lakehouse.schemas import POSITIONS, TABLES, VIEWS


class TableState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table as queries see it, or a view, which has a name and a comment only.

    ``stream`` and ``sequence``: through which message of the hub it is complete; ``known_through``: that message's time
    at the hub; ``written_at``: when its newest rows were committed. Instants in microseconds, sizes in bytes.
    """

    name: str
    comment: str
    kind: str = "table"
    rows: int = 0
    files: int = 0
    bytes: int = 0
    stream: str = ""
    sequence: int = 0
    known_through: int = 0
    written_at: int = 0


def table_states(tables: Tables) -> Iterator[TableState]:
    """Give the tables that are there, in the order of the documents, then the views; raise TablesUnreadable."""
    positions = {}
    if POSITIONS.name in tables.names:
        query = "SELECT table_name, stream, sequence, epoch_us(known_through) FROM positions"
        positions = {name: (stream, sequence, known) for name, stream, sequence, known in tables.rows(query)}
    for each in TABLES:
        if each.name in tables.names:
            stream, sequence, known_through = positions.get(each.name, ("", 0, 0))
            _, snapshot = tables.load(each.name)
            counted = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary else {}
            yield TableState(
                name=each.name,
                comment=each.comment,
                rows=int(counted.get("total-records", 0)),
                files=int(counted.get("total-data-files", 0)),
                bytes=int(counted.get("total-files-size", 0)),
                stream=stream,
                sequence=sequence,
                known_through=known_through,
                written_at=snapshot.timestamp_ms * 1_000 if snapshot is not None else 0,
            )
    for view in VIEWS:
        yield TableState(view.name, view.comment, "view")

"""Say of every table how much it holds, how fresh it is, and what it stands for. Without Java."""

from collections.abc import Iterable, Iterator

import msgspec
from pyiceberg.table.snapshots import Operation, Snapshot

from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.tables.schemas import POSITIONS, TABLES, VIEWS


class TableState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One table as queries see it, or a view, which has a name and a comment only.

    ``stream`` and ``sequence``: through which message of the hub it is complete; ``known_through``: that message's time
    at the hub; ``written_at``: when rows were last written into it. Where the commit that wrote them is forgotten,
    ``written_before`` is the oldest one that is not. Instants in microseconds, sizes in bytes.
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
    written_before: int = 0


def table_states(tables: Tables) -> Iterator[TableState]:
    """Give the tables that are there, in the order of the documents, then the views; raise TablesUnreadable."""
    positions = {}
    if POSITIONS.name in tables.names:
        query = "SELECT table_name, stream, sequence, epoch_us(known_through) FROM positions"
        positions = {name: (stream, sequence, known) for name, stream, sequence, known in tables.rows(query)}
    for each in TABLES:
        if each.name in tables.names:
            stream, sequence, known_through = positions.get(each.name, ("", 0, 0))
            table, snapshot = tables.load(each.name)
            written_at, written_before = _written(table.metadata.snapshots, snapshot)
            yield TableState(
                name=each.name,
                comment=each.comment,
                rows=_counted(snapshot, "total-records"),
                files=_counted(snapshot, "total-data-files"),
                bytes=_counted(snapshot, "total-files-size"),
                stream=stream,
                sequence=sequence,
                known_through=known_through,
                written_at=written_at,
                written_before=written_before,
            )
    for view in VIEWS:
        yield TableState(view.name, view.comment, "view")


def _written(kept: Iterable[Snapshot], newest: Snapshot | None) -> tuple[int, int]:
    """Give when rows were last written, as of ``newest``; or 0, and the oldest commit before it that is ``kept``.

    Every run commits to every table, also where it has no rows, to say how far the table is; and what compaction writes
    was there before.
    """
    by_id: dict[int | None, Snapshot] = {each.snapshot_id: each for each in kept}
    oldest, snapshot = None, newest
    while snapshot is not None:
        if _is_of_new_rows(snapshot):
            return snapshot.timestamp_ms * 1_000, 0
        oldest, snapshot = snapshot, by_id.get(snapshot.parent_snapshot_id)
    if oldest is None or (oldest.parent_snapshot_id is None and not _counted(oldest, "total-records")):
        return 0, 0
    return 0, oldest.timestamp_ms * 1_000


def _is_of_new_rows(snapshot: Snapshot) -> bool:
    is_compaction = snapshot.summary is not None and snapshot.summary.operation is Operation.REPLACE
    return not is_compaction and _counted(snapshot, "added-records") > 0


def _counted(snapshot: Snapshot | None, name: str) -> int:
    summary = snapshot.summary if snapshot is not None else None
    return int(summary.additional_properties.get(name, 0)) if summary is not None else 0

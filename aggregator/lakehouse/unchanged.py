"""Find out without Spark whether the tables are as the last whole run left them: then only the hub can have news.

Spark's start is nearly all that a run takes which finds nothing new. Whatever is not exactly as it was recorded, and
whatever cannot be read here, is for a run to look at: it says better what is wrong, or mends it.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
from pyiceberg.table import Table as IcebergTable
from sqlalchemy.exc import SQLAlchemyError

from aggregator.config import LakehouseSettings
from aggregator.lakehouse.derive.checkpoint import recipe_of
from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS, IMPORTS
from aggregator.lakehouse.tables.position import NOWHERE, HubPosition
from aggregator.lakehouse.tables.schemas import BRONZE, DERIVED, LOSSES, NAMESPACE, POSITIONS, Table
from aggregator.lakehouse.warehouse import commits, provision
from aggregator.lakehouse.warehouse.catalog import open_catalog
from aggregator.lakehouse.warehouse.errors import TablesUnreadable

_FOR_A_RUN = (
    TablesUnreadable,
    NoSuchNamespaceError,
    NoSuchTableError,
    SQLAlchemyError,
    RESTError,
    OSError,
    # A warehouse of a kind that pyiceberg has no reader for, and Spark may have one; metadata that is no JSON.
    ValueError,
    ModuleNotFoundError,
)


def position_if_unchanged(warehouse: Path, settings: LakehouseSettings) -> HubPosition | None:
    """Give the hub's position at which all tables stand, with nothing left to do for a run; None where there is."""
    try:
        opened, _ = open_catalog(warehouse, settings.catalog)
        with closing(opened):
            return _Tables(opened, settings).position_if_unchanged()
    except _FOR_A_RUN:
        return None


def reached_by_all(stands: Mapping[str, HubPosition]) -> HubPosition:
    """Give the position that all bronze tables have reached: nowhere while a first rollup has not begun them all."""
    if any(table.name not in stands for table in BRONZE):
        return NOWHERE
    return min((stands[table.name] for table in BRONZE), key=lambda each: each.sequence)


def tables_at(position: HubPosition, imported: HubPosition | None) -> dict[str, HubPosition]:
    """Say where each table stands after a whole run; ``imported`` is None where nothing ever was."""
    stands = dict.fromkeys((table.name for table in DERIVED), position)
    if position != NOWHERE:
        stands |= dict.fromkeys((table.name for table in BRONZE), position)
    if imported is not None:
        stands |= dict.fromkeys((table.name for table in (IMPORTS, *DERIVED_FROM_IMPORTS)), imported)
    return stands


class _Tables:
    """The tables as they are now, beside what the last whole run recorded of them."""

    def __init__(self, opened: Catalog, settings: LakehouseSettings) -> None:
        self._catalog, self._settings = opened, settings

    def position_if_unchanged(self) -> HubPosition | None:
        recorded = self._load(POSITIONS)
        snapshot = recorded.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return None
        rows = _rows(recorded)
        positions = {row["table_name"]: _position(row) for row in rows}
        position, imported = positions.get(DERIVED[0].name), positions.get(IMPORTS.name)
        if position in (None, NOWHERE) or positions != tables_at(position, imported):
            return None
        recipe, upkeep = commits.kept_in(snapshot.summary.additional_properties)
        if recipe != recipe_of(self._settings.registration_interval, imported, self._losses(position)):
            return None
        if 0 < self._settings.maintain_every <= upkeep.runs_since:
            return None
        if recorded.properties.get(provision.DEFINITION) != provision.definition():
            return None
        snapshots = {row["table_name"]: row["snapshot_id"] for row in rows}
        return position if self._are_at(snapshots) else None

    def _are_at(self, snapshots: Mapping[str, int]) -> bool:
        """Tell whether no table was written since. What has never been recorded has never been written."""
        for table in (*BRONZE, *DERIVED, IMPORTS, *DERIVED_FROM_IMPORTS):
            current = self._load(table).current_snapshot()
            if (None if current is None else current.snapshot_id) != snapshots.get(table.name):
                return False
        return True

    def _losses(self, position: HubPosition) -> list[tuple[int, int]]:
        """Give what ``losses.spans`` gives."""
        lost = self._load(LOSSES)
        rows = _rows(lost) if lost.current_snapshot() is not None else []
        return [(row["lost_from"], row["lost_to"]) for row in rows if row["stream_created_at"] == position.created_at]

    def _load(self, table: Table) -> IcebergTable:
        return self._catalog.load_table((NAMESPACE, table.name))


def _rows(table: IcebergTable) -> list[dict[str, Any]]:
    """Give all rows of a small table; instants come as microseconds."""
    found = table.scan().to_arrow()
    instants = [field.name for field in found.schema if pa.types.is_timestamp(field.type)]
    for name in instants:
        found = found.set_column(found.schema.get_field_index(name), name, found[name].cast(pa.int64()))
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _position(row: Mapping[str, Any]) -> HubPosition:
    return HubPosition(
        row["stream"], row["stream_created_at"], row["sequence"], row["known_through"], row["hub_time"] or 0
    )

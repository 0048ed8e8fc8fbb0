"""Say whether derived tables may go on from the last whole run, and have them stand there."""

from collections.abc import Mapping, Sequence

import msgspec
from pyspark.sql import SparkSession

from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import DERIVED, SITE_BUCKETS
from aggregator.lakehouse.warehouse import commits
from aggregator.lakehouse.warehouse.commits import WholeRun
from shared.blake2 import blake2b

_VERSION = 11
"""Of the derivation: raised when its results change, so that an update computes them anew. New columns do without."""


class Checkpoint(msgspec.Struct, frozen=True):
    """The whole run to go on from: where its tables stand, and the snapshot of each by the table's name."""

    position: HubPosition
    snapshots: Mapping[str, int]


def recipe_of(registration_interval: int, imported: HubPosition | None, losses: Sequence[tuple[int, int]]) -> str:
    """Name all that derived tables depend on beside the bronze tables."""
    columns = [[column[:2] for column in table.columns] for table in (*DERIVED, *DERIVED_FROM_IMPORTS)]
    imports = imported.sequence if imported else 0
    parts = (_VERSION, SITE_BUCKETS, registration_interval, imports, sorted(losses), columns)
    return blake2b(repr(parts).encode(), digest_size=16).hexdigest()


def checkpoint_of(
    spark: SparkSession, whole_run: WholeRun, recipe: str, position: HubPosition, imported: HubPosition | None
) -> Checkpoint | None:
    """Give the last whole run and have all derived tables stand there; None where everything is to be computed.

    What a killed run committed since is taken back.
    """
    stood = {whole_run.positions.get(table.name) for table in DERIVED}
    before = stood.pop()
    if stood or before is None or whole_run.recipe != recipe:
        return None
    same_past = (before.stream, before.created_at) == (position.stream, position.created_at)
    if not same_past or before.sequence > position.sequence or before.known_through > position.known_through:
        return None
    # What was imported from beyond known time goes on as that does.
    if before != position and imported is not None and imported.known_through > before.known_through:
        return None
    if not commits.go_back(spark, DERIVED, whole_run.snapshots):
        return None
    return Checkpoint(before, whole_run.snapshots)

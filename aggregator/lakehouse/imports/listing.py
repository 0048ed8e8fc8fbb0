"""List the imports that the tables hold. Without Java."""

from collections.abc import Iterable, Sequence

import msgspec

from aggregator.lakehouse.imports.mapping import ImportRefused
from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.tables.imports import IMPORT_QUARANTINE, IMPORTS

_QUERY = """
    SELECT import_id, block, string_agg(DISTINCT file, ', ' ORDER BY file),
        count(*) FILTER (NOT is_quarantined), count(*) FILTER (is_quarantined),
        count(DISTINCT (region, site, sender_id)) FILTER (NOT is_quarantined),
        coalesce(epoch_us(min(started_at)), 0), coalesce(epoch_us(max(ended_at)), 0)
    FROM (
        SELECT import_id, block, file, false AS is_quarantined, region, site, sender_id, started_at, ended_at
        FROM imports
        UNION ALL
        SELECT import_id, block, file, true, NULL, NULL, NULL, NULL, NULL FROM import_quarantine
    )
    GROUP BY import_id, block ORDER BY block, 7, import_id
"""


class Imported(msgspec.Struct, frozen=True):
    """The rows of one import that no earlier one had brought. Instants in microseconds, 0 without intervals.

    ``file`` has the names of all its files: a file under another name is the same import.
    """

    import_id: str
    block: str
    file: str
    interval_count: int
    quarantined_count: int
    sender_count: int
    started_at: int
    ended_at: int


def imports_in(tables: Tables) -> list[Imported]:
    """Return the imports, by source and time; raise TablesUnreadable."""
    if not {IMPORTS.name, IMPORT_QUARANTINE.name} <= set(tables.names):
        return []
    return [Imported(*row) for row in tables.rows(_QUERY)]


def chosen(imports: Iterable[Imported], asked: Sequence[str]) -> list[Imported]:
    """Return the imports whose identifiers begin as ``asked``; raise ImportRefused if any names none, or several."""
    imports = list(imports)
    found = []
    for beginning in asked:
        matching = [each for each in imports if each.import_id.startswith(beginning)]
        if len(matching) != 1:
            which = "no import begins" if not matching else f"{len(matching)} imports begin"
            raise ImportRefused(f"{which} with {beginning!r}: muster-aggregator import list shows what there is")
        found += matching
    return found

"""Import or remove files, and derive the tables from the result. The composition root of imports."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from aggregator.config import AggregatorSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.imports.listing import Imported, chosen, imports_in
from aggregator.lakehouse.imports.mapping import Mapping
from aggregator.lakehouse.imports.staging import Staged, stage, staging_area
from aggregator.lakehouse.imports.writer import ImportCounts, remove, take
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.imports import IMPORTS
from aggregator.lakehouse.warehouse import commits, provision
from aggregator.lakehouse.warehouse.interruption import Check, unstoppable
from aggregator.lakehouse.warehouse.lock import alone, wait_until_free

Progress = Callable[[str], None]


class ImportResult(msgspec.Struct, frozen=True):
    """The outcome of an import. Intervals after ``waiting_from`` (microseconds) lie after known time, and wait."""

    files: tuple[Staged, ...]
    counts: ImportCounts
    waiting_from: int | None
    seconds: float


def import_intervals(
    settings: AggregatorSettings,
    paths: Sequence[Path],
    mapping: Mapping,
    progress: Progress,
    check: Check = unstoppable,
) -> ImportResult:
    """Bring the files into the tables, all or nothing; doing it again changes nothing.

    Raise ImportRefused, AlreadyRunning, JavaUnavailable, JarsUnavailable: one line each; and AccountingError when the
    figures do not add up. The hub is not asked.
    """
    began = time.monotonic()
    now = time.time_ns() // 1000
    warehouse = rollup.warehouse(settings)
    with staging_area(warehouse) as area:
        files = tuple(stage(path, mapping, area / str(number), now, progress) for number, path in enumerate(paths))
        spark = rollup.start_session(settings, progress)
        with alone(spark, warehouse, settings.lakehouse.catalog, rollup.LOCK_DEADLINE, progress, check):
            provision.prepare(spark, check)
            stands = commits.positions(spark, (IMPORTS,)).get(IMPORTS.name)
            row_count = sum(file.row_count for file in files)
            effort.fit(spark, (IMPORTS,), row_count, settings.lakehouse.spark)
            progress(f"taking {row_count:,} rows")
            counts = take(spark, files, mapping, stands)
            position = rollup.bring_up_to_date(spark, settings, None, full=False, progress=progress)
            reached = commits.positions(spark, (IMPORTS,))[IMPORTS.name].known_through
    known = position.known_through
    return ImportResult(files, counts, known if 0 < known < reached else None, time.monotonic() - began)


def remove_imports(
    settings: AggregatorSettings, asked: Sequence[str], progress: Progress, check: Check = unstoppable
) -> list[Imported]:
    """Remove the imports whose identifiers begin as ``asked`` and return them.

    Raise ImportRefused if one names no import or several, TablesUnreadable, and as ``import_intervals``.
    """
    warehouse = rollup.warehouse(settings)
    wait_until_free(warehouse, rollup.LOCK_DEADLINE, progress, check)
    with open_tables(warehouse, settings.lakehouse.catalog) as tables:
        imports = chosen(imports_in(tables), asked)
    spark = rollup.start_session(settings, progress)
    with alone(spark, warehouse, settings.lakehouse.catalog, rollup.LOCK_DEADLINE, progress, check):
        provision.prepare(spark, check)
        remove(spark, imports, commits.positions(spark, (IMPORTS,))[IMPORTS.name])
        rollup.bring_up_to_date(spark, settings, None, full=False, progress=progress)
    return imports

"""What a long thin history costs that is imported: ten years of a few thousand nodes; and asking it."""

import shutil

from pyspark import SparkContext

from aggregator.lakehouse.imports.job import ImportResult, import_intervals
from tests.bench.answers import rows_of_answers
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options
from tests.bench.warehouses import MASTER, measured, say, settings_for
from tests.support.lakehouse.long_trace import MAPPING, write_trace

INTERVALS, NODES, DAYS = 43_325, 3_577, 3_650
MOST_SECONDS, MOST_FILES, MOST_MEGABYTES, MOST_SECONDS_OF_ANSWER = 60, 500, 20, 1


async def imported(options: Options) -> Table:
    """Import the history into tables that are not there yet; count seconds, Spark's start included, files and bytes."""
    directory = options.directory / "lake"
    shutil.rmtree(directory, ignore_errors=True)
    trace, count = options.directory / "trace.csv", options.scaled(INTERVALS)
    write_trace(trace, options.seed, count, options.scaled(NODES), days=options.scaled(DAYS))
    results: list[ImportResult] = []
    try:
        cost = measured(lambda: results.append(import_intervals(settings_for(directory), [trace], MAPPING, say)))
    finally:
        SparkContext.getOrCreate().stop()
    if results[0].counts.written != count:
        raise RecordsLost(f"{results[0].counts}, and {count} were there")
    sizes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
    answers, without_rows = rows_of_answers(directory, must=MOST_SECONDS_OF_ANSWER)
    return Table(
        measure="lakehouse-import",
        title=f"{count:,} intervals of {options.scaled(NODES):,} nodes in {options.scaled(DAYS):,} days; {MASTER}",
        command=options.command("lakehouse-import"),
        yardstick="all there are",
        rows=[
            Row("import into new tables", "s", cost.seconds, must=MOST_SECONDS, better="less"),
            Row("  processor time", "s", cost.processor_seconds),
            Row("files, logs and metadata included", "files", len(sizes), must=MOST_FILES, better="less"),
            Row("their size", "MB", sum(sizes) / 1e6, must=MOST_MEGABYTES, better="less"),
            *answers,
        ],
        notes=without_rows,
    )


MEASURES = {"lakehouse-import": imported}

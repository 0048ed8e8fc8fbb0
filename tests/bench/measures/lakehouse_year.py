"""How many files a year of rollups every five minutes leaves, kept up as the settings have it by default.

A whole year would be 105,120 runs of sixteen commits each. What is played of it: one table of each way in which a run
writes; some days of 288 runs; and then the days to the end of the year with a few runs each. There as before, upkeep
follows every twelfth run, and the snapshots of the last 288 runs are kept: only the days pass more quickly.

The clock is simulated. Iceberg stamps its snapshots and files by the real one, so upkeep is told the instant that lies
as long after the run of a day ago as snapshots are kept.
"""

import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pyspark import SparkContext
from pyspark.sql import SparkSession

from aggregator.config import AggregatorSettings, LakehouseSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.schemas import (
    ADVISORIES,
    POLICY,
    POSITIONS,
    SENDER_INTERVALS,
    SITE_AVAILABILITY_HOURLY,
    Table,
)
from aggregator.lakehouse.warehouse.provision import prepare
from aggregator.lakehouse.warehouse.upkeep import maintain
from shared.instants import DAY, MINUTE
from tests.bench.report import RecordsLost, Row
from tests.bench.report import Table as Found
from tests.bench.stage import Options
from tests.bench.warehouses import MASTER, say, settings_for
from tests.support.lakehouse.quick_runs import FileCounts, QuickRuns

RUNS_EVERY = 5 * MINUTE
RUNS_A_DAY = DAY // RUNS_EVERY
WHOLE_DAYS, YEAR = 3, 365
PARTITIONS = 16
"""Of the derived tables of a hundred sites, or two."""
RUNS_A_SHORT_DAY = 7
WRITTEN = {
    ADVISORIES: "a file more: also watermarks, registrations",
    POLICY: "its position alone: also quarantine, sender_maintenance_days",
    SENDER_INTERVALS: "what goes on anew, and what ended, by partition of sites",
    SITE_AVAILABILITY_HOURLY: "today anew, by partition: also daily, coverage, days of senders",
    POSITIONS: "all of it anew: also regions, the fleet, continuations",
}
"""A table of each way in which a run writes, and what it takes of a run."""
SHOWN = (1, 2, 3, 10, 30, 60, 100, 200, 300, 365)
GROWTH = 1.1
"""Times as many files at which they grow: which run merges its manifests differs."""


class Count(NamedTuple):
    """A table's files after a run; ``in_use`` are the data files of its newest snapshot."""

    run: int
    day: int
    files: FileCounts
    in_use: int

    @property
    def beside(self) -> int:
        """Count what does not hold the table's rows: it is this that must not grow."""
        return sum(self.files) - self.in_use


class Clock:
    """The real instants of the runs of the last simulated day."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._began = deque([time.time_ns() // 1_000], maxlen=kept // RUNS_EVERY + 1)

    def pass_run(self) -> None:
        """Let five minutes pass."""
        self._began.append(time.time_ns() // 1_000)

    @property
    def now(self) -> int:
        """Give the instant at which the time that snapshots are kept reaches back to the run that it should."""
        return self._began[0] + self._kept


class Year:
    """A warehouse as the runs of a year leave it, with the counts of its files before and after each upkeep."""

    def __init__(self, options: Options) -> None:
        directory = options.directory / "lake"
        shutil.rmtree(directory, ignore_errors=True)
        settings = settings_for(directory)
        self.settings: LakehouseSettings = settings.lakehouse
        self.directory = directory
        self._runs = QuickRuns(_prepared(settings), directory, tuple(WRITTEN), PARTITIONS)
        self._clock = Clock(self.settings.keep_snapshots)
        self.counts: dict[Table, list[Count]] = {table: [] for table in WRITTEN}
        self.upkeep_count = 0

    def play(self, days: Sequence[int]) -> int:
        """Play days of so many runs each; give the orphans that were there in the end."""
        for day, runs in enumerate(days, start=1):
            for _ in range(runs):
                self._run(day)
            if day in SHOWN or day == len(days):
                say(f"day {day}: run {self._runs.run_count:,}, upkeep {self.upkeep_count:,}")
        self._runs.record()
        last = maintain(self._runs.spark, self.settings, self._clock.now, _unheard, sweep=True)
        self._check(len(days))
        return last.orphans

    def _run(self, day: int) -> None:
        runs = self._runs
        self._clock.pass_run()
        runs.run(day - 1)
        if runs.run_count % self.settings.maintain_every:
            return
        runs.record()
        self._count(day)
        maintain(runs.spark, self.settings, self._clock.now, _unheard)
        self.upkeep_count += 1
        self._count(day)

    def _count(self, day: int) -> None:
        for table, counts in self.counts.items():
            counts.append(Count(self._runs.run_count, day, self._runs.files(table), self._runs.files_in_use(table)))

    def _check(self, day_count: int) -> None:
        """Raise RecordsLost where a row is missing or there twice, or a table does not stand where it should."""
        with open_tables(self.directory) as tables:
            ((senders, distinct),) = tables.rows("SELECT count(*), count(DISTINCT sender_id) FROM advisories")
            ((hours,),) = tables.rows("SELECT count(*) FROM site_availability_hourly")
            ((ended, going_on),) = tables.rows("SELECT count(ended_at), count(*) FROM sender_intervals")
        run_count = self._runs.run_count
        wanted = (
            run_count,
            run_count,
            day_count * PARTITIONS,
            run_count * PARTITIONS,
            (run_count + 1) * PARTITIONS,
        )
        if (senders, distinct, hours, ended, going_on) != wanted or not self._runs.stand_there():
            raise RecordsLost(f"{(senders, distinct, hours, ended, going_on)}, and {wanted} were written")


async def year(options: Options) -> Found:
    """Count the files of each kind of table over a year of runs."""
    whole = min(WHOLE_DAYS, options.scaled(YEAR))
    days = [RUNS_A_DAY] * whole + [RUNS_A_SHORT_DAY] * (options.scaled(YEAR) - whole)
    played = Year(options)
    try:
        orphans = played.play(days)
    finally:
        SparkContext.getOrCreate().stop()
    settings = played.settings
    return Found(
        measure="lakehouse-year",
        title=f"{len(days)} days, {whole} of {RUNS_A_DAY} runs, then of {RUNS_A_SHORT_DAY}; {MASTER};"
        f" upkeep every {settings.maintain_every} runs, snapshots of {settings.keep_snapshots // RUNS_EVERY} runs kept",
        command=options.command("lakehouse-year"),
        yardstick="first third",
        rows=[row for table, counts in played.counts.items() for row in _rows(table, counts)],
        notes=[
            f"{sum(days):,} runs, {played.upkeep_count:,} upkeeps; files that no snapshot knows in the end: {orphans}",
            *(f"{table.name} takes {way}" for table, way in WRITTEN.items()),
            "",
            "after a day's last upkeep: data (of the newest snapshot), manifests and their lists, metadata.json, all",
            *(line for table, counts in played.counts.items() for line in _course(table, counts)),
            "",
            *(_verdict(table, counts) for table, counts in played.counts.items()),
        ],
    )


def _prepared(settings: AggregatorSettings) -> SparkSession:
    spark = rollup.start_session(settings, say)
    prepare(spark)
    return spark


def _unheard(_line: str) -> None:
    pass


def _steady(counts: Sequence[Count]) -> Sequence[Count]:
    """Give the counts since snapshots have gone for a day: they go after one, and manifests are merged now and then."""
    return [each for each in counts if each.run > 2 * RUNS_A_DAY]


def _thirds(counts: Sequence[Count]) -> tuple[int, int] | None:
    """Give the most files beside those that hold rows, in the first and the last third of the steady time."""
    steady = [each.beside for each in _steady(counts)]
    third = len(steady) // 3
    return (max(steady[:third]), max(steady[-third:])) if third else None


def _rows(table: Table, counts: Sequence[Count]) -> Iterator[Row]:
    most = max(counts, key=lambda each: sum(each.files))
    yield Row(f"{table.name}: most files there ever were, on day {most.day}", "files", sum(most.files))
    thirds = _thirds(counts)
    if thirds is not None:
        first, last = thirds
        yield Row("  most beside those that hold its rows, last third", "files", last, first, GROWTH * first, "less")
    yield Row("  that hold its rows, for each day that it holds", "files", counts[-1].in_use / counts[-1].day)


def _course(table: Table, counts: Sequence[Count]) -> Iterator[str]:
    yield table.name
    for day in sorted({*(day for day in SHOWN if day < counts[-1].day), counts[-1].day}):
        files, in_use = next((each.files, each.in_use) for each in reversed(counts) if each.day <= day)
        data = f"{files.data:,} ({in_use:,})"
        yield f"  day {day:>3}  {data:>15}  {files.manifests:>7,}  {files.metadata:>4}  {sum(files):>7,}"


def _verdict(table: Table, counts: Sequence[Count]) -> str:
    thirds = _thirds(counts)
    if thirds is None:
        return f"{table.name}: too few runs to tell whether its files grow"
    first, last = thirds
    grows = "GROW" if last > GROWTH * first else "do not grow"
    return f"{table.name}: files beside those that hold its rows {grows}: {first:,} at most, then {last:,}"


MEASURES = {"lakehouse-year": year}

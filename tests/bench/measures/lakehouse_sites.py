"""What one more run costs a fleet of sites that vouch often, after a history in which each was blind once a day."""

from pyspark import SparkContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from aggregator.lakehouse import rollup
from aggregator.lakehouse.tables import definition
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, BRONZE, SITE_COVERAGE, WATERMARKS
from aggregator.lakehouse.warehouse import commits, provision
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.bench.fleet_history import START
from tests.bench.report import Row, Table
from tests.bench.stage import Options
from tests.bench.warehouses import MASTER, measured, say, settings_for

SITES, DAYS = 10_000, 5
EVERY, RUN = 10 * SECOND, 5 * MINUTE
RUNS = 2


async def vouching_sites(options: Options) -> Table:
    """Measure runs of five minutes in which each site vouches every ten seconds, and what the tables hold then."""
    fleet = _Fleet(options, options.scaled(SITES), max(2, options.scaled(DAYS)))
    history = measured(fleet.take_history), measured(fleet.derive)
    runs = []
    for _ in range(RUNS):
        fleet.take_run()
        runs.append(measured(fleet.derive))
    rows, marks = fleet.row_count(SITE_COVERAGE.name), fleet.row_count(WATERMARKS.name)
    SparkContext.getOrCreate().stop()
    of_runs = sorted(run.processor_seconds for run in runs)
    return Table(
        measure="lakehouse-sites",
        title=f"{fleet.sites:,} sites that vouch every 10 s, after {fleet.days} days; {MASTER}",
        command=options.command("lakehouse-sites"),
        rows=[
            Row("the history, from bronze to committed tables: processor time", "s", history[1].processor_seconds),
            Row("one more run of five minutes: processor time, the median", "s", of_runs[len(of_runs) // 2]),
            Row("  of the clock", "s", min(run.seconds for run in runs)),
            Row("rows of site_coverage", "rows", rows),
            Row("rows of watermarks", "rows", marks),
        ],
    )


class _Fleet:
    """A warehouse of sites with one sender each; every day begins with an hour in which nobody is heard."""

    def __init__(self, options: Options, sites: int, days: int) -> None:
        self.sites, self.days = sites, days
        self._settings = settings_for(options.directory / "lake")
        self._spark = rollup.start_session(self._settings, say)
        provision.prepare(self._spark)
        self._through, self._sequence = START, 0

    def take_history(self) -> None:
        """Write two watermarks a day of each site."""
        end = START + self.days * DAY
        born = self._spark.range(self.sites).select(f.col("id").alias("site"), f.lit(START + HOUR).alias("at"))
        said = {
            "sender_id": "concat('node', site)", "kind": "'new'", "occurred_at": "timestamp_micros(at)",
            "last_seen_at": "timestamp_micros(at)", "event_id": "md5(CAST(site AS STRING))", "sequence": "1L",
            "opening_sequence": "1L", "ordinal": "1L", "rebuilt": "false", "by_operator": "false", "assumed": "false",
        }  # fmt: skip
        self._add(self._rows(ADVISORIES, born, said), ADVISORIES)
        day_at = f.lit(START) + f.col("day") * DAY
        marks = (
            self._spark.range(self.sites)
            .select(f.col("id").alias("site"), f.explode(f.sequence(f.lit(0), f.lit(self.days - 1))).alias("day"))
            .select(
                "site", (day_at + HOUR).alias("since"), f.explode(f.array(day_at + DAY // 2, day_at + DAY)).alias("at")
            )
        )
        self._add(self._watermarks(marks), WATERMARKS)
        self._end(end)

    def take_run(self) -> None:
        """Write what all sites vouch for in the next five minutes."""
        end, since = self._through + RUN, START + self.days * DAY
        instants = f.sequence(f.lit(self._through + EVERY), f.lit(end), f.lit(EVERY))
        marks = self._spark.range(self.sites).select(f.col("id").alias("site"), f.explode(instants).alias("at"))
        self._add(self._watermarks(marks.withColumn("since", f.lit(since))), WATERMARKS)
        self._end(end)

    def derive(self) -> None:
        """Bring the derived tables to where the bronze tables are."""
        rollup.bring_up_to_date(self._spark, self._settings, self._position, full=False, progress=say)

    def row_count(self, table: str) -> int:
        """Count a table's rows."""
        return self._spark.table(f"muster.{table}").count()

    @property
    def _position(self) -> HubPosition:
        return HubPosition("ARCHIVE", 1, self._sequence, self._through)

    def _watermarks(self, marks: DataFrame) -> DataFrame:
        told = {
            "agent": "concat('site', site, '-a')", "boot_id": "'boot'", "observed_since": "timestamp_micros(since)",
            "observed_through": "timestamp_micros(at)", "advisory_ordinal": "1L", "sequence": "1L",
        }  # fmt: skip
        return self._rows(WATERMARKS, marks, told)

    def _rows(self, table: definition.Table, rows: DataFrame, told: dict[str, str]) -> DataFrame:
        told = told | {
            "region": "concat('region', site % 10)", "site": "concat('site', site)", "block": "'nodes'",
            "stream": "'REGISTRATION'", "incarnation": "'1-1'", "archived_at": "timestamp_micros(at)",
            "hub_sequence": f"{self._sequence}L + row_number() OVER (ORDER BY at, site)",
        }  # fmt: skip
        return rows.selectExpr(
            *(f"CAST({told.get(each.name, 'NULL')} AS {each.type}) AS {each.name}" for each in table.columns)
        )

    def _add(self, rows: DataFrame, table: definition.Table) -> None:
        added = commits.append(rows, table, self._position)
        self._sequence += added

    def _end(self, end: int) -> None:
        self._through = end
        for table in BRONZE:
            commits.advance(self._spark, table, self._position)


MEASURES = {"lakehouse-sites": vouching_sites}

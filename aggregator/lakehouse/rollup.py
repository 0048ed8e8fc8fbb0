"""Roll up: bring the tables of one warehouse up to what the hub holds. Everything is put together here."""

import asyncio
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from aggregator.archive.hub_clock import HubClock
from aggregator.archive.reader import CONNECT_DEADLINE, PAUSES, ReadFailed, StreamContents, StreamReader
from aggregator.config import AggregatorSettings
from aggregator.lakehouse.archive.mirror import in_one_piece
from aggregator.lakehouse.archive.reading_plan import ReadingPlan, Span, check_mirror, plan_reading, reached
from aggregator.lakehouse.archive.restored import check_past
from aggregator.lakehouse.archive.slices import StreamSlices
from aggregator.lakehouse.bronze import writer
from aggregator.lakehouse.bronze.chunks import read_chunks
from aggregator.lakehouse.bronze.hub_time_repair import repair
from aggregator.lakehouse.bronze.staged_files import place_of
from aggregator.lakehouse.bronze.writer import ReadCounts
from aggregator.lakehouse.derive import time_report
from aggregator.lakehouse.derive.availability.accounting import AccountingError
from aggregator.lakehouse.derive.checkpoint import checkpoint_of, recipe_of
from aggregator.lakehouse.derive.coverage import clock_steps, contest_report, losses
from aggregator.lakehouse.derive.derivation import Derivation, derive_from_imports, take_back
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.jars import iceberg_jars, jars_for
from aggregator.lakehouse.spark.java import java_home
from aggregator.lakehouse.spark.master import check_master
from aggregator.lakehouse.spark.session import SessionSettings, start
from aggregator.lakehouse.spark.stop_signal import until_stopped
from aggregator.lakehouse.tables.imports import DERIVED_FROM_IMPORTS, IMPORTS
from aggregator.lakehouse.tables.position import HubPosition
from aggregator.lakehouse.tables.schemas import ADVISORIES, BRONZE, CONTINUATIONS, DERIVED, WATERMARKS, Table
from aggregator.lakehouse.unchanged import position_if_unchanged, reached_by_all, tables_at
from aggregator.lakehouse.warehouse import commits, provision
from aggregator.lakehouse.warehouse.catalog import check_ours, check_reachable
from aggregator.lakehouse.warehouse.interruption import Check, unstoppable
from aggregator.lakehouse.warehouse.lock import alone, wait_until_free
from aggregator.lakehouse.warehouse.upkeep import Upkeep, is_due, maintain
from aggregator.records.judge import SiteBlocks

LOCK_DEADLINE = 60.0
CHUNK_BYTES = 512 << 20
CHUNK_MESSAGES = 1_000_000

_RECORDS = (ADVISORIES, WATERMARKS, IMPORTS)

Progress = Callable[[str], None]


class RollupRequest(msgspec.Struct, frozen=True):
    """How to roll up: ``full`` recomputes what could be continued; ``accept_loss`` gives messages up."""

    full: bool = False
    accept_loss: Span | None = None


class RollupResult(msgspec.Struct, frozen=True):
    """What a rollup did; ``upkeep`` where it was due. ``seconds`` are those of the whole, Spark's start included.

    ``contested``: what agents say against each other, one line for each block; ``astray``: of times that they claim;
    ``hub_clock``: how the hub's clock was set back, one line for each time.
    """

    counts: ReadCounts
    position: HubPosition
    seconds: float
    upkeep: Upkeep | None = None
    contested: tuple[str, ...] = ()
    astray: tuple[str, ...] = ()
    hub_clock: tuple[str, ...] = ()


class Hub(msgspec.Struct, frozen=True):
    """What the hub's two streams hold."""

    archive: StreamContents
    report: StreamContents


def roll_up(
    settings: AggregatorSettings, request: RollupRequest, progress: Progress, check: Check = unstoppable
) -> RollupResult:
    """Read what is new, write it once, derive what follows from it; ``check`` may end every wait.

    Raise ConnectFailed, ReadFailed, Refused, AlreadyRunning, JavaUnavailable, JarsUnavailable: one line each; and
    MiscountError, AccountingError when the figures do not add up.
    """
    began = time.monotonic()
    # Before Spark's start: whoever cannot run is told at once.
    asyncio.run(until_stopped(_look_at(settings, pauses=()), check))
    wait_until_free(warehouse(settings), LOCK_DEADLINE, progress, check)
    nothing_new = find_nothing_new(settings, check) if request == RollupRequest() else None
    if nothing_new is not None:
        return msgspec.structs.replace(nothing_new, seconds=time.monotonic() - began)
    spark = start_session(settings, progress)
    result = roll_up_in(spark, settings, request, progress, check)
    return msgspec.structs.replace(result, seconds=time.monotonic() - began)


def roll_up_in(
    spark: SparkSession,
    settings: AggregatorSettings,
    request: RollupRequest,
    progress: Progress,
    check: Check = unstoppable,
) -> RollupResult:
    """Roll up in a session that is there; raise as ``roll_up``."""
    began = time.monotonic()
    upkeep = None
    with alone(spark, warehouse(settings), settings.lakehouse.catalog, LOCK_DEADLINE, progress, check):
        # Under the lock: what was looked at before may lie behind what another job has read since.
        provision.prepare(spark, check)
        positions = commits.positions(spark, BRONZE)
        is_repaired = repair(spark, reached_by_all(positions), progress)
        hub = asyncio.run(until_stopped(_look_at(settings, positions.values()), check))
        plan = plan_reading(list(positions.values()), hub.archive, hub.report, request.accept_loss)
        asyncio.run(until_stopped(_check_past(settings, positions.values()), check))
        counts, position = _take_what_is_new(spark, settings, hub, plan, positions, progress)
        known_before = min((each.known_through for each in positions.values()), default=0)
        bring_up_to_date(spark, settings, position, full=request.full or is_repaired, progress=progress)
        contested = tuple(contest_report.lines(spark, known_before))
        is_astray = counts.ahead or counts.backdated
        steps = clock_steps.read(spark, position)
        astray = tuple(time_report.lines(spark, plan.wanted.first - 1, steps)) if is_astray else ()
        stood_still = tuple(str(step) for step in steps if not 0 < step.resumed_sequence < plan.wanted.first)
        if is_due(spark, settings.lakehouse):
            upkeep = _keep_up(spark, settings, progress, sweep=False)
    return RollupResult(counts, position, time.monotonic() - began, upkeep, contested, astray, stood_still)


def find_nothing_new(settings: AggregatorSettings, check: Check = unstoppable) -> RollupResult | None:
    """Do without Spark what a run would do that finds nothing new; None where it would find something.

    No lock is needed, for nothing is written: where another job writes, tables are not as they were recorded. Raise
    ConnectFailed, ReadFailed, Refused, TablesUnreadable.
    """
    began = time.monotonic()
    check_ours(warehouse(settings), settings.lakehouse.catalog)
    # Before the hub is looked at, which only grows meanwhile.
    position = position_if_unchanged(warehouse(settings), settings.lakehouse)
    if position is None:
        return None
    hub = asyncio.run(until_stopped(_look_at(settings, [position]), check))
    if plan_reading([position], hub.archive, hub.report).wanted.count:
        return None
    asyncio.run(until_stopped(_check_past(settings, [position]), check))
    return RollupResult(ReadCounts(), position, time.monotonic() - began)


def keep_up(settings: AggregatorSettings, progress: Progress, check: Check = unstoppable) -> Upkeep:
    """Finish what a killed run left, then keep all tables small; the hub is not asked.

    Raise AlreadyRunning, JavaUnavailable, JarsUnavailable: one line each; and AccountingError.
    """
    wait_until_free(warehouse(settings), LOCK_DEADLINE, progress, check)
    spark = start_session(settings, progress)
    with alone(spark, warehouse(settings), settings.lakehouse.catalog, LOCK_DEADLINE, progress, check):
        provision.prepare(spark, check)
        is_repaired = repair(spark, reached_by_all(commits.positions(spark, BRONZE)), progress)
        bring_up_to_date(spark, settings, None, full=is_repaired, progress=progress)
        return _keep_up(spark, settings, progress, sweep=True)


def bring_up_to_date(
    spark: SparkSession,
    settings: AggregatorSettings,
    position: HubPosition | None,
    *,
    full: bool,
    progress: Progress,
) -> HubPosition:
    """Derive what is not of this state of the archive and of the imports yet; give the hub's position.

    ``position`` None stands for the one that all bronze tables have reached, which is nowhere before the first rollup.
    Raise AccountingError where times do not add up, and Interfered where another job writes these tables: what the last
    whole run left is what they say then, or after the next run.
    """
    effort.fit(spark, _RECORDS, 0, settings.lakehouse.spark)
    whole_run = commits.last_whole_run(spark)
    positions = commits.positions(spark, (*BRONZE, IMPORTS, *DERIVED_FROM_IMPORTS), whole_run)
    imported = positions.get(IMPORTS.name)
    if position is None:
        position = reached_by_all(positions)
    interval = settings.lakehouse.registration_interval
    recipe = recipe_of(interval, imported, losses.spans(spark, position))
    checkpoint = None if full else checkpoint_of(spark, whole_run, recipe, position, imported)
    wanted = tables_at(position, imported)
    if checkpoint is not None and whole_run.positions == wanted:
        return position
    here = commits.snapshots(spark, (*DERIVED, *DERIVED_FROM_IMPORTS))
    derivation = Derivation(spark, position, imported, interval, progress)
    written: tuple[Table, ...] = ()
    try:
        if imported is not None and (
            checkpoint is None or any(positions.get(each.name) != imported for each in DERIVED_FROM_IMPORTS)
        ):
            derive_from_imports(spark, imported, progress)
            written = DERIVED_FROM_IMPORTS
        if checkpoint is None or checkpoint.position != position:
            effort.cut(spark, _RECORDS, whole_run.snapshots if checkpoint else None, settings.lakehouse.spark)
            progress(f"deriving intervals, coverage and availability through {position.sequence}")
            derivation.run(checkpoint)
    except AccountingError as error:
        # Sums of what two jobs have written prove nothing, and what the other wrote is not to be taken back.
        commits.check_own(spark, here, derivation.written)
        raise AccountingError(f"{error}; {take_back(spark, whole_run)}") from error
    began = msgspec.structs.replace(whole_run, snapshots=here)
    commits.record(spark, wanted, recipe, began, (*written, *derivation.written))
    return position


def start_session(settings: AggregatorSettings, progress: Progress) -> SparkSession:
    """Start Spark for the warehouse of ``settings``, fetching what it needs where that is missing."""
    wanted = session_settings(settings, progress)
    progress("starting Spark")
    return start(wanted)


def session_settings(settings: AggregatorSettings, progress: Progress, *, read_only: bool = False) -> SessionSettings:
    """Say which session the settings ask for, and have at hand what it needs: Java, and jars."""
    check_reachable(warehouse(settings), settings.lakehouse.catalog, read_only=read_only)
    check_master(settings.lakehouse.spark_master)
    cache = default_cache()
    given = Path(settings.lakehouse.jars) if settings.lakehouse.jars else None
    return SessionSettings(
        warehouse=warehouse(settings),
        java_home=java_home(cache),
        jars=iceberg_jars(cache, given, progress, jars_for(settings.lakehouse.catalog)),
        master=settings.lakehouse.spark_master,
        extra=settings.lakehouse.spark,
        catalog=settings.lakehouse.catalog,
        read_only=read_only,
    )


def warehouse(settings: AggregatorSettings) -> Path:
    return Path(settings.lakehouse.path).absolute()


def _keep_up(spark: SparkSession, settings: AggregatorSettings, progress: Progress, *, sweep: bool) -> Upkeep:
    progress("keeping the tables small")
    return maintain(spark, settings.lakehouse, time.time_ns() // 1_000, progress, sweep=sweep)


async def _look_at(
    settings: AggregatorSettings, positions: Collection[HubPosition] | None = None, pauses: Collection[float] = PAUSES
) -> Hub:
    """Ask what the hub's streams hold; the archive again after ``pauses`` while its mirror seems to be ahead of it.

    Of a mirror with holes, what is of use to tables that stand at ``positions``, where these are given.
    """
    reading = settings.lakehouse.reading
    async with StreamReader(settings.hub, deadline=CONNECT_DEADLINE, reading=reading) as reader:
        # The mirror first: what it holds, the archive has held before.
        report = await reader.state(settings.lakehouse.report_stream, pauses)
        archive = await reader.state(settings.lakehouse.archive_stream, pauses)
        check_mirror(report, archive)
        for pause in pauses:
            if report.last_sequence <= archive.last_sequence:
                break
            # A server that has just come to lead the archive may have something still to take.
            await asyncio.sleep(pause)
            archive = await reader.state(settings.lakehouse.archive_stream, PAUSES)
        if positions is not None:
            report = await in_one_piece(reader, report, archive, reached(positions))
        return Hub(archive, report)


async def _check_past(settings: AggregatorSettings, positions: Collection[HubPosition]) -> None:
    async with StreamReader(settings.hub, deadline=CONNECT_DEADLINE) as reader:
        await check_past(reader, positions)


async def _archived_at(settings: AggregatorSettings, hub: Hub, sequence: int) -> int:
    """Give the hub's time (microseconds) of the first message at or after ``sequence``."""
    async with StreamReader(settings.hub, deadline=CONNECT_DEADLINE) as reader:
        found = await reader.at_or_after(hub.archive.name, sequence)
    if found is None or found[0] > hub.archive.last_sequence:
        raise ReadFailed(f"stream {hub.archive.name}: nothing is left at or after {sequence}; run again when there is")
    return found[1]


def _take_what_is_new(
    spark: SparkSession,
    settings: AggregatorSettings,
    hub: Hub,
    plan: ReadingPlan,
    positions: Mapping[str, HubPosition],
    progress: Progress,
) -> tuple[ReadCounts, HubPosition]:
    """Read and write chunk by chunk; a run that is killed goes on with the chunk that it was in.

    ``positions`` tells where the bronze tables stand.
    """
    known_through = min((each.known_through for each in positions.values()), default=0)
    # Of an older release's tables, nobody knows which messages were about the fleet.
    hub_time = min((each.hub_time or each.known_through for each in positions.values()), default=0)
    position = HubPosition(hub.archive.name, hub.archive.created_at, plan.wanted.first - 1, known_through, hub_time)
    steps = clock_steps.read(spark, position)
    clock = HubClock(hub_time, steps[-1] if steps and not steps[-1].resumed_at else None)
    done = writer.begin(spark, position, positions)
    if plan.lost is not None:
        resumed_at = max(known_through, asyncio.run(_archived_at(settings, hub, plan.wanted.first)))
        losses.record(spark, plan.lost, position, resumed_at)
        progress(f"gave up {plan.lost}: the time they stood for is unknown from now on")
    effort.fit(spark, _RECORDS, plan.wanted.count, settings.lakehouse.spark)
    if plan.wanted.count:
        progress(f"reading {plan.wanted.count:,} new messages")
    counts, began = ReadCounts(), time.monotonic()
    place = place_of(spark, ADVISORIES, done[ADVISORIES.name].sequence)
    reading, choria_region = settings.lakehouse.reading, settings.lakehouse.choria_region
    streams = hub.report.name, hub.archive.name
    source = StreamSlices.of(settings.hub, *streams, reading=reading, choria_region=choria_region)
    spans, site_blocks = _chunks(plan, hub.report), SiteBlocks(settings.blocks_per_site)
    for row in spark.table(CONTINUATIONS.identifier).select("region", "site", "block").distinct().collect():
        site_blocks.add(*row)
    size = hub.report.message_size
    with closing(read_chunks(spark, source, spans, place, size, clock, site_blocks=site_blocks)) as chunks:
        for chunk in chunks:
            steps = [*chunk.steps, *([chunk.clock.step] if chunk.clock.step is not None else [])]
            if steps:
                clock_steps.record(spark, steps, position)
            end = msgspec.structs.replace(position, sequence=chunk.span.last)
            taken, position = writer.take(spark, chunk, end, done)
            done = {name: max(stood, position, key=lambda each: each.sequence) for name, stood in done.items()}
            counts += taken
            read = chunk.span.last - plan.wanted.first + 1
            progress(
                f"read {read:,} of {plan.wanted.count:,} ({100 * read // plan.wanted.count} %),"
                f" {read / (time.monotonic() - began):,.0f} a second"
            )
    for region, site in sorted(site_blocks.refused):
        progress(
            f"region {region}, site {site}: records of more than {settings.blocks_per_site} stream blocks"
            " (blocks_per_site) are quarantined: see who else has the site's key, or raise blocks_per_site"
        )
    return counts, position


def _chunks(plan: ReadingPlan, report: StreamContents) -> list[Span]:
    size = max(1, min(CHUNK_MESSAGES, CHUNK_BYTES // report.message_size))
    firsts = range(plan.wanted.first, plan.wanted.last + 1, size)
    return [Span(first, min(first + size - 1, plan.wanted.last)) for first in firsts]

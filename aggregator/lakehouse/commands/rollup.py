"""The commands that write the tables. Spark is imported when one of them runs: ``--help`` must not wait for it."""

from typing import TYPE_CHECKING

import click
import msgspec

from aggregator import config
from aggregator.config import AggregatorSettings
from aggregator.terminal import progress
from shared.command_line.command_group import DURATION, examples
from shared.command_line.terminal import echo
from shared.instants import SECOND, format_duration, format_instant

if TYPE_CHECKING:
    from aggregator.lakehouse.rollup import RollupResult


@click.command(
    epilog=examples(
        "muster-aggregator rollup",
        "muster-aggregator rollup --every 5m",
        "muster-aggregator rollup --full --master 'local[4]'",
    )
)
@config.settings_for_spark
@click.option("--once", is_flag=True, help="Roll up and end, as without options: for cron.")
@click.option("--every", type=DURATION, default=0, help="Go on until stopped, a run each time: as a service.")
@click.option("--full", is_flag=True, help="Compute every derived table anew; what was read stays as it is.")
@click.option(
    "--accept-loss",
    metavar="LO..HI",
    help="Give up these sequences of the archive, which no stream holds any more: their time becomes unknown.",
)
@click.option(
    "--master", metavar="MASTER", help="Spark's master, for another than the settings say: spark://host:7077."
)
def rollup(
    settings: AggregatorSettings, once: bool, every: int, full: bool, accept_loss: str | None, master: str | None
) -> None:
    """Bring the tables up to what the hub holds: read what is new once, derive what follows from it."""
    if every and (once or full or accept_loss):
        raise click.UsageError("--every goes on as a service: leave --once, --full and --accept-loss out")
    if master is not None:
        lakehouse = msgspec.structs.replace(settings.lakehouse, spark_master=master)
        settings = msgspec.structs.replace(settings, lakehouse=lakehouse)
    from aggregator.lakehouse import rollup as job
    from aggregator.lakehouse.archive.reading_plan import Span
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.commands.repeat import roll_up_every
    from aggregator.lakehouse.spark.stop_signal import StopSignal

    if every:
        with in_one_line(), StopSignal() as stop:
            roll_up_every(settings, every / SECOND, stop, _tell, _complain)
        return
    try:
        request = job.RollupRequest(full, Span.parse(accept_loss) if accept_loss else None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--accept-loss") from error
    with in_one_line(), StopSignal() as stop, progress() as tell:
        result = job.roll_up(settings, request, stop.telling(tell), stop.check)
    position = result.position
    echo(_counted(result), prose=True)
    for line in (*result.hub_clock, *result.astray, *result.contested):
        echo(line, prose=True)
    echo(f"tables stand at {position.stream} {position.sequence:,}, known through {_known(result)}", prose=True)
    if result.upkeep is not None:
        echo(f"kept up: {result.upkeep}", prose=True)
    echo(f"took {format_duration(round(result.seconds * SECOND))}", prose=True)


@click.command(epilog=examples("muster-aggregator maintain"))
@config.settings_for_spark
def maintain(settings: AggregatorSettings) -> None:
    """Keep the tables small: make few large files of many, remove what is too old and what dead jobs left.

    Rollups do it themselves, as [lakehouse] maintain_every says.
    """
    from aggregator.lakehouse import rollup as job
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.spark.stop_signal import StopSignal

    with in_one_line(), StopSignal() as stop, progress() as tell:
        upkeep = job.keep_up(settings, stop.telling(tell), stop.check)
    echo(str(upkeep), prose=True)


def _tell(result: "RollupResult") -> None:
    echo(_in_one_line(result), prose=True)
    for line in (*result.hub_clock, *result.astray, *result.contested):
        echo(f"muster-aggregator: {line}", err=True)


def _in_one_line(result: "RollupResult") -> str:
    position = result.position
    upkeep = "" if result.upkeep is None else f"; kept up: {result.upkeep}"
    return (
        f"{_counted(result)}; {position.stream} {position.sequence:,}, known through {_known(result)};"
        f" {format_duration(round(result.seconds * SECOND))}{upkeep}"
    )


def _counted(result: "RollupResult") -> str:
    counts = result.counts
    return (
        f"read {counts.read:,} = written {counts.written:,} + duplicates {counts.duplicates:,}"
        f" + quarantined {counts.quarantined:,}"
    )


def _known(result: "RollupResult") -> str:
    known_through = result.position.known_through
    return format_instant(known_through) if known_through else "nothing yet"


def _complain(line: str) -> None:
    echo(f"muster-aggregator: {line}; trying again", err=True)

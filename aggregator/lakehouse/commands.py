"""The lakehouse's commands. Spark is imported when one of them runs: ``--help`` must not wait for it."""

from pathlib import Path

import click

from aggregator import config
from shared.instants import format_duration, format_instant


@click.command()
@config.config_option
@click.option("--full", is_flag=True, help="Compute every derived table anew; what was read stays as it is.")
@click.option(
    "--accept-loss",
    metavar="LO..HI",
    help="Give up these sequences of the archive, which no stream holds any more: their time becomes unknown.",
)
def rollup(config_path: Path, full: bool, accept_loss: str | None) -> None:
    """Bring the tables up to what the hub holds: read what is new once, derive what follows from it."""
    settings = config.load(config_path)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark

    from aggregator.lakehouse import job  # noqa: PLC0415 - Spark
    from aggregator.lakehouse.failures import EXPECTED, explained  # noqa: PLC0415 - Spark
    from aggregator.lakehouse.reading_plan import Span  # noqa: PLC0415 - Spark

    try:
        request = job.RollupRequest(full, Span.parse(accept_loss) if accept_loss else None)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--accept-loss") from error
    try:
        result = job.roll_up(settings, request, lambda line: click.echo(line, err=True))
    except EXPECTED as error:
        raise click.ClickException(str(error)) from error
    except PySparkException as error:
        line = explained(error)
        if line is None:
            raise
        raise click.ClickException(line) from error
    counts, position = result.counts, result.position
    click.echo(
        f"read {counts.read:,} = written {counts.written:,} + duplicates {counts.duplicates:,}"
        f" + quarantined {counts.quarantined:,}"
    )
    if counts.ahead:
        click.echo(f"{counts.ahead:,} watermarks come from clocks ahead of the hub's: they count up to its time only")
    known = format_instant(position.known_through) if position.known_through else "nothing yet"
    click.echo(f"tables stand at {position.stream} {position.sequence:,}, known through {known}")
    click.echo(f"took {format_duration(round(result.seconds * 1e6))}")

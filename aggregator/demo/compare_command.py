"""The command ``compare``: hold the tables against the truth of a simulated or replayed fleet."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click

from aggregator import config
from aggregator.demo.comparison import Verdict
from shared.instants import format_duration, format_instant
from shared.truth import Truth, TruthError, read_truth

_NAMED = 10


@click.command()
@click.argument("truth_path", metavar="TRUTH", type=click.Path(dir_okay=False, path_type=Path))
@config.config_option
def compare(truth_path: Path, config_path: Path) -> None:
    """Compare every sender's up and down in the tables with TRUTH, the file that a simulation wrote.

    For each sender, the error is how much more downtime the tables give it than it had, within the time that they know
    and TRUTH tells of; the bound is what is promised: the outages too short to be noticed, and twice the registration
    interval for each that was. Ends with 1 where any figure is beyond its bound, somebody was called stale who
    registered, or was up and is in no table, and where nothing is known of a site.
    """
    from aggregator.demo.judgement import judged  # noqa: PLC0415 - DuckDB
    from aggregator.lakehouse.warehouse.errors import TablesUnreadable  # noqa: PLC0415 - DuckDB

    truth, settings = _truth(truth_path), config.load(config_path).lakehouse
    try:
        judgement = judged(truth, Path(settings.path), settings.catalog)
    except TablesUnreadable as error:
        raise click.ClickException(str(error)) from error
    verdicts = judgement.verdicts
    meanwhile = f"from {format_instant(truth.header.started_at_us)} to {format_instant(truth.through)}"
    wrong = [f"{site}: the tables know nothing of it {meanwhile}" for site in judgement.unwatched]
    wrong += [f"{each.sender} at {each.site}: {text}" for each in verdicts for text in each.wrong]
    if verdicts:
        _show(verdicts)
    for line in wrong[:_NAMED]:
        click.echo(line, err=True)
    if not verdicts:
        raise click.ClickException(f"nothing to compare: the tables know no sender of {truth_path}")
    if wrong:
        raise click.ClickException(f"{len(wrong):,} in all: the tables are not what is promised")
    click.echo(f"all {len(verdicts):,} senders are within the bound")


def _show(verdicts: list[Verdict]) -> None:
    """Print one line for each site, and one for all."""
    by_site = defaultdict(list)
    for verdict in verdicts:
        by_site[verdict.site].append(verdict)
    click.echo(f"{'site':<16} senders    truth %   tables %  noticed   missed  largest error  its bound  beyond")
    for site, of_site in [*sorted(by_site.items()), ("all", verdicts)]:
        known = sum(each.observed for each in of_site)
        if not known:
            continue
        worst = max(of_site, key=lambda each: abs(each.error))
        true_up, told_up = known - sum(each.true_down for each in of_site), sum(each.up for each in of_site)
        click.echo(
            f"{site:<16} {len(of_site):>7,} {100 * true_up / known:>10.3f} {100 * told_up / known:>10.3f}"
            f" {sum(each.noticed for each in of_site):>8,} {sum(each.missed for each in of_site):>8,}"
            f" {format_duration(abs(worst.error)):>14} {format_duration(worst.bound):>10}"
            f" {sum(1 for each in of_site if each.beyond):>7,}"
        )


def _truth(path: Path) -> Truth:
    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from file

    try:
        return read_truth(lines())
    except (OSError, TruthError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.ClickException(f"{path}: {reason}") from error

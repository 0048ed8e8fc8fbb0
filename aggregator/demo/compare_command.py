"""The command ``compare``: hold the tables against the truth of a simulated or replayed fleet."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from aggregator import config
from aggregator.demo.comparison import Verdict
from aggregator.terminal import clear_errors, format_table
from shared.command_line.command_group import examples, json_option
from shared.command_line.tables import TableColumn
from shared.command_line.terminal import echo, json_text, width
from shared.instants import format_duration, format_instant
from shared.truth import Truth, TruthError, read_truth

_NAMED = 10


@click.command(epilog=examples("muster-aggregator compare truth.jsonl", "muster-aggregator compare truth.jsonl --json"))
@click.argument("truth_path", metavar="TRUTH", type=click.Path(dir_okay=False, path_type=Path))
@config.config_option
@json_option
def compare(truth_path: Path, config_path: Path, as_json: bool) -> None:
    """Compare every sender's up and down in the tables with TRUTH, the file that a simulation wrote.

    For each sender, the error is how much more downtime the tables give it than it had, within the time that they know
    and TRUTH tells of; the bound is what is promised: the outages too short to be noticed, and twice the registration
    interval for each that was. Ends with 1 where any figure is beyond its bound, somebody was called stale who
    registered, or was up and is in no table, and where nothing is known of a site.
    """
    from aggregator.demo.tables import judged  # noqa: PLC0415 - DuckDB
    from aggregator.lakehouse.warehouse.errors import TablesUnreadable  # noqa: PLC0415 - DuckDB

    truth, settings = _truth(truth_path), config.load(config_path).lakehouse
    with clear_errors(TablesUnreadable):
        judgement = judged(truth, Path(settings.path), settings.catalog)
    verdicts = judgement.verdicts
    meanwhile = f"from {format_instant(truth.header.started_at_us)} to {format_instant(truth.through)}"
    wrong = [f"{site}: the tables know nothing of it {meanwhile}" for site in judgement.unwatched]
    wrong += [f"{each.sender} at {each.site}: {text}" for each in verdicts for text in each.wrong]
    if as_json:
        echo(json_text({"sites": list(_lines(verdicts)), "wrong": wrong}))
    elif verdicts:
        echo(format_table(_COLUMNS, list(_lines(verdicts)), width()))
    for line in wrong[:_NAMED]:
        echo(line, err=True)
    if not verdicts:
        raise click.ClickException(f"nothing to compare: the tables know no sender of {truth_path}")
    if wrong:
        raise click.ClickException(f"{len(wrong):,} in all: the tables are not what is promised")
    if not as_json:
        echo(f"all {len(verdicts):,} senders are within the bound")


_COLUMNS: Sequence[TableColumn[dict[str, Any]]] = (
    TableColumn("site", lambda line: line["site"]),
    TableColumn("senders", lambda line: f"{line['senders']:,}", right=True, spare=2),
    TableColumn("truth %", lambda line: f"{line['truth_percent']:.3f}", right=True),
    TableColumn("tables %", lambda line: f"{line['tables_percent']:.3f}", right=True),
    TableColumn("noticed", lambda line: f"{line['noticed']:,}", right=True, spare=1),
    TableColumn("missed", lambda line: f"{line['missed']:,}", right=True, spare=1),
    TableColumn("largest error", lambda line: format_duration(line["largest_error"]), right=True),
    TableColumn("its bound", lambda line: format_duration(line["bound_of_largest_error"]), right=True),
    TableColumn("beyond", lambda line: f"{line['beyond']:,}", right=True),
)


def _lines(verdicts: list[Verdict]) -> Iterator[dict[str, Any]]:
    """Give the figures of each site of which anything is known, and of all; durations are microseconds."""
    by_site = defaultdict(list)
    for verdict in verdicts:
        by_site[verdict.site].append(verdict)
    for site, of_site in [*sorted(by_site.items()), ("all", verdicts)]:
        known = sum(each.observed for each in of_site)
        if not known:
            continue
        worst = max(of_site, key=lambda each: abs(each.error))
        yield {
            "site": site,
            "senders": len(of_site),
            "truth_percent": 100 * (1 - sum(each.true_down for each in of_site) / known),
            "tables_percent": 100 * sum(each.up for each in of_site) / known,
            "noticed": sum(each.noticed for each in of_site),
            "missed": sum(each.missed for each in of_site),
            "largest_error": abs(worst.error),
            "bound_of_largest_error": worst.bound,
            "beyond": sum(1 for each in of_site if each.beyond),
        }


def _truth(path: Path) -> Truth:
    def lines() -> Iterator[bytes]:
        with path.open("rb") as file:
            yield from file

    try:
        return read_truth(lines())
    except (OSError, TruthError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.ClickException(f"{path}: {reason}") from error

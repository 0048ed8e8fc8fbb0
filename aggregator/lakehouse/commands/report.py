"""The command ``report html``: write the availability page, without Java."""

from pathlib import Path
from typing import Any

import click

from aggregator import config
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.grouping import Choice, InvalidGrouping, parse_grouping
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.query.prompt import interruptible
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from aggregator.terminal import clear_errors, whole_file
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo
from shared.instants import InvalidInstant
from shared.sizes import format_size


@click.command(
    "html",
    epilog=examples(
        "muster-aggregator report html --last 30d",
        "muster-aggregator report html --last 7d --by '{}-{rack}-{}'",
    ),
)
@config.config_option
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("report.html"),
    show_default=True,
    help="The file to write.",
)
@click.option(
    "--from", "since", metavar="WHEN", help="2026-01-31, 2026-01-31T12:00:00Z, or 7d for the last seven days."
)
@click.option("--to", "until", metavar="WHEN", help="2026-02-28 or 2026-02-28T12:00:00Z (exclusive).")
@click.option("--last", metavar="DURATION", help="So long before the end, such as 7d, instead of --from.")
@click.option(
    "--by",
    metavar="SHAPE",
    default="site",
    show_default=True,
    help="site, region, or the shape of names: {}-{rack}-{}.",
)
@click.option("--region", "regions", multiple=True, metavar="REGION", help="Only this region; repeatable.")
@click.option("--site", "sites", multiple=True, metavar="SITE", help="Only this site; repeatable.")
def report_html(config_path: Path, output: Path, by: str, last: str | None, **chosen: Any) -> None:
    """Write the availability page: one HTML file that needs nothing else.

    By default it shows all that is known, by site.
    """
    if last is not None and chosen["since"] is not None:
        raise click.UsageError("--last and --from both say where the period begins: leave one out")
    settings = config.load(config_path).lakehouse
    with clear_errors(TablesUnreadable, InvalidInstant, InvalidGrouping):
        choice = Choice(grouping=parse_grouping(by), **chosen | ({"since": last} if last is not None else {}))
        with open_tables(Path(settings.path), settings.catalog) as tables, interruptible():
            page = render(read_figures(tables, choice, settings.registration_interval))
    with whole_file(output) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    echo(f"{output}: {format_size(len(page.encode()))}", prose=True)

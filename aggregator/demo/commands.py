"""The command ``muster-aggregator demo``."""

import asyncio
from pathlib import Path

import click

from aggregator.demo.performance import perform
from aggregator.demo.scenario import Scenario
from shared.command_group import examples
from shared.instants import SECOND

QUICK = Scenario(senders_per_site=20, rack_size=5, pace=SECOND // 2, rolls_up_midway=False)


@click.command(epilog=examples("muster-aggregator demo --quick", "muster-aggregator demo --stay --dir /tmp/demo"))
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-run"),
    show_default=True,
    help="Where settings, stores, tables, page and logs go; a previous demo there is removed.",
)
@click.option("--quick", is_flag=True, help="Fewer senders, at twice the pace; tables at the end only.")
@click.option("--stay", is_flag=True, help="Go on at the end, with the live page, until Ctrl-C.")
def demo(directory: Path, quick: bool, stay: bool) -> None:
    """Run a fleet, its agents, two regions and a hub on this machine, and compare the tables with the truth.

    Things go wrong meanwhile: a rack, a link, an agent, a server. It fails (exit code 1) where a figure is further from
    the truth than promised, somebody is accused wrongly, or a record is lost; follow it on the live page, whose address
    it tells. Ctrl-C stops everything it started.
    """
    raise SystemExit(asyncio.run(perform(QUICK if quick else Scenario(), directory, stay=stay)))

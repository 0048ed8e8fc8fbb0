"""Run a schedule of faults by hand: ``python -m tests.acceptance.fault_schedule --seed 7 --faults 1000``."""

import asyncio
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from shared.command_line.terminal import echo
from tests.support.faults.run import run_faults
from tests.support.faults.schedule import FaultKind

FAULTS = 200
DRAW = "A kind, or KIND=CARDS: faults are of such kinds alone; of each so many are in a deck (1). May be repeated."


def _cards(given: Sequence[str]) -> dict[FaultKind, int] | None:
    """Read which kinds are wanted; None where none is named."""
    cards = {}
    for each in given:
        name, _, number = each.partition("=")
        found = [kind for kind in FaultKind if kind == name]
        if not found or not (number or "1").isdecimal():
            raise click.BadParameter(f"{each!r} is none of {', '.join(FaultKind)}")
        cards[found[0]] = int(number or 1)
    return cards or None


@click.command()
@click.option("--seed", type=int, default=None, help="The schedule and the senders' lives; drawn where not given.")
@click.option("--faults", type=click.IntRange(min=1), default=FAULTS, show_default=True, help="How many.")
@click.option(
    "--directory", type=click.Path(path_type=Path, exists=False), help="For logs and stores; default: a new one."
)
@click.option("--pair", is_flag=True, help="Two agents serve the site.")
@click.option("--verify", is_flag=True, help="Compare a live service with the tables, too, as the command verify does.")
@click.option("--draw", multiple=True, callback=lambda _context, _option, given: _cards(given), help=DRAW)
def main(
    *,
    seed: int | None,
    faults: int,
    directory: Path | None,
    pair: bool,
    verify: bool,
    draw: dict[FaultKind, int] | None,
) -> None:
    """Let a site, its agent and its region go through faults; say what was lost, duplicated and wrong."""
    chosen = random.randrange(1_000_000) if seed is None else seed
    place = directory or Path(tempfile.mkdtemp(prefix="faults-"))
    run = asyncio.run(run_faults(place, chosen, faults, echo, pair=pair, cards=draw, verify=verify))
    for line in run.report():
        echo(line)
    if not run.verdict.is_clean:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

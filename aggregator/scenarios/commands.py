"""The command ``muster-aggregator scenario``."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import click

from aggregator.demo.processes import CommandFailed
from aggregator.scenarios import edge, fleet_streams, regions, replication, semantics
from aggregator.scenarios.telling import Telling
from aggregator.topology.jetstream import ApplyFailed
from shared.embedded_nats import ServerFailed
from shared.nats_connection import ApiError, ConnectFailed, RequestFailed

SCENARIOS: dict[str, Callable[[Path, Telling], Coroutine[Any, Any, None]]] = {
    "data-replication": replication.play,
    "sources-and-mirrors": semantics.play,
    "fleet-streams": fleet_streams.play,
    "cross-region-streams": regions.play,
    "jetstream-at-the-edge": edge.play,
}


@click.command()
@click.argument("name", type=click.Choice(list(SCENARIOS)))
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where servers, settings and maps go, and stay; must be empty. Default: a directory that is removed.",
)
def scenario(name: str, directory: Path | None) -> None:
    """Play a documented way of replication on servers of its own, and show what each step comes to.

    It fails (exit code 1) where a step does not show what it should.
    """
    telling = Telling(click.echo)
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="muster-") as made:
            _play(name, Path(made), telling)
    else:
        directory.mkdir(parents=True, exist_ok=True)
        if any(directory.iterdir()):
            raise click.ClickException(f"{directory} is not empty: name another place with --dir")
        _play(name, directory, telling)
    wrong = sum(not step.holds for step in telling.steps)
    click.echo(f"\n{len(telling.steps)} steps, {f'{wrong} of them came otherwise' if wrong else 'all as described'}")
    raise SystemExit(1 if wrong else 0)


def _play(name: str, directory: Path, telling: Telling) -> None:
    try:
        asyncio.run(SCENARIOS[name](directory.absolute(), telling))
    except (ServerFailed, CommandFailed, ApplyFailed, ConnectFailed, ApiError, RequestFailed) as error:
        raise click.ClickException(str(error)) from error

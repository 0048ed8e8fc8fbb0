"""The command ``muster-aggregator scenario``."""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple

import click

from aggregator.demo.processes import CommandFailed
from aggregator.scenarios import regions, replication
from aggregator.scenarios.edge import scenario as edge
from aggregator.scenarios.fleet import scenario as fleet
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.semantics import scenario as semantics
from aggregator.terminal import clear_errors, terminable
from aggregator.topology.apply import ApplyFailed
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo, width
from shared.embedded.server import ServerFailed
from shared.nats.connection import ApiError, ConnectFailed, RequestFailed


class Scenario(NamedTuple):
    """How one is played, what it shows, and which documentation it follows."""

    play: Callable[[Path, Narrator], Coroutine[Any, Any, None]]
    shows: str
    source: str


SCENARIOS = {
    "data-replication": Scenario(
        replication.play,
        "two short-lived streams, gathered in an archive that a report mirrors",
        "Data Replication, of the NATS documentation",
    ),
    "sources-and-mirrors": Scenario(
        semantics.play,
        "what sources and mirrors take, keep and refuse; a link that is cut",
        "Source and Mirror Streams, of the NATS documentation",
    ),
    "fleet-streams": Scenario(
        fleet.play,
        "a fleet's registrations, sampled from city to region to centre",
        "Stream Replicator 0.5.0, of Choria",
    ),
    "cross-region-streams": Scenario(
        regions.play,
        "nine servers in three regions, and streams in one of them or across all",
        "Regional and Cross Region Streams (Cluster), of NATS by Example",
    ),
    "jetstream-at-the-edge": Scenario(
        edge.play,
        "a hub and two spokes of three servers each: domains, leaf nodes, accounts",
        "JetStream-LeafNodes-Demo, the script of Persistence at the Edge",
    ),
}
_LISTED = "\b\nNAME is one of:\n" + "\n".join(f"  {name}\n    {each.shows}" for name, each in SCENARIOS.items())
_EXAMPLES = examples("muster-aggregator scenario data-replication", "muster-aggregator scenario fleet-streams --stay")


@click.command(epilog=f"{_LISTED}\n\n{_EXAMPLES}")
@click.argument("name", type=click.Choice(list(SCENARIOS)), metavar="NAME")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where servers, settings and maps go, and stay; must be empty.  [default: a directory that is removed]",
)
@click.option("--stay", is_flag=True, help="Let the servers run at the end, until Ctrl-C, and say how to look at them.")
def scenario(name: str, directory: Path | None, stay: bool) -> None:
    """Play a documented way of replication on servers of its own, and show what each step comes to.

    A step that comes as it should is marked with +. One that does not is marked with !, and the exit code is 1.
    What the documentation says otherwise stands below the step.
    """
    narrator = Narrator(echo, width=width(), stays=stay)
    if directory is None:
        with terminable(), tempfile.TemporaryDirectory(prefix="muster-") as made:
            _play(name, Path(made), narrator)
    else:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise click.ClickException(f"{directory}: cannot be made: {error.strerror}") from error
        if any(directory.iterdir()):
            raise click.ClickException(f"{directory} is not empty: name another place with --dir")
        _play(name, directory, narrator)
    wrong = sum(not step.holds for step in narrator.steps)
    echo(f"\n{len(narrator.steps)} steps, {f'{wrong} of them came otherwise' if wrong else 'all as described'}")
    if directory is not None:
        echo(f"{directory} keeps settings, stores and maps", prose=True)
    raise SystemExit(1 if wrong else 0)


def _play(name: str, directory: Path, narrator: Narrator) -> None:
    played = SCENARIOS[name]
    narrator.introduce(f"{name}: {played.shows}", f"as in: {played.source}")
    with clear_errors(ServerFailed, CommandFailed, ApplyFailed, ConnectFailed, ApiError, RequestFailed):
        asyncio.run(played.play(directory.absolute(), narrator))

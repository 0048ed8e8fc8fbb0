"""The command ``migrate-config``: from stream-replicator's configuration, and its state, to ours."""

import asyncio
import os
from pathlib import Path

import click

from edge_agent.config import agent
from edge_agent.migration.peer import MigrationRefused
from edge_agent.migration.settings import migrate
from edge_agent.migration.state import take_over
from edge_agent.store.files import StoreUnusable
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo
from shared.identifiers import validated_token


@click.command(
    "migrate-config",
    epilog=examples(
        "muster-agent migrate-config sr.yaml --region eu-west",
        "muster-agent migrate-config sr.yaml --region eu-west --output agent.toml",
        "muster-agent migrate-config sr.yaml --region eu-west --state state",
    ),
)
@click.argument("config", metavar="FILE", type=click.Path(dir_okay=False, exists=True, path_type=Path))
@click.option(
    "--region", metavar="NAME", required=True, help="The region's name, which stream-replicator does not know."
)
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the settings there, in the place of what is there; default: standard output.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    help="Take over its state_store, or a file in it, and its consumers' positions. It must have been stopped.",
)
@click.option("--store", type=click.Path(dir_okay=False, path_type=Path), help="Keep the store there (store.path).")
def migrate_config(config: Path, region: str, output: Path | None, state: Path | None, store: Path | None) -> None:
    """Write our settings for the configuration FILE of choria-io/stream-replicator, YAML or JSON.

    Lists on standard error, a line each, what has no counterpart or works otherwise. With --state the senders that it
    knows are not announced again, and reading goes on behind the last message that it acknowledged: nothing is lost,
    nothing read twice. Ends with 0, or 1 where nothing was written.
    """
    try:
        validated_token(region, "the region")
        path = (output or agent.DEFAULT_PATH).absolute()
        migrated = migrate(config.read_bytes(), region, path, store.absolute() if store else None)
        taken = asyncio.run(take_over(migrated.settings, migrated.blocks, state)) if state else []
        if output is None:
            echo(migrated.text.rstrip("\n"))
        else:
            _write(output, migrated.text)
    except (MigrationRefused, StoreUnusable, ValueError) as error:
        raise click.ClickException(f"{config}: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    for remark in migrated.remarks:
        echo(f"{config}: {remark}", err=True)
    for line in taken:
        echo(f"taken over: {line}", err=True)


def _write(path: Path, text: str) -> None:
    """Write the file. One that was there keeps its owner and rights; a new one of root's gets its directory's group.

    /etc/muster-agent belongs to the group of the agent's user, which must be able to read what root writes there.
    """
    is_new = not path.exists()
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o640), "w") as file:
        if is_new and os.geteuid() == 0:
            os.fchown(file.fileno(), -1, path.absolute().parent.stat().st_gid)
        file.write(text)

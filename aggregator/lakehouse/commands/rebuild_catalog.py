"""The command ``rebuild-catalog``: make the file that names the tables anew, without Java."""

from pathlib import Path

import click

from aggregator import config
from aggregator.lakehouse.warehouse.catalog_file import rebuild
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from shared.command_group import examples
from shared.terminal import echo


@click.command("rebuild-catalog", epilog=examples("muster-aggregator rebuild-catalog"))
@config.config_option
def rebuild_catalog(config_path: Path) -> None:
    """Make catalog.db anew, where it was lost or is damaged, from the metadata that every table has beside its rows.

    Nothing of the tables is written. Views come back with the next rollup. The old file is kept as catalog.db.old-N.
    """
    settings = config.load(config_path).lakehouse
    if settings.catalog.type != "sqlite":
        raise click.ClickException(
            f"lakehouse.catalog: the catalog at {settings.catalog.uri} is no file: restore it from its own backup"
        )
    try:
        made = rebuild(Path(settings.path).absolute())
    except (TablesUnreadable, AlreadyRunning) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        raise click.ClickException(f"{error.filename}: cannot be written: {error.strerror}") from error
    for path in made.unreadable:
        echo(f"{path} cannot be read: its table goes by the state before", err=True)
    kept = f"; the old file is {made.kept}" if made.kept is not None else ""
    echo(f"catalog.db names {len(made.tables)} tables{kept}; run muster-aggregator rollup next", prose=True)

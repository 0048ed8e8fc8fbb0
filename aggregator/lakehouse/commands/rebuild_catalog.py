"""The command ``rebuild-catalog``: make the file that names the tables anew, without Java."""

from pathlib import Path

import click

from aggregator import config
from aggregator.lakehouse.warehouse.catalog_file import rebuild
from aggregator.lakehouse.warehouse.catalog_settings import SecretUnreadable
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo


@click.command("rebuild-catalog", epilog=examples("muster-aggregator rebuild-catalog"))
@config.config_option
def rebuild_catalog(config_path: Path) -> None:
    """Make catalog.db again from the metadata that every table has beside its rows: where it was lost or is damaged,
    and for a copy of the tables.

    In a copy, the metadata still lead to the original. They are written again with the paths of the copy, which is
    independent of the original from then on. Views come back with the next rollup. The old file is kept as
    catalog.db.old-N.
    """
    settings = config.load(config_path).lakehouse
    if settings.catalog.type != "sqlite":
        raise click.ClickException(
            f"lakehouse.catalog: the catalog at {settings.catalog.uri} is no file: restore it from its own backup"
        )
    try:
        made = rebuild(Path(settings.path).absolute(), settings.catalog)
    except (TablesUnreadable, AlreadyRunning, SecretUnreadable) as error:
        raise click.ClickException(str(error)) from error
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        raise click.ClickException(f"{what}{error.strerror or error}") from error
    for path in made.unreadable:
        echo(f"{path} cannot be read: its table goes by the state before", err=True)
    if made.relocated:
        echo(f"{len(made.relocated)} tables are copies: their metadata name the files of the copy now", prose=True)
    kept = f"; the old file is {made.kept}" if made.kept is not None else ""
    echo(f"catalog.db names {len(made.tables)} tables{kept}; run muster-aggregator rollup next", prose=True)

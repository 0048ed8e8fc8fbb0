"""The command ``serve-sql``: Spark Connect for analysts. Spark is imported when it runs."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from aggregator import config
from aggregator.config import AggregatorSettings, LakehouseSettings
from aggregator.lakehouse.commands.read_only import trust_option, trusts_catalog
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.definition import NAMESPACE
from aggregator.lakehouse.warehouse.catalog_settings import catalog_file, warehouse_url
from aggregator.lakehouse.warehouse.local_paths import local_path
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo
from shared.system_errors import reason_of

_ALIVE_SECONDS = 1.0
_SHORTEST_TOKEN = 32
_OF_OTHERS = 0o077
_EXAMPLES = examples("umask 077; openssl rand -hex 32 > token", "muster-aggregator serve-sql --token-file token")


@click.command("serve-sql", epilog=_EXAMPLES)
@config.settings_for_spark
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="File with the token that every client must have.",
)
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(1, 65535),
    default=15002,
    show_default=True,
    help="The port of localhost to listen on.",
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    default="serve-sql.log",
    show_default=True,
    help="File for what Spark has to say.",
)
@trust_option
def serve_sql(settings: AggregatorSettings, token_file: Path, port: int, log: Path) -> None:
    """Serve the tables to Spark Connect until SIGTERM or Ctrl-C, to whoever has the token.

    A client runs code as the user that this runs as: it must be one who can read the tables and write nothing of them.

    All tables and views are there by their names. For spark-sql there is muster-aggregator spark-sql.
    """
    _check_user(settings.lakehouse)
    token = _token(token_file)
    from aggregator.lakehouse import rollup
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.spark.sql_server import SqlEndpoint, check_port, serving

    endpoint = SqlEndpoint(port, token)
    with in_one_line(log):
        open_tables(Path(settings.lakehouse.path), settings.lakehouse.catalog).close()
        check_port(endpoint)
        session = rollup.session_settings(settings, _say, read_only=True)
        with serving(session, endpoint, log, _say) as is_alive:
            echo(f"Spark Connect  {endpoint.url}")
            echo("ready; SIGTERM or Ctrl-C ends it")
            _wait_for_the_end(is_alive)


def _say(line: str) -> None:
    echo(line, err=True)


def _check_user(lakehouse: LakehouseSettings) -> None:
    """Raise click.ClickException where a client, who is this user, could change a table: only permissions stop it."""
    if os.geteuid() == 0:
        raise click.ClickException(
            "serve-sql runs the code of its clients: start it as a user of its own, who can only read the tables, not"
            " as root"
        )
    for path in _places(lakehouse):
        if os.access(path, os.W_OK) or path.stat().st_uid == os.geteuid():
            raise click.ClickException(
                f"{path} belongs to this user, or may be written by it, and so by every client: start serve-sql as a"
                " user who can only read the tables"
            )
    if lakehouse.catalog.type != "sqlite" and not trusts_catalog():
        raise click.ClickException(
            "lakehouse.catalog: what a catalog on a server lets its clients do cannot be seen from here: use settings"
            " whose credentials may only read, also of the tables' store, then say --trust-catalog"
        )


def _places(lakehouse: LakehouseSettings) -> Iterator[Path]:
    """Yield the directories and files of this machine that make up the tables and their catalog."""
    warehouse = Path(lakehouse.path)
    url = warehouse_url(warehouse, lakehouse.catalog)
    tables = local_path(f"{url}/{NAMESPACE}")
    parts = (warehouse, catalog_file(warehouse), *((Path(tables).parent, Path(tables)) if tables else ()))
    for path in parts:
        if path.exists():
            yield path
    for depth in ("*", "*/*", "*/metadata/*") if tables else ():
        yield from Path(tables or "").glob(depth)


def _token(file: Path) -> str:
    """Read the token; raise click.ClickException where others may, too, or where it can be guessed."""
    try:
        mode, token = file.stat().st_mode, file.read_text().strip()
    except OSError as error:
        raise click.ClickException(f"{file} cannot be read: {reason_of(error, file)}") from error
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file} cannot be read: not plain text") from error
    if mode & _OF_OTHERS:
        raise click.ClickException(f"{file} may be read or written by others than its owner: chmod 600 {file}")
    if len(token) < _SHORTEST_TOKEN or not (token.isascii() and token.isalnum()):
        raise click.ClickException(
            f"{file}: a token has at least {_SHORTEST_TOKEN} letters and digits: openssl rand -hex 32 > {file}"
        )
    return token


def _wait_for_the_end(is_alive: Callable[[], bool]) -> None:
    """Return when the process is asked to end; raise click.ClickException when Spark ends by itself."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while not asked.wait(_ALIVE_SECONDS):
        if not is_alive() and not asked.wait(_ALIVE_SECONDS):
            raise click.ClickException("Spark has ended by itself: see its log, and start again")

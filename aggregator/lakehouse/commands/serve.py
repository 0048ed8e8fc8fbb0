"""The command ``serve-sql``: JDBC and Spark Connect for analysts. Spark is imported when it runs."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import click

from aggregator import config
from aggregator.config import AggregatorSettings
from aggregator.lakehouse.commands.read_only import check_read_only, trust_option
from aggregator.lakehouse.query.engine import open_tables

_ALIVE_SECONDS = 1.0
_PORT = click.IntRange(1, 65535)


@click.command("serve-sql")
@config.settings_for_spark
@click.option("--only", type=click.Choice(["jdbc", "connect"]), help="Serve one of the two.  [default: both]")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; nobody is asked who.")
@click.option("--jdbc-port", type=_PORT, default=10000, show_default=True, help="For JDBC.")
@click.option("--connect-port", type=_PORT, default=15002, show_default=True, help="For Spark Connect.")
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File for what Spark has to say.  [default: serve-sql.log beside the tables]",
)
@trust_option
def serve_sql(
    settings: AggregatorSettings, only: str | None, host: str, jdbc_port: int, connect_port: int, log: Path | None
) -> None:
    """Serve the tables to JDBC clients and to Spark Connect until SIGTERM or Ctrl-C; they can be read only.

    \b
      muster-aggregator serve-sql
      beeline -u jdbc:hive2://127.0.0.1:10000/muster -e "SELECT * FROM outages LIMIT 10"

    All tables and views are there by their names. For spark-sql there is muster-aggregator spark-sql.
    """  # noqa: D301 - \b keeps click from filling the lines
    check_read_only(settings.lakehouse.catalog)
    from aggregator.lakehouse import rollup
    from aggregator.lakehouse.commands.failures import in_one_line
    from aggregator.lakehouse.spark.sql_server import Endpoints, check_ports, serving

    endpoints = Endpoints(host, None if only == "connect" else jdbc_port, None if only == "jdbc" else connect_port)
    log = log or rollup.warehouse(settings) / "serve-sql.log"
    with in_one_line(log):
        open_tables(Path(settings.lakehouse.path), settings.lakehouse.catalog).close()
        check_ports(endpoints)
        session = rollup.session_settings(settings, _say, read_only=True)
        with serving(session, endpoints, log, _say) as is_alive:
            for protocol, url in endpoints.urls.items():
                click.echo(f"{protocol:<14} {url}")
            click.echo("ready; SIGTERM or Ctrl-C ends it")
            _wait_for_the_end(is_alive)


def _say(line: str) -> None:
    click.echo(line, err=True)


def _wait_for_the_end(is_alive: Callable[[], bool]) -> None:
    """Return when the process is asked to end; raise click.ClickException when Spark ends by itself."""
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while not asked.wait(_ALIVE_SECONDS):
        if not is_alive() and not asked.wait(_ALIVE_SECONDS):
            raise click.ClickException("Spark has ended by itself: see its log, and start again")

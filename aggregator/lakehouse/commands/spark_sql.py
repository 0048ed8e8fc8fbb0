"""The command ``spark-sql``: Spark's own shell on the tables, or the command line for it."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from aggregator import config
from aggregator.config import AggregatorSettings
from aggregator.lakehouse.commands.read_only import check_read_only, trust_option
from aggregator.lakehouse.query.engine import open_tables
from aggregator.terminal import clear_errors
from shared.command_line.command_group import examples
from shared.command_line.terminal import echo


@click.command(
    "spark-sql",
    context_settings={"ignore_unknown_options": True},
    epilog=examples(
        "muster-aggregator spark-sql -e 'SELECT * FROM outages LIMIT 10'", "muster-aggregator spark-sql --print"
    ),
)
@config.settings_for_spark
@click.option("--print", "only_print", is_flag=True, help="Print the command line instead, for a Spark of one's own.")
@trust_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
def spark_sql(settings: AggregatorSettings, only_print: bool, arguments: tuple[str, ...]) -> None:
    """Ask the tables through Spark's own spark-sql: its SQL, its prompt; they can be read only.

    What stands after it goes to spark-sql as it is.
    """
    check_read_only(settings.lakehouse.catalog)
    import pyspark

    from aggregator.lakehouse import rollup
    from aggregator.lakehouse.commands.failures import EXPECTED
    from aggregator.lakehouse.spark.session import spark_environment, spark_properties
    from aggregator.lakehouse.warehouse.catalog_settings import spark_secrets

    lakehouse = settings.lakehouse
    with clear_errors(*EXPECTED):
        open_tables(Path(lakehouse.path), lakehouse.catalog).close()
        session = rollup.session_settings(settings, lambda line: echo(line, err=True), read_only=True)
        secrets = spark_secrets(lakehouse.catalog)
    public = {
        **spark_properties(session),
        **session.extra,
        "spark.master": session.master,
        # Without it, spark-sql makes a Hive metastore in the directory that it is started from.
        "spark.sql.catalogImplementation": "in-memory",
    }
    environment = spark_environment(session)
    program = str(Path(pyspark.__file__).parent / "bin" / "spark-sql")
    if only_print:
        echo(_line(program, environment, public, arguments))
    else:
        sys.exit(_run([program, *arguments], environment, public | secrets))


def _line(program: str, environment: Mapping[str, str], properties: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Write a command for a shell. Secrets are left out: they would stand on the command line for all to read."""
    parts = [
        *(f"{name}={shlex.quote(value)}" for name, value in environment.items()),
        shlex.quote(program),
        *(f"--conf {shlex.quote(f'{name}={value}')}" for name, value in properties.items()),
        *map(shlex.quote, arguments),
    ]
    return " \\\n  ".join(parts)


def _run(command: list[str], environment: Mapping[str, str], properties: Mapping[str, str]) -> int:
    """Run it with the properties in a file that nobody else can read."""
    with TemporaryDirectory(prefix="muster-") as directory:
        file = Path(directory) / "spark.properties"
        file.write_text("".join(f"{name}={_property(value)}\n" for name, value in properties.items()))
        program, *arguments = command
        started = subprocess.Popen(  # noqa: S603 - Spark's own shell
            [program, "--properties-file", str(file), *arguments], env={**os.environ, **environment}
        )
        # The terminal sends Ctrl-C to both: it ends a query, and the shell says what becomes of it.
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: started.terminate())
        return started.wait()


def _property(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n")

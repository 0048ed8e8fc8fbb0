"""The command ``muster-aggregator``: composes the commands of the topology, the lakehouse and the demo."""

import sys
from pathlib import Path

import click

from aggregator import config
from aggregator.lazy_commands import LazyCommand, LazyGroup
from aggregator.missing_packages import explain_missing
from shared.command_line.command_group import HELP_OPTIONS, completion_command, examples, version_option
from shared.command_line.terminal import colours, echo

_TOPOLOGY = "aggregator.topology.commands.streams"
_LAKEHOUSE = "aggregator.lakehouse.commands.rollup"
_IMPORTS = "aggregator.lakehouse.commands.imports"
_QUERY = "aggregator.lakehouse.commands.sql"
_PAGE = "aggregator.lakehouse.commands.report"
_REPORTS = {"html": LazyCommand(_PAGE, "report_html", "Write the availability page.")}
COMMANDS = {
    "plan": LazyCommand(_TOPOLOGY, "plan", "Show what apply would do to make the streams as the settings say."),
    "apply": LazyCommand(_TOPOLOGY, "apply", "Make the streams as the settings say."),
    "report": LazyCommand(
        _TOPOLOGY, "report", "Show how the streams are, and how far each copy has come.", below=_REPORTS
    ),
    "check": LazyCommand(
        "aggregator.topology.commands.check",
        "check_command",
        "Say in one line whether anything is wrong, for monitors.",
    ),
    "render": LazyCommand(
        "aggregator.topology.commands.render", "render", "Write nats-server configurations for hub, regions and sites."
    ),
    "policy": LazyCommand(
        "aggregator.policy.commands", "policy", "Change what agents watch by, and declare maintenance."
    ),
    "rollup": LazyCommand(_LAKEHOUSE, "rollup", "Bring the tables up to what the hub holds."),
    "maintain": LazyCommand(_LAKEHOUSE, "maintain", "Keep the tables small: compact them, and remove what is too old."),
    "rebuild-catalog": LazyCommand(
        "aggregator.lakehouse.commands.rebuild_catalog",
        "rebuild_catalog",
        "Make the file that names the tables anew, where it was lost.",
    ),
    "import": LazyCommand(_IMPORTS, "import_", "Import the history of another monitoring system."),
    "sql": LazyCommand(_QUERY, "sql", "Ask the tables a question in SQL."),
    "serve-sql": LazyCommand("aggregator.lakehouse.commands.serve", "serve_sql", "Serve the tables to Spark Connect."),
    "spark-sql": LazyCommand(
        "aggregator.lakehouse.commands.spark_sql", "spark_sql", "Ask the tables through Spark's own spark-sql."
    ),
    "tables": LazyCommand(
        "aggregator.lakehouse.commands.tables", "tables", "Show the tables: how big, how fresh, through which message."
    ),
    "serve": LazyCommand(
        "aggregator.fleet.commands.serve", "serve", "Show what is up right now: a page, an API and metrics."
    ),
    "top": LazyCommand("aggregator.fleet.commands.top", "top", "Show the live fleet at a terminal."),
    "sender": LazyCommand("aggregator.fleet.commands.sender", "sender", "Tell everything about one sender."),
    "verify": LazyCommand(
        "aggregator.fleet.commands.verify", "verify", "Compare the live service and the tables, sender by sender."
    ),
    "scenario": LazyCommand(
        "aggregator.scenarios.commands", "scenario", "Play a documented topology on servers of its own."
    ),
    "compare": LazyCommand(
        "aggregator.demo.compare_command", "compare", "Compare the tables with what a simulated fleet really did."
    ),
    "demo": LazyCommand("aggregator.demo.performance", "demo", "Run a whole fleet on this machine."),
}


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    context_settings=HELP_OPTIONS,
    epilog=examples("muster-aggregator plan", "muster-aggregator report", "muster-aggregator check"),
)
@version_option("muster-aggregator")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Gather what the regions know: lay out the streams, keep the tables, show who was there."""
    context.obj = debug


@cli.command(
    "check-config",
    epilog=examples(
        "muster-aggregator check-config",
        "muster-aggregator check-config --config /etc/muster/aggregator.toml",
    ),
)
@click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help=f"The aggregator's settings file.  [default: {config.DEFAULT_PATH}, if there]",
)
@click.option(
    "--topology",
    "topology_path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The topology's settings file.  [default: topology.toml, if there]",
)
def check_config(config_path: Path | None, topology_path: Path | None) -> None:
    """Read the settings files and say what is wrong with them, or what they amount to."""
    from aggregator.topology.commands import streams as topology_commands

    if config_path is None and topology_path is None:
        config_path = config.DEFAULT_PATH if config.DEFAULT_PATH.exists() else None
        topology_path = topology_commands.DEFAULT_PATH if topology_commands.DEFAULT_PATH.exists() else None
        if config_path is None and topology_path is None:
            raise click.ClickException("neither aggregator.toml nor topology.toml is here: name one")
    if config_path is not None:
        settings = config.load(config_path)
        echo(f"{config_path}: good")
        echo(f"  hub: {', '.join(settings.hub.servers)}; tables: {settings.lakehouse.path}", prose=True)
        opened_by = settings.live.opened_by
        readers = f"open to others by {opened_by}, with tokens" if opened_by else "for this machine only"
        echo(f"  live service: {settings.live.listen}, {readers}", prose=True)
    if topology_path is not None:
        topology = topology_commands.load(topology_path)
        echo(f"{topology_path}: good")
        echo(f"  hub: {', '.join(topology.hub.servers)}; domain: {topology.hub.domain or 'its own'}", prose=True)
        for region in topology.regions:
            sites = [site.name for site in topology.sites if site.region == region.name]
            echo(
                f"  region {region.name} in domain {region.jetstream_domain}: {', '.join(sites) or 'no sites named'}",
                prose=True,
            )


cli.add_command(completion_command("muster-aggregator", lambda: cli))


def main() -> None:
    """Run the command; a person gets one clear line, never a traceback, unless --debug asks for it."""
    try:
        cli(standalone_mode=False, color=colours())
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        if "--debug" in sys.argv:
            raise
        echo(f"muster-aggregator: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        line = explain_missing(error)
        if line is None or "--debug" in sys.argv:
            raise
        echo(f"muster-aggregator: {line}", err=True)
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()

"""The command ``muster-aggregator``: composes the commands of the topology, the lakehouse and the demo.

A command is imported when it is called: ``--help`` and ``plan`` must not wait for Spark. For a command whose packages
are not installed, one line names them.
"""

import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from aggregator import config
from shared.command_line.command_group import (
    ANY_LENGTH,
    HELP_OPTIONS,
    CommandGroup,
    completion_command,
    examples,
    version_option,
)
from shared.command_line.terminal import colours, echo


class LazyCommand(NamedTuple):
    """The place of a command, its help, shown without loading it, and sub-commands of other modules ``below`` it."""

    module: str
    attribute: str
    help: str
    below: Mapping[str, "LazyCommand"] = {}

    @property
    def is_there(self) -> bool:
        """True if its module is installed; its package may be left out."""
        try:
            return find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def load(self) -> click.Command:
        """Import the command and add the sub-commands of other modules."""
        command: click.Command = getattr(import_module(self.module), self.attribute)
        if not self.below:
            return command
        return LazyGroup(
            name=command.name,
            lazy=self.below,
            callback=command.callback,
            params=command.params,
            help=command.help,
            epilog=command.epilog,
            invoke_without_command=True,
        )


class LazyGroup(CommandGroup):
    """A group that loads each command when it is called, and shows none of a module that is not installed."""

    def __init__(self, *args: Any, lazy: Mapping[str, LazyCommand], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = {name: command for name, command in lazy.items() if command.is_there}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*super().list_commands(ctx), *self._lazy]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        lazy = self._lazy.get(cmd_name)
        return lazy.load() if lazy is not None else super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        self.write_commands(formatter, self._sentences())

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete the commands' names without loading any."""
        named = [CompletionItem(name, help=text) for name, text in self._sentences().items()]
        return [item for item in named if item.value.startswith(incomplete)] + click.Command.shell_complete(
            self, ctx, incomplete
        )

    def _sentences(self) -> dict[str, str]:
        loaded = {name: command.get_short_help_str(ANY_LENGTH) for name, command in self.commands.items()}
        return loaded | {name: command.help for name, command in self._lazy.items()}


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


_OURS = frozenset({"aggregator", "edge_agent", "shared"})
_IN_AN_EXTRA = re.compile(r"([\w.-]+).*; extra == '(.+)'")
_EXTRAS = ("aggregator", "live", "lakehouse", "demo")
"""Those that bring commands; later ones bring what the first does, and more."""
_DISTRIBUTION_PACKAGES = {"lakehouse": " or the package muster-aggregator-spark"}
"""What brings an extra where Muster was installed as a package of the distribution (rpm/muster-aggregator.spec)."""


def explain_missing(error: ModuleNotFoundError) -> str | None:
    """Return the missing package and how to install it; None for a module of Muster's own, which is a defect."""
    package = (error.name or "").partition(".")[0]
    if not package or package in _OURS:
        return None
    return f"this command needs {package}, which is not installed: {_remedy(package)}"


def _remedy(package: str) -> str:
    extra = _extra_of(package)
    if extra is None:
        return "install Muster again"
    return f"pip install 'muster[{extra}]'{_DISTRIBUTION_PACKAGES.get(extra, '')}"


def _extra_of(package: str) -> str | None:
    """Return the first extra that requires the distribution of this name, as the metadata of Muster says."""
    try:
        found = [match.groups() for match in map(_IN_AN_EXTRA.match, requires("muster") or ()) if match]
    except PackageNotFoundError:
        return None
    name = package.replace("_", "-").lower()
    return next((extra for extra in _EXTRAS if (name, extra) in found), None)

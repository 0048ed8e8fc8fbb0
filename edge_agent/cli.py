"""The command ``muster-agent``: run it, check its settings, look at it."""

import asyncio
import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import click

from edge_agent.config import agent
from edge_agent.config.agent import config_option
from edge_agent.observability.log_format import LOG_FORMATS, LogFormat, log_to
from shared.command_line.command_group import (
    HELP_OPTIONS,
    CommandGroup,
    completion_command,
    examples,
    json_option,
    version_option,
)
from shared.command_line.terminal import colours, echo, json_text, width
from shared.settings import SettingsError

LAZY_COMMANDS = {
    **dict.fromkeys(("advisories", "explain", "outbox", "senders"), "edge_agent.inspection.commands"),
    "doctor": "edge_agent.doctor.command",
    "migrate-config": "edge_agent.migration.command",
    "simulate": "edge_agent.simulator.commands",
}


class _Commands(CommandGroup):
    """Commands that are imported only when they run, so that the agent starts in a fraction of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in LAZY_COMMANDS:
            command: click.Command = getattr(import_module(LAZY_COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
            return command
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Commands,
    context_settings=HELP_OPTIONS,
    epilog=examples("muster-agent check-config --config agent.toml", "muster-agent status", "muster-agent doctor"),
)
@version_option("muster-agent")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug messages.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Watch a site's registrations: forward a sample, say who is new, stale, recovered or retired."""
    context.obj = debug
    log_to(sys.stderr, debug=debug)


@cli.command(
    epilog=examples(
        "muster-agent run --config agent.toml", "muster-agent run --log-format json 2>> /var/log/muster-agent.log"
    )
)
@config_option
@click.option(
    "--log-format",
    type=click.Choice(LOG_FORMATS),
    default="text",
    show_default=True,
    help="How lines of the log are written to standard error: key=value, or a JSON object each.",
)
@click.pass_obj
def run(debug: bool, config_path: Path, log_format: LogFormat) -> None:
    """Run the agent until it is told to stop by SIGTERM or SIGINT.

    Ends with 0 then, and with 1 after one line that says why it cannot go on.
    """
    import uvloop

    from edge_agent.daemon import run as run_agent

    settings = agent.load(config_path)
    log_to(sys.stderr, log_format, debug=debug, site=settings.site, region=settings.region)
    # A context manager, not uvloop.run(): the agent handles its own signals.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_agent(settings))


@cli.command("check-config", epilog=examples("muster-agent check-config --config agent.toml"))
@config_option
def check_config(config_path: Path) -> None:
    """Check the settings file: print an error in it, or all settings in effect, defaults included.

    Warns if there is no place for the store here; muster-agent doctor looks at the rest. Ends with 0, or 1 if the
    file is wrong.
    """
    from edge_agent.config.effective import render_settings, toml_value
    from edge_agent.store.files import StoreUnusable, check_place

    settings = agent.load(config_path)
    echo(f"{config_path}: good")
    echo(f"  site {settings.site}, region {settings.region}, agent {settings.agent_name}", prose=True)
    for block in settings.stream:
        source = ", ".join(block.source.servers)
        echo(f"  {block.name}: {block.source.stream} at {source}, consumer {settings.consumer_of(block)}", prose=True)
        if any(block.remark):
            echo(f"  warning: {'; '.join(block.remark)}", prose=True)
    if settings.pair.members:
        echo(
            f"  pair: {' and '.join(settings.pair.members)}, takeover after {toml_value(settings.pair.takeover_after)}",
            prose=True,
        )
    echo(f"  upstream: {', '.join(settings.upstream.servers)}; store: {settings.store.path}", prose=True)
    path = Path(settings.store.path)
    try:
        # The service makes the default directory at its first start; one that this user may not enter is the doctor's.
        with suppress(OSError):
            if path.parent != Path(agent.StoreSettings().path).parent:
                check_place(path)
    except StoreUnusable as error:
        # No failure: the file may be for another host.
        echo(f"  warning: the agent would not start here: {error}", prose=True)
    echo(f"\nIn effect, defaults included:\n\n{render_settings(settings)}")


@cli.command(
    epilog=examples(
        "muster-agent status --config agent.toml",
        "watch muster-agent status",
        "muster-agent status --check || echo look at it",
    )
)
@config_option
@json_option
@click.option("--check", is_flag=True, help="Print what is wrong, a line each, and end with 0, 1 or 2.")
def status(config_path: Path, as_json: bool, check: bool) -> None:
    """Show on one screen what the agent does, also while it or its links are down.

    Ends with 0 where there was something to show, 1 where not. With --check: 0 useful, 1 something is wrong or a
    warning, or it starts, 2 not running, or nothing known.
    """
    from edge_agent.observability.status_board import now
    from edge_agent.observability.status_page import render_status
    from edge_agent.observability.status_report import read_status
    from edge_agent.store.read_only import StoreUnreadable

    settings = agent.load(config_path)
    path = Path(settings.store.path)
    if check:
        try:
            report = read_status(path)
        except StoreUnreadable as error:
            echo(str(error), prose=True)
            sys.exit(2)
        wrong = report.conditions
        echo("\n".join(condition.line(now()) for condition in wrong) or "useful", prose=True)
        sys.exit(0 if not wrong else 1 if report.has_process else 2)
    report = read_status(path)
    echo(json_text(report) if as_json else render_status(report, width()))


cli.add_command(completion_command("muster-agent", lambda: cli))


def main() -> None:
    """Run the command; a person gets one clear line, never a traceback, unless --debug asks for it."""
    # Operators add --debug to a command that failed at its end.
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        cli(["--debug", *arguments] if debug else arguments, standalone_mode=False, color=colours())
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        echo(f"muster-agent: {error.format_message()}", err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has ended; the interpreter must not fail at flushing the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BaseException as error:
        reason = _expected(error)
        if debug or reason is None:
            raise
        echo(f"muster-agent: {reason}", err=True)
        sys.exit(1)


def _expected(error: BaseException) -> str | None:
    """Return the one line for an error with a remedy, None for a defect."""
    from edge_agent.pair.peer import PairRefused
    from edge_agent.store.files import StoreUnusable
    from edge_agent.store.read_only import StoreUnreadable

    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _expected(error.exceptions[0])
    return str(error) if isinstance(error, SettingsError | StoreUnreadable | StoreUnusable | PairRefused) else None

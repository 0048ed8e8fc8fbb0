"""The command ``muster-agent``: run it, check its settings, look at it."""

import asyncio
import logging
import os
import sys
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import click
import msgspec

from edge_agent import config
from shared.settings import SettingsError

LAZY_COMMANDS = {
    **dict.fromkeys(("advisories", "explain", "outbox", "senders"), "edge_agent.inspection.commands"),
    "doctor": "edge_agent.doctor.command",
    "simulate": "edge_agent.simulator.commands",
}

config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(dir_okay=False, path_type=Path),
    default=config.DEFAULT_PATH,
    show_default=True,
    help="The agent's settings file.",
)


class _Commands(click.Group):
    """Load what operators rarely need only when it is asked for: the agent starts in a fraction of a second."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *LAZY_COMMANDS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in LAZY_COMMANDS:
            command: click.Command = getattr(import_module(LAZY_COMMANDS[cmd_name]), cmd_name)
            return command
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands)
@click.version_option(version("muster"), prog_name="muster-agent")
@click.option("--debug", is_flag=True, help="Show tracebacks and debug messages.")
@click.pass_context
def cli(context: click.Context, debug: bool) -> None:
    """Watch a site's registrations: forward a sample, say who is new, stale, recovered or retired."""
    context.obj = debug
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO,
        format="time=%(asctime)s level=%(levelname)s %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger("aiosqlite").setLevel(logging.INFO)


@cli.command()
@config_option
def run(config_path: Path) -> None:
    """Run the agent until it is told to stop."""
    import uvloop

    from edge_agent.daemon import run as run_agent

    settings = config.load(config_path)
    # A context manager, not uvloop.run(): the agent handles its own signals.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run_agent(settings))


@cli.command("check-config")
@config_option
def check_config(config_path: Path) -> None:
    """Read the settings file and say what is wrong with it, or what it amounts to."""
    settings = config.load(config_path)
    click.echo(f"{config_path}: good")
    click.echo(f"  site {settings.site}, region {settings.region}, agent {settings.agent_name}")
    for block in settings.stream:
        source = ", ".join(block.source.servers)
        click.echo(f"  {block.name}: {block.source.stream} at {source}, consumer {settings.consumer_of(block)}")
    click.echo(f"  upstream: {', '.join(settings.upstream.servers)}; store: {settings.store.path}")


@cli.command()
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(config_path: Path, as_json: bool) -> None:
    """Show on one screen what the agent does, also while it or its links are down."""
    from edge_agent.status_report import read_status, render_status

    report = read_status(Path(config.load(config_path).store.path))
    click.echo(msgspec.json.format(msgspec.json.encode(report)).decode() if as_json else render_status(report))


def main() -> None:
    """Run the command; a person gets one clear line, never a traceback, unless --debug asks for it."""
    debug = "--debug" in sys.argv
    try:
        cli(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        # Whoever read our output has seen enough; the interpreter must not fail at flushing the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except BaseException as error:
        reason = _expected(error)
        if debug or reason is None:
            raise
        click.echo(f"muster-agent: {reason}", err=True)
        sys.exit(1)


def _expected(error: BaseException) -> str | None:
    """Give the one line for an error that a person can do something about, None for a defect."""
    from edge_agent.store.files import StoreUnusable
    from edge_agent.store.reading import StoreUnreadable

    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _expected(error.exceptions[0])
    return str(error) if isinstance(error, SettingsError | StoreUnreadable | StoreUnusable) else None

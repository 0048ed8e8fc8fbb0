"""Options of both ways of simulating: read them, refuse wrong ones in one line, end at a signal."""

import asyncio
import contextlib
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
import uvloop

from edge_agent.simulator.bodies import RegistrationBodies, SizeRange
from edge_agent.simulator.fleet import FleetSettings, Lifetime
from edge_agent.simulator.intervals_file import IntervalsUnreadable
from edge_agent.simulator.publisher import UndeliveredHistory
from edge_agent.simulator.script import Script, play
from edge_agent.simulator.site_stream import FleetConnection, NoSuchStream
from edge_agent.simulator.truth_file import TruthExists
from shared.command_line.command_group import DURATION, Parsed
from shared.command_line.tables import cut, visible
from shared.command_line.terminal import echo
from shared.identifiers import InvalidIdentifier, validated_token
from shared.nats.connection import ConnectFailed
from shared.settings import SettingsError, load_settings, parse_settings
from shared.sizes import parse_size
from shared.system_errors import reason_of
from shared.truth import TruthHeader

_AT_THE_BEGINNING = "\r\x1b[K"
"""Orders a terminal to write the present line anew."""

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]


def _size_range(text: str) -> SizeRange:
    smallest, _, largest = text.partition("..")
    return SizeRange(parse_size(smallest), parse_size(largest or smallest))


SIZE_RANGE = Parsed("size[..size]", _size_range)
"""``8kB`` or ``5kB..25kB``."""


def names(_context: click.Context, parameter: click.Parameter, given: Any) -> Any:
    """Check that a name, or each of several, can be one token of a subject."""
    try:
        for name in given if isinstance(given, tuple) else () if given is None else (given,):
            validated_token(name, parameter.name or "")
    except InvalidIdentifier as error:
        raise click.BadParameter(str(error)) from error
    return given


FILE = click.Path(dir_okay=False, path_type=Path)

_CONNECTION_HELP = (
    "A TOML file with servers, [auth] and [tls], as in the agent's [upstream], and inbox_prefix; instead of --server."
)
_FLEET_OPTIONS: tuple[Decorator[Any], ...] = (
    click.option("--server", "servers", multiple=True, metavar="URL", help="A server; repeatable, for a cluster."),
    click.option("--connection", "connection_path", type=FILE, help=_CONNECTION_HELP),
    click.option(
        "--interval",
        type=DURATION,
        default="300s",
        show_default=True,
        help="The time between two registrations of a sender.",
    ),
    click.option("--jitter", type=DURATION, default="0", help="Move each registration by up to this much."),
    click.option(
        "--rack-size", metavar="COUNT", type=click.IntRange(1), default=20, show_default=True, help="Senders in a rack."
    ),
    click.option("--seed", metavar="NUMBER", default=0, show_default=True, help="The same seed gives the same fleet."),
    click.option("--compress", is_flag=True, help="Send the inventory as zcontent."),
    click.option("--script", "script_path", type=FILE, help="A TOML file of what goes wrong when, with whom."),
    click.option("--truth", "truth_path", type=FILE, help="A new file for the truth: who was up when."),
    click.option("--create-stream", is_flag=True, help="Make the stream if there is none."),
    click.option("--quiet", is_flag=True, help="Say nothing on the way."),
)


def fleet_options(command: Command) -> Command:
    for decorate in reversed(_FLEET_OPTIONS):
        command = decorate(command)
    return command


class FleetOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of every simulation. Methods raise errors that ``run_simulation`` prints in one line."""

    servers: tuple[str, ...]
    connection_path: Path | None = None
    senders: int
    interval: int
    jitter: int = 0
    rack_size: int = 20
    seed: int = 0
    size: SizeRange
    compress: bool = False
    script_path: Path | None = None
    truth_path: Path | None = None
    stream: str
    create_stream: bool = False
    quiet: bool = False

    def connection(self) -> FleetConnection:
        if bool(self.servers) == bool(self.connection_path):
            raise click.UsageError("say where to publish: --server URL, or --connection FILE")
        try:
            if self.connection_path:
                return load_settings(self.connection_path, FleetConnection)
            return FleetConnection(servers=self.servers)
        except ValueError as error:
            raise click.ClickException(str(error)) from error

    def fleet_settings(self, site: str) -> FleetSettings:
        try:
            return FleetSettings(
                site=site,
                sender_count=self.senders,
                registration_interval=self.interval,
                jitter=self.jitter,
                rack_size=self.rack_size,
                seed=self.seed,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def script(self) -> tuple[Script, str]:
        """Read the script, and give its text too."""
        path = self.script_path
        try:
            text = path.read_text(encoding="utf-8") if path else ""
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise click.ClickException(f"{path}: {reason}") from error
        return parse_settings(text, Script, path or Path()), text

    def lifetimes(self, settings: FleetSettings, script: Script) -> list[Lifetime]:
        """Play the script on one site's fleet; raise SettingsError."""
        return play(settings, script, self.script_path or Path())

    def bodies(self) -> RegistrationBodies:
        return RegistrationBodies(self.size, seed=self.seed, compress=self.compress)

    def truth_header(self, started_at: int, text: str) -> TruthHeader:
        return TruthHeader(
            seed=self.seed,
            registration_interval=self.interval,
            jitter=self.jitter,
            started_at_us=started_at,
            ended_at_us=None,
            script=text,
        )

    def say(self, line: object) -> None:
        """Print a line that stays."""
        if not self.quiet:
            sys.stderr.write(_AT_THE_BEGINNING if sys.stderr.isatty() else "")
            echo(line, err=True)

    def show(self, progress: object) -> None:
        """Print the progress: on a terminal in one line that the next one replaces."""
        if not self.quiet and sys.stderr.isatty():
            room = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"{_AT_THE_BEGINNING}{cut(visible(str(progress)), room)}")
            sys.stderr.flush()
        else:
            self.say(progress)

    @contextlib.asynccontextmanager
    async def progress_shown(self, progress: Callable[[], object], interval: float) -> AsyncIterator[None]:
        """Show how it goes, every ``interval`` seconds within the block."""

        async def show_on() -> None:
            while True:
                await asyncio.sleep(interval)
                self.show(progress())

        display = asyncio.create_task(show_on())
        try:
            yield
        finally:
            display.cancel()


def run_simulation(simulation: Coroutine[Any, Any, None]) -> None:
    """Run it to its end; raise click.ClickException where that is not its own."""
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(simulation)
    except OSError as error:
        raise click.ClickException(reason_of(error)) from error
    except (ConnectFailed, IntervalsUnreadable, NoSuchStream, SettingsError, TruthExists, UndeliveredHistory) as error:
        raise click.ClickException(str(error)) from error


@contextlib.contextmanager
def stop_at_signals() -> Iterator[asyncio.Event]:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    try:
        yield ended
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

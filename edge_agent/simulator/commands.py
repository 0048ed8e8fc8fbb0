"""The command ``muster-agent simulate``: a fleet in real time; with ``history``, months in virtual time."""

import re
import time
from typing import Any

import click

from edge_agent.simulator import options
from edge_agent.simulator.fleet import Fleet
from edge_agent.simulator.history_command import history
from edge_agent.simulator.live import LiveFleet
from edge_agent.simulator.options import run_simulation, stop_at_signals
from edge_agent.simulator.publisher import PipelinedPublisher
from edge_agent.simulator.script import EXAMPLE
from edge_agent.simulator.site_stream import FleetClient
from edge_agent.simulator.truth_file import TruthFile
from shared.command_line.command_group import DURATION, CommandGroup, examples
from shared.instants import SECOND, format_duration

ANSWER_DEADLINE = 5.0
WINDOW = 2_000
_PROGRESS_INTERVAL = 10.0
_NOT_IN_A_TOKEN = re.compile(r"[^A-Za-z0-9_-]")
# click fills the lines of a paragraph, unless \b stands alone before them.
_SCRIPT_HELP = EXAMPLE.replace("\n\n", "\n\n\b\n")


class LiveOptions(options.FleetOptions, frozen=True, kw_only=True):
    """A site's fleet in real time. ``subject`` may hold ``{site}`` and ``{sender}``; ``duration`` is microseconds."""

    site: str | None
    subject: str = "registration.{site}"
    duration: int | None = None

    def subject_of(self, sender_id: str) -> str:
        """Return the subject of a sender's registrations, with the characters of its name that a token allows."""
        return self.subjects.replace("{sender}", _NOT_IN_A_TOKEN.sub("_", sender_id))

    @property
    def subjects(self) -> str:
        return self.subject.replace("{site}", self.site or "")


@click.group(
    cls=CommandGroup,
    invoke_without_command=True,
    epilog=examples(
        "muster-agent simulate --server nats://127.0.0.1:4222 --site dub1",
        "muster-agent simulate --connection nodes.toml --site dub1",
        after=f"\b\nA script, all offsets from the fleet's start:\n\n\b\n{_SCRIPT_HELP}",
    ),
)
@click.option(
    "--site",
    metavar="NAME",
    callback=options.names,
    help="The site's name; senders are called <site>-r<rack>-n<nr>.example.net.",
)
@click.option(
    "--senders", metavar="COUNT", type=click.IntRange(1), default=100, show_default=True, help="How many senders."
)
@click.option(
    "--size", type=options.SIZE_RANGE, default="5kB..25kB", show_default=True, help="The size of a registration."
)
@click.option("--stream", metavar="NAME", default="REGISTRATION", show_default=True, help="The site's stream.")
@click.option(
    "--subject",
    metavar="SUBJECT",
    default="registration.{site}",
    show_default=True,
    help="Where registrations go; {site} and {sender} stand for names.",
)
@click.option("--duration", type=DURATION, help="How long the fleet lives.  [default: until Ctrl-C]")
@options.fleet_options
@click.pass_context
def simulate(context: click.Context, /, **given: Any) -> None:
    """Simulate a site's fleet: senders that register, go down by a script, and write the truth about it."""
    if context.invoked_subcommand is not None:
        return
    run_simulation(run_live(LiveOptions(**given)))


simulate.add_command(history)


async def run_live(chosen: LiveOptions) -> None:
    """Let a fleet register on its site until it has lasted long enough, or a signal ends it.

    Raise click.ClickException for what it was told wrong, ConnectFailed, NoSuchStream, TruthExists, or OSError where
    the truth cannot be written.
    """
    if not chosen.site:
        raise click.UsageError("the site has no name: --site NAME")
    fleet_settings = chosen.fleet_settings(chosen.site)
    script, text = chosen.script()
    if script.blind:
        raise click.ClickException(f"{chosen.script_path}: blind: only a history makes its agent blind; here, stop it")
    fleet = Fleet(fleet_settings, chosen.lifetimes(fleet_settings, script))
    site = FleetClient(chosen.connection())
    client = await site.connect("muster-simulate")
    # A server that is back for an interval is one that every sender has reached.
    client.longest_retry = min(client.longest_retry, chosen.interval / 2 / SECOND)
    try:
        subjects = chosen.subjects.replace("{sender}", "*")
        if remark := await site.ensure_stream(chosen.stream, subjects, create=chosen.create_stream):
            chosen.say(remark)
        started_at = time.time_ns() // 1_000
        with stop_at_signals() as ended, TruthFile(chosen.truth_path, chosen.truth_header(started_at, text)) as truth:
            async with PipelinedPublisher(client, window=WINDOW, deadline=ANSWER_DEADLINE) as publisher:
                live = LiveFleet(fleet, chosen.bodies(), publisher, truth, chosen.subject_of, started_at=started_at)
                async with chosen.progress_shown(lambda: _progress_of(live), _PROGRESS_INTERVAL):
                    await live.run(ended, chosen.duration)
                chosen.say(f"ended after {format_duration(live.now)}: {live.counts}")
    finally:
        await client.close()


def _progress_of(live: LiveFleet) -> str:
    return f"{format_duration(live.now)}: {live.up_count:,} senders up, {live.counts}"

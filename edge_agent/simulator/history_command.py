"""The command ``muster-agent simulate history``: months of a region, published as its agents would have done."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import msgspec

from edge_agent.config.stream import PolicySettings
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, OutboxRow
from edge_agent.simulator import options
from edge_agent.simulator.fleet import Fleet, Lifetime, stable_hash
from edge_agent.simulator.history import HistorySettings, SiteHistory
from edge_agent.simulator.intervals_file import first_instant, lifetimes, read_intervals
from edge_agent.simulator.options import run_simulation, stop_at_signals
from edge_agent.simulator.publisher import PipelinedPublisher, PublishFailed, UndeliveredHistory
from edge_agent.simulator.random_outages import OutageSettings, Reliability, blind_at_random, break_at_random, union
from edge_agent.simulator.script import Script
from edge_agent.simulator.site_stream import FleetClient
from edge_agent.simulator.truth_file import FleetChanges, TruthFile
from shared.blake2 import blake2b
from shared.command_line.command_group import DURATION, INSTANT, examples
from shared.identifiers import BlockId
from shared.instants import DAY, HOUR, SECOND, format_duration, format_seconds
from shared.settings import Duration
from shared.subjects import ROOT

ANSWER_DEADLINE = 10.0
WINDOW = 2_000
_PROGRESS_INTERVAL = 2.0
_SOURCE_STREAM = "REGISTRATION"


ATTEMPTS = 30
PAUSE_BETWEEN_ATTEMPTS = 1.0
INTERVALS_PER_DRAFT = 12
"""How many sightings of each sender one draft takes: enough that copying its state costs little."""


class HistoryProgress(msgspec.Struct):
    """Progress of a history. ``virtual`` and ``duration`` are microseconds of virtual time."""

    duration: int
    started: float = msgspec.field(default_factory=time.monotonic)
    virtual: int = 0
    sightings: int = 0
    published: int = 0

    @property
    def elapsed(self) -> int:
        """The real time since the start, in microseconds."""
        return int((time.monotonic() - self.started) * SECOND)

    def __str__(self) -> str:
        done = (
            f"day {self.virtual / DAY:.1f} of {self.duration / DAY:.1f}: {self.sightings:,} sightings,"
            f" {self.published:,} records published"
        )
        if not 0 < self.virtual < self.duration:
            return done
        left = self.elapsed * (self.duration - self.virtual) // self.virtual
        return f"{done}, {format_seconds(left)} left"


async def publish_histories(
    sites: Sequence[SiteHistory],
    publisher: PipelinedPublisher,
    truth: TruthFile,
    progress: HistoryProgress,
    ended: asyncio.Event,
) -> None:
    """Play all sites, in step, from the start of virtual time to ``progress.duration``; raise UndeliveredHistory.

    What was not acknowledged is published again under the same id. Once ``ended`` is set, it ends after a whole step,
    with a truth that goes as far.
    """
    changes = [FleetChanges(site.fleet) for site in sites]
    step = INTERVALS_PER_DRAFT * max(site.fleet.settings.registration_interval for site in sites)
    while progress.virtual < progress.duration and not ended.is_set():
        ended_at = min(progress.virtual + step, progress.duration)
        for site, of_site in zip(sites, changes, strict=True):
            rows = site.advance_to(ended_at)
            await _deliver(publisher, rows)
            progress.published += len(rows)
            of_site.write_until(ended_at, truth)
        truth.record_coverage(ended_at, mark=ended_at // DAY > progress.virtual // DAY)
        truth.flush()
        progress.virtual = ended_at
        progress.sightings = sum(site.sighting_count for site in sites)


async def _deliver(publisher: PipelinedPublisher, rows: Sequence[OutboxRow]) -> None:
    waiting = list(rows)
    failures: list[tuple[OutboxRow, PublishFailed]] = []
    reason = ""

    def on_end(row: OutboxRow, failure: PublishFailed | None) -> None:
        if failure is not None:
            failures.append((row, failure))

    for _ in range(ATTEMPTS):
        for row in waiting:
            await publisher.room()
            await publisher.publish(row.subject, row.payload, partial(on_end, row), row.headers)
        await publisher.drain()
        if not failures:
            return
        reason = failures[-1][1].reason
        waiting, failures = [row for row, _ in failures], []
        await asyncio.sleep(PAUSE_BETWEEN_ATTEMPTS)
    raise UndeliveredHistory(f"{len(waiting)} records were not taken after {ATTEMPTS} attempts: {reason}")


class HistoryOptions(options.FleetOptions, frozen=True, kw_only=True):
    """The sites of a region in virtual time. Durations are microseconds; ``ends`` is an instant, None the last hour."""

    region: str
    sites: tuple[str, ...]
    block: str = "nodes"
    duration: int
    ends: int | None = None
    intervals_path: Path | None = None
    intervals_from: int | None = None
    sample_interval: int
    stale_after: int
    retire_after: int
    blind_after: int | None = None
    watermark_interval: int
    sender_up: int = 0
    sender_down: int = 0
    rack_up: int = 0
    rack_down: int = 0
    site_up: int = 0
    site_down: int = 0
    agent_up: int = 0
    agent_down: int = 0
    spread: float = 1.0

    def policy(self) -> Policy:
        """Return the agents' thresholds, checked as an agent checks them."""
        try:
            return PolicySettings(
                sample_interval=Duration(self.sample_interval),
                stale_after=Duration(self.stale_after),
                retire_after=Duration(self.retire_after),
                blind_after=None if self.blind_after is None else Duration(self.blind_after),
                size_trigger=0,
            ).policy()
        except ValueError as error:
            raise click.UsageError(str(error)) from error

    def outages(self) -> OutageSettings:
        return OutageSettings(
            sender=Reliability(self.sender_up, self.sender_down),
            rack=Reliability(self.rack_up, self.rack_down),
            site=Reliability(self.site_up, self.site_down),
            agent=Reliability(self.agent_up, self.agent_down),
            spread=self.spread,
        )

    def emitter(self, site: str) -> Emitter:
        """Return the names in a site's records; ids are a function of the seed, so a repetition is a duplicate."""
        return Emitter(
            block_id=BlockId(self.region, site, self.block),
            agent=f"{site}-a",
            boot_id=f"{stable_hash('boot', self.seed, site):016x}",
            version=version("muster"),
            inspect_field="sender",
            key=blake2b(f"history {self.seed}".encode(), digest_size=32).digest(),
        )

    def site_histories(self, script: Script, started_at: int) -> list[SiteHistory]:
        """Return every site, its outages from the script and at random, or from the file of intervals.

        Raise click.ClickException, IntervalsUnreadable, SettingsError.
        """
        if self.intervals_path is None:
            if not self.sites:
                raise click.UsageError("name the sites: --site NAME, or --intervals FILE")
            return [self._site_history(site, script, started_at, None) for site in self.sites]
        intervals = read_intervals(self.intervals_path)
        if missing := [site for site in self.sites if site not in intervals]:
            raise click.ClickException(f"{self.intervals_path}: nobody is of the site {missing[0]}")
        if script.breaks_senders:
            raise click.UsageError("with --intervals a script makes agents blind, and nothing else")
        begins = first_instant(intervals) if self.intervals_from is None else self.intervals_from
        chosen = {site: lifetimes(intervals[site], begins, self.duration) for site in self.sites or intervals}
        if not any(chosen.values()):
            raise click.ClickException(f"{self.intervals_path}: nobody is up within {format_duration(self.duration)}")
        return [self._site_history(site, script, started_at, of_site) for site, of_site in chosen.items() if of_site]

    def _site_history(self, site: str, script: Script, started_at: int, given: list[Lifetime] | None) -> SiteHistory:
        fleet_settings, policy, outages = self.fleet_settings(site), self.policy(), self.outages()
        of_site = self.lifetimes(fleet_settings, script) if given is None else given
        if given is None:
            break_at_random(of_site, fleet_settings, outages, self.duration)
        blind = [*script.blind_spans, *blind_at_random(fleet_settings, outages, policy.blind_after, self.duration)]
        settings = HistorySettings(
            emitter=self.emitter(site),
            policy=policy,
            stream=_SOURCE_STREAM,
            started_at=started_at,
            watermark_interval=self.watermark_interval,
        )
        return SiteHistory(Fleet(fleet_settings, of_site), settings, self.bodies(), union(blind))


def reliability(what: str, up: str, down: str) -> options.Decorator[Any]:
    """Add the options for the two medians of one thing: up and down."""
    given: dict[str, Any] = {"type": DURATION, "show_default": True}

    def decorate(command: options.Command) -> options.Command:
        down_option = click.option(f"--{what}-down", default=down, help="Median time until it is back.", **given)
        up_help = f"Median time between two outages of one {what}; 0: none."
        return click.option(f"--{what}-up", default=up, help=up_help, **given)(down_option(command))

    return decorate


def threshold(name: str, default: str | None, meaning: str) -> options.Decorator[Any]:
    return click.option(name, type=DURATION, default=default, show_default=True, help=meaning)


@click.command(
    epilog=examples(
        "muster-agent simulate history --server nats://127.0.0.1:4222 \\\n"
        "      --region eu-west --site dub1 --site lon1 --duration 30d",
    )
)
@click.option("--region", metavar="NAME", callback=options.names, required=True, help="The region's name.")
@click.option("--site", "sites", metavar="NAME", callback=options.names, multiple=True, help="A site; repeatable.")
@click.option(
    "--block",
    metavar="NAME",
    callback=options.names,
    default="nodes",
    show_default=True,
    help="The stream block's name.",
)
@click.option(
    "--senders", metavar="COUNT", type=click.IntRange(1), default=1_000, show_default=True, help="Of each site."
)
@click.option(
    "--size", type=options.SIZE_RANGE, default="3kB..5kB", show_default=True, help="The size of a registration."
)
@click.option("--stream", metavar="NAME", default="FLEET", show_default=True, help="The region's stream.")
@threshold("--duration", "90d", "How long a time to play.")
@click.option("--ends", type=INSTANT, help="When it ends.  [default: at the last full hour]")
@click.option("--intervals", "intervals_path", type=options.FILE, help="CSV of who was up when: played, not drawn.")
@click.option("--intervals-from", type=INSTANT, help="Where in it to begin.  [default: at its first instant]")
@threshold("--sample-interval", "7d", "The time between two forwarded registrations of a sender.")
@threshold("--stale-after", "12m", "The agents' stale_after.")
@threshold("--retire-after", "24h", "The agents' retire_after.")
@threshold("--blind-after", None, "The agents' blind_after.  [default: a quarter of --stale-after]")
@threshold("--watermark-interval", "5m", "The time between two watermarks.")
@reliability("sender", "14d", "25m")
@reliability("rack", "180d", "45m")
@reliability("site", "90d", "15m")
@reliability("agent", "45d", "30m")
@click.option(
    "--spread",
    metavar="SIGMA",
    type=click.FloatRange(0, 5),
    default=1.2,
    show_default=True,
    help="How widely these times are spread: sigma of their lognormal distribution.",
)
@options.fleet_options
def history(**given: Any) -> None:
    """Play months of a region in virtual time, and publish what its agents would have published.

    Senders, racks, sites and agents break at random, the same way for the same seed; a script adds to that on every
    site. With --intervals, senders, and sites unless they are named, are those of the file, and only agents break at
    random. The region's FLEET stream takes it as it takes an agent's records.
    """
    run_simulation(run_history(HistoryOptions(**given)))


async def run_history(chosen: HistoryOptions) -> None:
    """Play and publish, until the end or a signal.

    Raise click.ClickException for what it was told wrong, ConnectFailed, NoSuchStream, TruthExists,
    UndeliveredHistory, or OSError where the truth cannot be written.
    """
    script, text = chosen.script()
    started_at = (time.time_ns() // 1_000 // HOUR * HOUR if chosen.ends is None else chosen.ends) - chosen.duration
    if started_at + chosen.duration > time.time_ns() // 1_000:
        raise click.UsageError("a history lies in the past: --ends is yet to come")
    sites = chosen.site_histories(script, started_at)
    names = [site.fleet.settings.site for site in sites]
    region = FleetClient(chosen.connection())
    client = await region.connect("muster-history")
    try:
        every_subject = [f"{ROOT}.{chosen.region}.{site}.{chosen.block}.>" for site in names]
        for subject in [f"{ROOT}.{chosen.region}.>"] if chosen.create_stream else every_subject:
            await region.ensure_stream(chosen.stream, subject, create=chosen.create_stream)
        progress = HistoryProgress(chosen.duration)
        with stop_at_signals() as ended, TruthFile(chosen.truth_path, chosen.truth_header(started_at, text)) as truth:
            async with (
                PipelinedPublisher(client, window=WINDOW, deadline=ANSWER_DEADLINE) as publisher,
                chosen.progress_shown(lambda: progress, _PROGRESS_INTERVAL),
            ):
                await publish_histories(sites, publisher, truth, progress, ended)
        chosen.say(f"ended after {format_duration(progress.elapsed)}: {progress}")
    finally:
        await client.close()

"""The command ``muster-aggregator demo``: run it from its first server to its last word, all parts put together."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import click

from aggregator.demo import scenario, tables
from aggregator.demo.crew import crew, run_shown
from aggregator.demo.directory import DemoDirectory, DirectoryTaken, shown
from aggregator.demo.live import Aftermath, LivePart
from aggregator.demo.outcome import Evidence, judge_all, promises
from aggregator.demo.processes import CommandFailed
from aggregator.demo.records import Audit, audit
from aggregator.demo.scenario import REGIONS, SITES, Scenario
from aggregator.demo.stage import Stage, servers
from aggregator.demo.story import Story, Tone, muster
from aggregator.demo.summary import tell_outcome, tell_where_it_is
from aggregator.demo.watch import HubWatch, NotInTime, watching
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.command_line.command_group import examples
from shared.embedded.server import HeldPort, ServerFailed
from shared.instants import SECOND
from shared.nats.connection import ApiError, ConnectFailed, RequestFailed
from shared.system_errors import reason_of
from shared.truth import TruthError

_EXPECTED = (
    ApiError,
    CommandFailed,
    ConnectFailed,
    DirectoryTaken,
    NotInTime,
    OSError,
    RequestFailed,
    ServerFailed,
    TablesUnreadable,
    TruthError,
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


QUICK = Scenario(senders_per_site=20, rack_size=5, pace=SECOND // 2, rolls_up_midway=False)


@click.command(epilog=examples("muster-aggregator demo --quick", "muster-aggregator demo --stay --dir /tmp/demo"))
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("demo-run"),
    show_default=True,
    help="Where settings, stores, tables, page and logs go; a previous demo there is removed.",
)
@click.option("--quick", is_flag=True, help="Fewer senders, at twice the pace; tables at the end only.")
@click.option("--stay", is_flag=True, help="Go on at the end, with the live page, until Ctrl-C.")
def demo(directory: Path, quick: bool, stay: bool) -> None:
    """Run a fleet, its agents, two regions and a hub on this machine, and compare the tables with the truth.

    Things go wrong meanwhile: a rack, a link, an agent, a server. It fails (exit code 1) where a figure is further from
    the truth than promised, somebody is accused wrongly, or a record is lost; follow it on the live page, whose address
    it tells. Ctrl-C stops everything it started.
    """
    raise SystemExit(asyncio.run(_perform(QUICK if quick else Scenario(), directory, stay=stay)))


async def _perform(played: Scenario, root: Path, *, stay: bool = False) -> int:
    """Play it; give the exit code: 0 where every promise was kept, 128 + the signal where one ended it early.

    ``stay``: where every promise was kept, let agents and senders go on until a signal comes.
    """
    story = Story()
    performance = asyncio.create_task(_play_whole(played, DemoDirectory(root), story, stay=stay))
    received: list[int] = []

    def end(number: int) -> None:
        if received:
            # Asked twice: the kernel ends the children with this process.
            os._exit(128 + number)
        received.append(number)
        performance.cancel()

    for number in _SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    try:
        return 0 if await performance else 1
    except asyncio.CancelledError:
        story.text()
        story.text(f"Interrupted: everything that was started has been stopped. {shown(root)} stays as it is.")
        return 128 + received[0]
    except BrokenPipeError:
        # Nobody reads any more; nor shall Python try once more when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except _EXPECTED as error:
        story.text()
        story.raw(f"FAILED: {reason_of(error) if isinstance(error, OSError) else error}", Tone.BAD)
        return 1


async def _play_whole(played: Scenario, directory: DemoDirectory, story: Story, *, stay: bool) -> bool:
    had_previous = directory.prepare()
    _introduce(story, played, directory, had_previous)
    story.chapter("Servers: a hub, two regions, three sites")
    async with servers(directory) as stage:
        held = HeldPort("127.0.0.1")
        address = f"127.0.0.1:{held.number}"
        directory.write_settings(played, stage.hub.url, stage.uplink_urls, stage.site_urls, address)
        _show_servers(story, stage)
        await run_shown(story, "apply", muster("muster-aggregator", "apply", "--config", directory.topology_file))
        async with watching(stage, story) as watch, crew(directory, story) as hired:
            live = LivePart(played, directory, stage, hired, watch, story)
            left = await _play(played, live, watch, story, f"http://{address}/")
            story.chapter("Tables: Spark reads the hub's archive and works out who was up when")
            await _make_tables(directory, story)
            story.chapter("The truth: what the simulators wrote down, held against the tables")
            found = await audit(stage, left.statuses)
            kept = _compare(played, directory, story, left, found)
            tell_where_it_is(story, directory, kept=kept)
            if kept and stay:
                await live.go_on()
                story.text()
                story.text(f"Agents and senders go on, and http://{address}/ shows them, until Ctrl-C.")
                await asyncio.Event().wait()
    return kept


async def _play(played: Scenario, live: LivePart, watch: HubWatch, story: Story, page: str) -> Aftermath:
    story.chapter("Agents and senders: at each site an agent, and a simulated fleet")
    await live.start()
    story.text()
    story.text(f"Open {page} to watch what follows.", Tone.STRONG)
    telling = asyncio.create_task(watch.tell())
    try:
        story.chapter(f"Life: {played.length_text(scenario.ENDED_AT)} in which things go wrong")
        await live.play()
        story.chapter("The end: agents and senders stop when the hub has everything")
        return await live.finish()
    finally:
        telling.cancel()


async def _make_tables(directory: DemoDirectory, story: Story) -> None:
    config = ("--config", directory.aggregator_file)
    await run_shown(story, "rollup", muster("muster-aggregator", "rollup", *config))
    page = ("--output", directory.page)
    await run_shown(story, "report html", muster("muster-aggregator", "report", "html", *config, *page))
    await run_shown(story, "verify", muster("muster-aggregator", "verify", *config))


def _compare(played: Scenario, directory: DemoDirectory, story: Story, left: Aftermath, found: Audit) -> bool:
    truths = {site: directory.truth(site) for site in SITES}
    evidence = Evidence(truths, tables.read(directory.tables), found, left.stopped)
    verdicts = judge_all(played, truths, evidence.published)
    kept = promises(verdicts, evidence)
    tell_outcome(story, played, verdicts, evidence, kept)
    return not any(promise.broken_by for promise in kept)


def _introduce(story: Story, played: Scenario, directory: DemoDirectory, had_previous: bool) -> None:
    said = played.length_text
    story.text(
        f"Muster calls the roll of a fleet. Here {played.sender_count} simulated nodes, the senders, register every"
        f" {said(scenario.REGISTRATION_INTERVAL)} at {len(SITES)} sites. A sender that is silent for"
        f" {said(scenario.STALE_AFTER)} is called stale, and after {said(scenario.RETIRE_AFTER)} retired; one that"
        " nobody could hear is neither: it is unknown. Things go wrong for a while. Then Muster's figures are held"
        " against what the senders really did."
    )
    story.text()
    story.text(
        "Everything runs on this machine, takes about three minutes, and is stopped by Ctrl-C. Kill any of its servers"
        " or agents while it lives (kill -9): more time may become unknown, nothing else. What it writes is in"
        f" {shown(directory.root)}/" + ("; the previous run there was removed." if had_previous else ".")
    )


def _show_servers(story: Story, stage: Stage) -> None:
    story.event(scenario.HUB, f"{stage.hub.url}  streams ARCHIVE and REPORT")
    for region in REGIONS:
        story.event(region, f"{stage.uplink_urls[region]}  stream FLEET, a leaf node of the hub")
    for site, url in stage.site_urls.items():
        story.event(site, f"{url}  stream REGISTRATION, in {SITES[site]}")

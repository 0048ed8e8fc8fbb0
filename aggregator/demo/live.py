"""Play the live part: start agents and fleets, let go wrong what goes wrong, and stop when all of it has arrived.

The simulators take senders down by their scripts; the demo itself cuts the link, kills the agent and stops the server.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from aggregator.demo import scenario
from aggregator.demo.crew import Crew, run_quietly
from aggregator.demo.directory import DemoDirectory
from aggregator.demo.scenario import SITES, Scenario
from aggregator.demo.spans import Span
from aggregator.demo.stage import Stage
from aggregator.demo.story import Story, Tone, muster
from aggregator.demo.watch import HubWatch, NotInTime, until_archived
from shared.instants import SECOND
from shared.truth import TruthError

START_DEADLINE = 90.0
ARRIVAL_DEADLINE = 300.0
ROLLUP_DEADLINE = 600.0
_POLL = 0.2
_STATUS_POLL = 0.5
_FIRST_ROLLUP = "first-rollup"


class Lane(msgspec.Struct, frozen=True):
    """What waits in one lane of an agent's outbox."""

    rows: int


class BlockState(msgspec.Struct, frozen=True):
    """What an agent has counted, by what happened and its cause."""

    counters: dict[str, dict[str, int]]


class Block(msgspec.Struct, frozen=True):
    """One stream block of an agent."""

    state: BlockState


class AgentStatus(msgspec.Struct, frozen=True):
    """What the demo needs of ``muster-agent status --json``."""

    blocks: tuple[Block, ...]
    outbox: dict[str, Lane]
    outbox_counters: dict[str, dict[str, int]]

    @property
    def waiting_registrations(self) -> int:
        return self.outbox["registrations"].rows

    @property
    def waiting(self) -> int:
        return sum(lane.rows for lane in self.outbox.values())

    def count(self, what: str) -> int:
        """Add up how often something happened, whatever the cause."""
        counters = [self.outbox_counters, *(block.state.counters for block in self.blocks)]
        return sum(sum(each.get(what, {}).values()) for each in counters)


class Aftermath(NamedTuple):
    """What the live part leaves: each agent's last status, and when the stopped server was certainly away."""

    statuses: dict[str, AgentStatus]
    stopped: Span


class _Act(NamedTuple):
    at: float
    place: str
    text: str
    do: Callable[[], Awaitable[None]] | None = None


class LivePart:
    """The live part of one run."""

    def __init__(
        self, played: Scenario, directory: DemoDirectory, stage: Stage, crew: Crew, watch: HubWatch, story: Story
    ) -> None:
        self._played = played
        self._directory = directory
        self._stage = stage
        self._crew = crew
        self._watch = watch
        self._story = story
        self._stopped_at = 0
        self._restarted_at = 0

    async def start(self) -> None:
        """Start the live service, and an agent and a fleet at each site; wait until senders register.

        Whoever ends a server, the service or an agent meanwhile sees it started again. Raise NotInTime, CommandFailed.
        """
        again = "somebody ended the server: it is started again"
        self._crew.accompany(self._stage.keep_running(lambda name: self._story.event(name, again, Tone.STRONG)))
        serve = muster("muster-aggregator", "serve", "--config", self._directory.aggregator_file)
        await self._crew.start_service("live", scenario.HUB, serve)
        for site in SITES:
            await self._start_agent(site)
        for site in SITES:
            story = ("--script", self._directory.script_file(site), "--truth", self._directory.truth_file(site))
            await self._crew.start(_fleet(site), self._simulate(site, *story))
        await _until(self._fleets_began, "the simulated fleets begin to register", START_DEADLINE)

    async def play(self) -> None:
        began_at = max(self._directory.truth(site).header.started_at_us for site in SITES)
        for act in sorted(self._acts(), key=lambda act: act.at):
            due_at = began_at + self._played.length(act.at)
            await asyncio.sleep(max(0, due_at - _now()) / SECOND)
            if act.text:
                self._story.event(act.place, act.text, Tone.STRONG if act.do else Tone.PLAIN)
            if act.do:
                await act.do()
        ended_at = began_at + self._played.length(scenario.ENDED_AT)
        await asyncio.sleep(max(0, ended_at - _now()) / SECOND)

    async def finish(self) -> Aftermath:
        """Wait until the hub has everything up to now, then end agents and fleets; raise NotInTime, CommandFailed.

        The agents go first: nobody watches any more when the senders fall silent for good.
        """
        ended_at = _now()
        await _until(
            lambda: min(self._watch.observed_through.values()) >= ended_at,
            "every site's watermark is past the end",
            ARRIVAL_DEADLINE,
        )
        await asyncio.gather(*map(self._until_outbox_is_empty, SITES))
        await self._crew.end(map(_agent, SITES))
        statuses = {site: await self._status(site) for site in SITES}
        # The tables' known time ends at the archive's last message: the truth must reach further.
        await until_archived(self._stage.hub.url, self._directory.topology_file, self._story, ARRIVAL_DEADLINE)
        await self._crew.end(map(_fleet, SITES))
        self._watch.tell_arrived()
        if self._crew.has(_FIRST_ROLLUP):
            self._story.event(scenario.HUB, "the first rollup is still at work")
            try:
                async with asyncio.timeout(ROLLUP_DEADLINE):
                    await self._crew.wait_for(_FIRST_ROLLUP)
            except TimeoutError:
                raise NotInTime(f"the first rollup is still at work {ROLLUP_DEADLINE:g} s after the end") from None
        return Aftermath(statuses, (self._stopped_at, self._restarted_at))

    async def go_on(self) -> None:
        """Start agents and fleets once more, with nothing that goes wrong; raise CommandFailed."""
        for site in SITES:
            await self._start_agent(site)
            await self._crew.start(_fleet(site), self._simulate(site))

    def _acts(self) -> list[_Act]:
        said = self._played.length_text
        killed_at, started_at = scenario.AGENT_KILLED
        cut_at, restored_at = scenario.LINK_CUT
        stopped_at, restarted_at = scenario.SERVER_STOPPED
        cut, behind = scenario.CUT_REGION, scenario.BEHIND_THE_CUT
        dead, stopped = scenario.KILLED_AGENT, scenario.STOPPED_SITE
        cut_link, restore_link = partial(self._stage.cut, cut), partial(self._stage.restore, cut)
        kill, revive = partial(self._crew.kill, _agent(dead)), partial(self._start_agent, dead)
        acts = [
            _Act(cut_at, cut, f"the region's link is cut: neither hub nor {behind} reach it", cut_link),
            _Act(scenario.STATUS_AT, behind, "", self._show_status),
            _Act(restored_at, cut, f"the link works again, after {said(restored_at - cut_at)}", restore_link),
            _Act(killed_at, dead, "the agent is killed with kill -9", kill),
            _Act(started_at, dead, f"the agent is started again, {said(started_at - killed_at)} later", revive),
            _Act(stopped_at, stopped, "the site's server stops: nobody can register, nobody can see", self._stop),
            _Act(
                restarted_at, stopped, f"the server is back, after {said(restarted_at - stopped_at)}", self._start_again
            ),
        ]
        if self._played.rolls_up_midway:
            text = "a first rollup, while a region is missing:"
            acts.append(_Act(scenario.FIRST_ROLLUP_AT, scenario.HUB, text, self._roll_up))
        for incident in self._played.incidents():
            if incident.starts:
                acts.append(_Act(incident.started_at, incident.site, incident.starts))
            if incident.ends and incident.ended_at is not None:
                acts.append(_Act(incident.ended_at, incident.site, incident.ends))
        return acts

    async def _roll_up(self) -> None:
        """Make tables of what is there so far, without getting in the way of the rest."""

        def tell(lines: list[str]) -> None:
            count = next((line.split()[1] for line in lines if line.startswith("read ")), "no")
            self._story.event(scenario.HUB, f"the first rollup is done: {count} records are in the tables")

        command = muster("muster-aggregator", "rollup", "--config", self._directory.aggregator_file)
        await self._crew.start_aside(_FIRST_ROLLUP, ["nice", "-n", "5", *command], tell)

    async def _show_status(self) -> None:
        command = self._status_command(scenario.BEHIND_THE_CUT)
        told = await run_quietly("muster-agent status", command)
        self._story.event(scenario.BEHIND_THE_CUT, "what its agent tells an operator meanwhile:")
        self._story.command(command)
        self._story.output(told)

    async def _stop(self) -> None:
        await self._stage.stop_site(scenario.STOPPED_SITE)
        self._stopped_at = _now()

    async def _start_again(self) -> None:
        self._restarted_at = _now()
        await self._stage.start_site(scenario.STOPPED_SITE)

    async def _start_agent(self, site: str) -> None:
        await self._crew.start_service(
            _agent(site), site, muster("muster-agent", "run", "--config", self._config(site))
        )

    def _simulate(self, site: str, *story: str | Path) -> list[str]:
        played = self._played
        return muster(
            "muster-agent",
            *("simulate", "--server", self._stage.site_urls[site], "--site", site),
            *("--senders", str(played.senders_per_site), "--rack-size", str(played.rack_size)),
            *("--interval", played.setting(scenario.REGISTRATION_INTERVAL)),
            *("--jitter", played.setting(scenario.JITTER), "--size", "4kB..12kB"),
            *story,
        )

    def _config(self, site: str) -> str:
        return str(self._directory.agent_file(site).absolute())

    def _status_command(self, site: str, *more: str) -> list[str]:
        return muster("muster-agent", "status", "--config", self._config(site), *more)

    async def _status(self, site: str) -> AgentStatus:
        text = "\n".join(await run_quietly("muster-agent status", self._status_command(site, "--json")))
        return msgspec.json.decode(text, type=AgentStatus)

    async def _until_outbox_is_empty(self, site: str) -> None:
        ends_at = time.monotonic() + ARRIVAL_DEADLINE
        while (await self._status(site)).waiting:
            if time.monotonic() > ends_at:
                raise NotInTime(f"the agent of {site} still has records for its region after {ARRIVAL_DEADLINE:g} s")
            await asyncio.sleep(_STATUS_POLL)

    def _fleets_began(self) -> bool:
        with suppress(FileNotFoundError, TruthError):
            return all(self._directory.truth(site).header.started_at_us for site in SITES)
        return False


def _agent(site: str) -> str:
    return f"agent-{site}"


def _fleet(site: str) -> str:
    return f"fleet-{site}"


def _now() -> int:
    """Read this machine's clock, on which servers and fleets run too, in microseconds."""
    return time.time_ns() // 1_000


async def _until(condition: Callable[[], bool | Awaitable[bool]], what: str, deadline: float) -> None:
    ends_at = time.monotonic() + deadline
    while True:
        answer = condition()
        if await answer if isinstance(answer, Awaitable) else answer:
            return
        if time.monotonic() > ends_at:
            raise NotInTime(f"after {deadline:g} s not yet: {what}")
        await asyncio.sleep(_POLL)

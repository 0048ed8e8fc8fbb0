"""Run a schedule of faults on a stage of its own, let everything heal and drain, and judge what came of it."""

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from edge_agent.config import agent as config
from edge_agent.observability.status_report import read_status
from edge_agent.store.read_only import StoreUnreadable, store_reader
from tests.support.faults.agreement import agreement, live_service
from tests.support.faults.evidence import gather, last_sequence
from tests.support.faults.fleet import FaultFleet, connected_fleet
from tests.support.faults.injectors import kinds_left_out, play
from tests.support.faults.policy import speak_for_ever
from tests.support.faults.schedule import FaultKind, counts, draw_schedule
from tests.support.faults.stage import COPIED, STREAM, FaultStage, fault_stage
from tests.support.faults.supervised_agent import SupervisedAgent
from tests.support.faults.verdict import Verdict, judge
from tests.support.waiting import until

DRAIN_DEADLINE = 120.0
CERTAIN_TAKEOVERS = 3
# Megabytes: more than the senders need, and not so much that it takes long to use up.
STORAGE, STORAGE_PER_FAULT = 64, 0.35
LOOK_EVERY = 0.1
WORDS_OF_A_BROKEN_AGENT = ("Traceback", "was corrupt", "beginning anew")
FINDINGS_SHOWN = 20


class FaultRun(msgspec.Struct, kw_only=True):
    """What was done and what came of it."""

    seed: int
    faults: dict[FaultKind, int]
    left_out: dict[FaultKind, str]
    took: float
    agent_starts: int
    verdict: Verdict
    is_pair: bool = False
    cards: dict[FaultKind, int] = {}
    agreements: dict[str, str] = {}

    def report(self) -> Iterator[str]:
        """Say it in lines, the verdict last."""
        yield f"{'fault':28} {'times':>6}"
        for kind, count in self.faults.items():
            yield f"{kind:28} {f'left out: {self.left_out[kind]}' if kind in self.left_out else f'{count:6}'}"
        yield ""
        for name, count in self.verdict.counts.items():
            yield f"{name:28} {count:6}"
        yield f"{'agent started':28} {self.agent_starts:6}"
        yield ""
        for name in ("lost", "duplicated", "wrong"):
            findings = getattr(self.verdict, name)
            yield from (f"{name}: {finding}" for finding in findings[:FINDINGS_SHOWN])
            if len(findings) > FINDINGS_SHOWN:
                yield f"{name}: and {len(findings) - FINDINGS_SHOWN} more"
        count = sum(self.faults.values())
        for when, told in self.agreements.items():
            yield from (f"{when}: {line}" for line in told.splitlines())
        yield f"seed {self.seed}, {count} faults in {self.took:.0f} s"
        if not self.verdict.is_clean:
            yield again(self.seed, count, self.cards, pair=self.is_pair)
        yield self.verdict.line


def again(seed: int, count: int, cards: Mapping[FaultKind, int], *, pair: bool) -> str:
    """Say how the same schedule is played once more."""
    draw = "".join(f' --draw "{kind}={number}"' for kind, number in cards.items())
    command = "again: python -m tests.acceptance.fault_schedule"
    return f"{command} --seed {seed} --faults {count}{' --pair' if pair else ''}{draw}"


async def run_faults(
    directory: Path,
    seed: int,
    count: int,
    say: Callable[[str], None],
    *,
    pair: bool = False,
    cards: Mapping[FaultKind, int] | None = None,
    verify: bool = False,
) -> FaultRun:
    """Run ``count`` faults of ``seed``; logs and stores are left in ``directory``.

    ``pair``: two agents are there. ``cards``: the kinds that are wanted, and how many of each are in a deck.
    ``verify``: a live service reads all the while, and is compared with tables while senders live and when none does.
    """
    began_at = time.monotonic()
    agreements: dict[str, str] = {}
    differences: list[str] = []
    storage = f"{STORAGE + count * STORAGE_PER_FAULT:.0f}MB"
    async with (
        AsyncExitStack() as stack,
        fault_stage(directory, atomic=seed % 2 == 0, pair=pair, site_storage=storage) as stage,
    ):
        hub = stack.enter_context(live_service(stage)) if verify else None

        async def compare(when: str) -> None:
            if hub is not None:
                say(f"{when}: comparing the live service with the tables")
                agreements[when], is_whole = await agreement(hub)
                differences.extend([] if is_whole else [f"{when}: the live service and the tables differ"])

        left_out = kinds_left_out(stage)
        faults = draw_schedule(seed, count, left_out, cards)
        say(f"seed {seed}: {count} faults in about {faults[-1].at:.0f} s; files in {directory}")
        async with connected_fleet(stage.site.url, seed, stage.habits) as fleet:
            stage.start_agent()
            supervising = asyncio.create_task(stage.supervise())
            living = asyncio.create_task(fleet.live())
            speaking = asyncio.create_task(speak_for_ever(stage, seed))
            try:
                await play(stage, faults)
                for _ in range(CERTAIN_TAKEOVERS if pair else 0):
                    await take_over(stage)
                await compare("healed")
                living.cancel()
                speaking.cancel()
                say("healed; draining")
                await drain(stage, fleet)
                await compare("drained")
            except Exception as failure:
                # Whoever only sees what failed, of a run elsewhere say, has neither the directory nor what was printed.
                told = [line for agent in stage.agents for line in agent.last_said()]
                told += [f"{server.settings.name}: {server.log_tail()}" for server in stage.servers if server.has_died]
                failure.add_note("\n".join((again(seed, count, cards or {}, pair=pair), *told)))
                raise
            finally:
                for task in (living, speaking, supervising):
                    task.cancel()
                ends = await asyncio.gather(living, speaking, supervising, return_exceptions=True)
                keep_store(stage)
                # Without a supervisor, say, what is waited for may never come: this tells why.
                for end in ends:
                    if isinstance(end, Exception):
                        raise end
            await stage.stop_agent()
        verdict = judge(await gather(stage, fleet.acknowledged))
        verdict.wrong += [*wrong_conduct(stage), *differences]
        return FaultRun(
            seed=seed,
            faults=dict(counts(faults)),
            left_out=left_out,
            took=time.monotonic() - began_at,
            agent_starts=sum(agent.starts for agent in stage.agents),
            verdict=verdict,
            is_pair=pair,
            cards=dict(cards or {}),
            agreements=agreements,
        )


async def take_over(stage: FaultStage) -> None:
    """Kill whichever agent leads, and let it stay away until the other does; the schedule may have had none of that."""
    # What a member said last may be what it was before it was started again: both must fit together.
    leader: SupervisedAgent = await until(lambda: leader_of(stage), "one leads, the other stands by", DRAIN_DEADLINE)
    (other,) = (agent for agent in stage.agents if agent is not leader)
    leader.kill()
    await until(lambda: other.leads, "the other leads", DRAIN_DEADLINE)
    leader.start()


def leader_of(stage: FaultStage) -> SupervisedAgent | None:
    """Give the agent that leads while the other stands by; None where there is none."""
    a, b = stage.agents
    pairs = ((a, b), (b, a))
    return next((leader for leader, other in pairs if leader.leads and other.stands_by), None)


async def drain(stage: FaultStage, fleet: FaultFleet) -> None:
    """Wait until the senders are all forgotten: from then on there is nothing more to decide."""
    await until(fleet.settle, "what was published is stored", DRAIN_DEADLINE)
    read = {"nodes": ">", "copies": COPIED}
    blocks = [block.name for block in config.load(stage.config_path).stream]
    ends = {name: await last_sequence(stage.site, STREAM, read[name]) for name in blocks}
    before, moved_at = None, time.monotonic()
    while not has_said_everything(stage, ends):
        now = progress(stage)
        if now != before:
            before, moved_at = now, time.monotonic()
        assert time.monotonic() < moved_at + DRAIN_DEADLINE, f"nothing moves, read up to {ends}, what waits is {before}"
        await asyncio.sleep(LOOK_EVERY)


def progress(stage: FaultStage) -> object:
    """Give what changes while the agent gets on: what waits, and where it reads."""
    try:
        status = read_status(stage.store_path)
    except StoreUnreadable as error:
        return str(error)
    waiting = {name: lane.rows for name, lane in status.outbox.items() if name != "advisories"}
    return waiting, {block.name: (block.state.position.sequence, block.senders) for block in status.blocks}


def keep_store(stage: FaultStage) -> None:
    """Copy the store, which lies on a disk that goes with the stage: it tells why."""
    for path in stage.store_path.parent.glob("agent.db*"):
        shutil.copy(path, stage.directory / path.name)


def has_said_everything(stage: FaultStage, ends: Mapping[str, int]) -> bool:
    """Tell whether every block has read up to its end, nobody is left to be watched, and everything has arrived.

    Watermarks come and go.
    """
    try:
        status = read_status(stage.store_path)
        for block in status.blocks:
            if block.state.position.sequence < ends[block.name] or any(block.senders.values()):
                return False
        with store_reader(stage.store_path) as database:
            ((waiting,),) = database.execute(
                "SELECT (SELECT COUNT(*) FROM advisory_outbox WHERE watermark_since = 0)"
                " + (SELECT COUNT(*) FROM advisory_chunk)"
            ).fetchall()
    except StoreUnreadable:
        return False
    return (
        len(status.blocks) == len(ends)
        and not waiting
        and not any(lane.rows for name, lane in status.outbox.items() if name != "advisories")
    )


def wrong_conduct(stage: FaultStage) -> Iterator[str]:
    """Say where an agent itself fell: only a full disk may keep it from running, and it says so."""
    for agent in stage.agents:
        for end in agent.unasked_ends:
            if not end.disk_was_full:
                yield f"the agent ended by itself, exit code {end.code}: {end.last_words}"
        for code in agent.stop_codes:
            if code not in (0, -15):
                yield f"the agent was told to stop and ended with exit code {code}"
        for line in agent.process.log.splitlines():
            if any(words in line for words in WORDS_OF_A_BROKEN_AGENT):
                yield f"the agent's log says: {line}"

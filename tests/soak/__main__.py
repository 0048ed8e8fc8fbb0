"""Soak: ``python -m tests.soak --hours 1 [--seed N]``; ends by itself, with 1 where anything was lost, twice or wrong.

All of Muster runs under load, faults of every kind befall it, everything is restarted once in the middle as by an
upgrade, and in the end all is held against the sites' streams, the archive against the regions, the tables against the
archive, page and tables against each other, and the tables against the same computed anew.
"""

import asyncio
import platform
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import click
import msgspec

from aggregator.demo.story import Story
from aggregator.demo.watch import until_archived
from shared.command_line.terminal import echo
from tests.soak.growth import Growth
from tests.soak.hub import ROLLUP_EVERY, HubRun
from tests.soak.judge import derived, wrong_archive, wrong_relay, wrong_tables
from tests.soak.stage import PACE, RELAYED, Soak, kinds_left_out, soak_stage
from tests.support.faults import injectors
from tests.support.faults.evidence import gather, last_sequence
from tests.support.faults.fleet import FaultFleet, connected_fleet
from tests.support.faults.injectors import play
from tests.support.faults.run import drain, keep_store, wrong_conduct
from tests.support.faults.schedule import draw_schedule
from tests.support.faults.stage import FLEET, FaultStage
from tests.support.faults.verdict import Verdict, judge
from tests.support.waiting import until

SECONDS_PER_FAULT = 12.0
NOTE_EVERY = 10.0
DEADLINE = 600.0
FINDINGS_SHOWN = 20


class SoakRun(msgspec.Struct, kw_only=True):
    """What came of it."""

    seed: int
    hours: float
    took: float = 0.0
    faults: Counter[str] = msgspec.field(default_factory=Counter)
    verdicts: dict[str, Verdict] = {}
    starts: dict[str, int] = {}
    others: list[str] = []
    agreements: list[str] = []
    growth: list[str] = []

    @property
    def is_clean(self) -> bool:
        """Tell whether nothing was found."""
        return not self.others and all(verdict.is_clean for verdict in self.verdicts.values())

    def report(self) -> Iterator[str]:
        """Say it in lines, the verdict last."""
        yield "; ".join(f"{kind} {count}" for kind, count in sorted(self.faults.items()))
        yield ""
        for name in next(iter(self.verdicts.values())).counts:
            yield f"{name:28}" + "".join(f"{verdict.counts[name]:10,}" for verdict in self.verdicts.values())
        yield f"{'':28}" + "".join(f"{site:>10}" for site in self.verdicts)
        yield ""
        yield from self.growth
        yield ""
        yield "started: " + ", ".join(f"{name} {count}" for name, count in self.starts.items())
        yield from (f"page and tables, {line}" for line in self.agreements)
        yield ""
        findings = [
            f"{site}: {kind}: {finding}"
            for site, verdict in self.verdicts.items()
            for kind in ("lost", "duplicated", "wrong")
            for finding in getattr(verdict, kind)
        ] + self.others
        yield from findings[:FINDINGS_SHOWN]
        if len(findings) > FINDINGS_SHOWN:
            yield f"and {len(findings) - FINDINGS_SHOWN} more"
        for site, verdict in self.verdicts.items():
            yield f"{site}: {verdict.line}"
        yield f"relay, archive, tables, page: {len(self.others)} wrong"
        yield f"again: python -m tests.soak --hours {self.hours:g} --seed {self.seed} ({self.took:.0f} s, {_machine()})"


async def soak(directory: Path, seed: int, hours: float) -> SoakRun:
    """Run it; logs, stores and tables are left in ``directory``."""
    began_at, seconds = time.monotonic(), hours * 3600.0
    run = SoakRun(seed=seed, hours=hours)
    async with soak_stage(directory, hours) as stage, AsyncExitStack() as stack:
        fleets = {
            name: await stack.enter_async_context(connected_fleet(site.site.url, seed + number, site.habits, PACE))
            for number, (name, site) in enumerate(stage.sites.items())
        }
        hub, growth = HubRun(stage, seed), Growth()
        stage.start_live()
        stage.relay.start()
        for site in stage.sites.values():
            site.start_agent()
        async with asyncio.TaskGroup() as tasks:
            keeping = [tasks.create_task(site.supervise()) for site in stage.sites.values()]
            keeping += [tasks.create_task(work) for work in (stage.relay.supervise(), hub.keep_live())]
            keeping += [tasks.create_task(_note(stage, growth))]
            working = [tasks.create_task(hub.roll_up_for_ever(min(ROLLUP_EVERY, seconds / 3)), name="rollups")]
            working += [tasks.create_task(hub.give_orders())]
            suffering = tasks.create_task(hub.suffer(seconds))
            sites = [
                tasks.create_task(_live(run, site, fleets[name], name, seed + number))
                for number, (name, site) in enumerate(stage.sites.items())
            ]
            await asyncio.wait([suffering, *sites])
            echo("all is healed, and every site has come to rest")
            await _cancelled(working)
            await until(lambda: _has_relayed(stage), "the relay has forwarded everything", DEADLINE)
            await _cancelled(keeping)
        for name, site in stage.sites.items():
            keep_store(site)
            await site.stop_agent()
            run.starts |= {f"{name}'s agents": sum(agent.starts for agent in site.agents)}
        await stage.relay.stop()
        run.starts |= {"relay": stage.relay.starts}
        await until_archived(stage.servers.hub.url, stage.servers.topology_path, Story(), DEADLINE)
        echo("judging")
        await _judge(run, stage, hub, fleets)
        run.growth = [*growth.lines()]
    run.took = time.monotonic() - began_at
    return run


async def _live(run: SoakRun, site: FaultStage, fleet: FaultFleet, name: str, seed: int) -> None:
    """Let a site's faults happen, its agents restarted in the middle, and let it come to rest."""
    seconds = run.hours * 3600.0
    living = asyncio.create_task(fleet.live())
    left_out = kinds_left_out(name) | injectors.kinds_left_out(site).keys()
    drawn = draw_schedule(seed, max(4, round(seconds / SECONDS_PER_FAULT)), left_out)
    stretch = seconds / drawn[-1].at
    faults = [fault._replace(at=fault.at * stretch, duration=fault.duration * PACE) for fault in drawn]
    run.faults.update(str(fault.kind) for fault in faults)
    half = len(faults) // 2
    began_at = time.monotonic()
    await play(site, faults[:half])
    for agent in site.agents:
        await agent.stop()
        agent.start()
    run.faults["agents restarted for an upgrade"] += len(site.agents)
    past = time.monotonic() - began_at
    await play(site, [fault._replace(at=max(0.0, fault.at - past)) for fault in faults[half:]])
    living.cancel()
    await asyncio.gather(living, return_exceptions=True)
    echo(f"{name}: {len(faults)} faults are healed; its senders fall silent")
    await drain(site, fleet)


async def _judge(run: SoakRun, stage: Soak, hub: HubRun, fleets: dict[str, FaultFleet]) -> None:
    for name, site in stage.sites.items():
        run.verdicts[name] = judge(await gather(site, fleets[name].acknowledged))
        run.verdicts[name].wrong += wrong_conduct(site)
    for end in stage.relay.unasked_ends:
        run.others.append(f"the relay ended by itself: {end.last_words}")
    run.others += [wrong async for wrong in wrong_relay(stage)]
    wrong, records = await wrong_archive(stage)
    run.others += wrong
    if await hub.roll_up():
        await hub.compare()
        tables = stage.directory / "tables"
        run.others += wrong_tables(tables, records)
        before = derived(tables)
        await hub.roll_up("--full")
        run.others += [
            f"{name} computed anew is another" for name, rows in derived(tables).items() if rows != before[name]
        ]
    run.others += hub.wrong
    run.faults += hub.counts
    run.agreements = hub.agreements


async def _has_relayed(stage: Soak) -> bool:
    last = await last_sequence(stage.servers.regions[RELAYED], FLEET, "fleet.*.*.*.registration")
    status = await stage.relay.process.status_json()
    waits = sum(lane["rows"] for lane in status["outbox"].values())
    return not waits and status["blocks"][0]["state"]["position"]["sequence"] >= last


async def _note(stage: Soak, growth: Growth) -> None:
    """Note what processes and files take, until cancelled."""
    while True:
        for name, site in stage.sites.items():
            for agent in site.agents:
                if agent.process.process.poll() is None:
                    growth.note_process(f"agent {agent.config_path.stem}", agent.process.process.pid)
            growth.note_files(f"store of {name}", *site.agents[0].store_path.parent.glob("agent.db*"))
        growth.note_process("relay", stage.relay.process.process.pid)
        growth.note_files("store of the relay", *stage.relay.store_path.parent.glob("agent.db*"))
        if stage.live_is_wanted:
            # Where it has ended by itself, it is started again, and that is told.
            with suppress(RuntimeError):
                growth.note_process("live service", stage.live.pid)
        growth.note_files("live.db", *stage.directory.glob("live.db*"))
        servers = {"hub": stage.servers.hub, **stage.servers.regions, "dub1": stage.sites["dub1"].site}
        for name, server in servers.items():
            if server.is_running:
                growth.note_process(f"server of {name}", server.pid)
            growth.note_files(f"streams of {name}", server.settings.store_dir / "jetstream")
        growth.note_files("tables", stage.directory / "tables", counted=True)
        await asyncio.sleep(NOTE_EVERY)


async def _cancelled(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _machine() -> str:
    return f"{platform.machine()}, Python {platform.python_version()}"


@click.command()
@click.option(
    "--hours", type=click.FloatRange(min=0.01), default=1.0, show_default=True, help="How long, beside the end."
)
@click.option("--seed", type=int, help="What everybody does and suffers; drawn where not given.")
@click.option("--directory", type=click.Path(path_type=Path), help="For logs, stores and tables; default: a new one.")
def main(hours: float, seed: int | None, directory: Path | None) -> None:
    """Run the whole system under load and faults; say what was lost, duplicated and wrong, and what grew."""
    chosen = random.randrange(1_000_000) if seed is None else seed
    place = directory or Path(tempfile.mkdtemp(prefix="soak-"))
    place.mkdir(parents=True, exist_ok=True)
    echo(f"seed {chosen}: {hours:g} hours; files in {place}")
    run = asyncio.run(soak(place, chosen, hours))
    for line in run.report():
        echo(line)
    if not run.is_clean:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

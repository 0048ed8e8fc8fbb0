"""Let senders live beside an agent that somebody else runs, and judge it: ``python -m tests.support.faults.witness``.

It runs on the network that the agent sees. Each line that it reads begins the next part: the senders fall silent, and
it waits until all is said; the agent has ended, and it judges what the region and the hub hold.
"""

import asyncio
import sys
from pathlib import Path

import click

from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, ServerSettings
from tests.support.faults.disk import SmallDisk
from tests.support.faults.evidence import client_of, gather, state_of
from tests.support.faults.fleet import connected_fleet
from tests.support.faults.run import drain
from tests.support.faults.stage import FLEET, FaultStage
from tests.support.faults.supervised_agent import SupervisedAgent
from tests.support.faults.verdict import judge
from tests.support.waiting import until

ARCHIVE = "ARCHIVE"
PACE = 1.5


async def witness(stage: FaultStage, seed: int) -> bool:
    """Let a fleet live until a line is read, then judge; tell whether nothing was found."""
    async with connected_fleet(stage.site.url, seed, stage.habits, PACE) as fleet:
        living = asyncio.create_task(fleet.live())
        await _line()
        living.cancel()
        await drain(stage, fleet)
    print("all is said", flush=True)
    await _line()
    async with client_of(stage.region) as client:
        held = (await state_of(client, FLEET)).messages

        async def is_archived() -> bool:
            return (await state_of(client, ARCHIVE)).messages >= held

        await until(is_archived, "the hub has what the region has")
    verdicts = {stream: judge(await gather(stage, fleet.acknowledged, stream)) for stream in (FLEET, ARCHIVE)}
    for stream, verdict in verdicts.items():
        print(f"{stream}: {verdict.line}; {verdict.counts}")
        for kind in ("lost", "duplicated", "wrong"):
            print(*(f"{stream}: {kind}: {finding}" for finding in getattr(verdict, kind)), sep="\n")
    return all(verdict.is_clean and verdict.counts["registrations forwarded"] for verdict in verdicts.values())


async def _line() -> None:
    await asyncio.to_thread(sys.stdin.readline)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.argument("store", type=click.Path(path_type=Path))
@click.argument("port", type=int)
@click.argument("seed", type=int)
def main(config: Path, store: Path, port: int, seed: int) -> None:
    """Watch the agent of these settings, with this store; one server is site, region and hub."""
    server = EmbeddedNats(ServerSettings(name="all", store_dir=config.parent, port=port))
    links = (EmbeddedLink(port), EmbeddedLink(port))
    agent = SupervisedAgent(config, store, links, lambda: False)
    stage = FaultStage(config.parent, SmallDisk(config.parent), (server, server), links[1], (agent,))
    print(f"seed {seed}", flush=True)
    raise SystemExit(0 if asyncio.run(witness(stage, seed)) else 1)


if __name__ == "__main__":
    main()

"""Two agents of two sites through kills and cut links: the archive has a straight run's bytes, the tables the truth.

Killed with -9 at bad moments: both agents, one of them while its link is cut, the region's server, and the hub while
the region cannot reach it.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from aggregator.demo.comparison import Figures, Rules, judge
from aggregator.demo.tables import Published, read
from shared import wire
from shared.instants import SECOND
from tests.support.agent.straight_run import assert_straight_run, stored_message
from tests.support.topology.regions import client_of
from tests.support.topology.two_sites import REGION, STALE_AFTER, ArchivedRecord, TwoSites, two_sites
from tests.support.waiting import until

SENDERS = 40
# Down for just a little less than whole registration intervals: of what is longer the machine's lateness would decide.
DUB1 = """
[[outage]]
at = "5s"
for = "13.8s"
racks = [2]
[[flapping]]
at = "4s"
period = "15s"
count = 2
down = "9.8s"
senders = ["dub1-r1-n2.example.net"]
"""
LON1 = """
[[outage]]
at = "9s"
for = "11.8s"
racks = [3]
[[retire]]
at = "7s"
senders = ["lon1-r1-n3.example.net"]
[[rename]]
at = "16s"
sender = "lon1-r1-n4.example.net"
to = "lon1-r9-n9.example.net"
"""
ENDED_AT = 32.0
# A hub takes its time to look again for a source that it lost, the more so on a busy machine.
ARRIVAL_DEADLINE = 420.0


async def test_tables_agree_with_the_truth_through_kills_and_cut_links(tmp_path: Path) -> None:
    async with two_sites(tmp_path) as world:
        await world.sites["dub1"].start_fleet(SENDERS, DUB1)
        await world.sites["lon1"].start_fleet(SENDERS, LON1)
        await play(world)
        await end(world)
        await check_archive(world)
        await world.aggregator("rollup", "--config", "aggregator.toml")
        published = read(tmp_path / "tables")
    assert (published.quarantined, published.uneven_days) == (0, 0)
    check_tables(world, published)


async def play(world: TwoSites) -> None:
    """Let everything go wrong, at its time after the fleets began."""
    dub1, lon1 = world.sites.values()
    faults: list[tuple[float, Callable[[], Awaitable[None] | None]]] = [
        (3.0, dub1.agent.kill),
        (4.2, dub1.agent.start),
        (8.0, lon1.uplink.cut),
        (11.0, lon1.dies),
        (15.0, lon1.uplink.restore),
        (17.0, world.region.kill),
        (17.1, world.region.start),
        (21.0, dub1.dies),
        (23.0, world.hub_link.cut),
        (24.0, world.servers.hub.kill),
        (24.1, world.servers.hub.start),
        (27.0, world.hub_link.restore),
    ]
    began_at = time.monotonic()
    for at, do in faults:
        await asyncio.sleep(began_at + at - time.monotonic())
        if (done := do()) is not None:
            await done
    await asyncio.sleep(began_at + ENDED_AT - time.monotonic())


async def end(world: TwoSites) -> None:
    """Let the agents see and say everything up to now, and end them before the fleets fall silent for good."""
    ended_at = time.time_ns() // 1000
    for site in world.sites.values():
        await until(partial(site.has_said_everything, ended_at), f"{site.name} has said everything", ARRIVAL_DEADLINE)
    for site in world.sites.values():
        assert await site.agent.stop() == 0
    # The tables' known time ends at the archive's last message: the truth must reach further.
    await until(world.everything_is_archived, "the hub has everything", ARRIVAL_DEADLINE)
    for site in world.sites.values():
        await site.end_fleet()


async def check_archive(world: TwoSites) -> None:
    """The archive holds a straight run's advisories, every one of them, and registrations as they were published."""
    archive = await world.archive()
    for site in world.sites.values():
        records = [record for record in archive if record.subject.startswith(f"fleet.{REGION}.{site.name}.")]
        arrived = {record.payload for record in records if ".advisory." in record.subject}
        async with await client_of(site.server) as client:
            await assert_straight_run(arrived, site.agent.config, client)
            for record in records:
                if record.subject.endswith(".registration"):
                    _, _, sequence = wire.parse_origin_header(header(record, wire.ORIGIN_HEADER))
                    assert record.payload == (await stored_message(client, "REGISTRATION", sequence)).payload


def check_tables(world: TwoSites, published: Published) -> None:
    """Every sender's figures agree with what it really did, within what is promised; nobody was accused who lived."""
    senders = set()
    for name, site in world.sites.items():
        truth = site.truth()
        rules = Rules(tuple(published.known[name]), int(STALE_AFTER * SECOND), published.known_through)
        for _, sender in truth.senders:
            senders.add((name, sender))
            verdict = judge(truth, name, sender, published.figures.get((name, sender), Figures(())), rules)
            assert (verdict.beyond, verdict.accused, verdict.unmet) == ((), (), ()), verdict
            assert verdict.up + verdict.down > 0, verdict
    assert published.figures.keys() == senders


def header(record: ArchivedRecord, name: str) -> str:
    (value,) = re.findall(rf"^{name}: (.*)\r$", record.headers, re.MULTILINE)
    return str(value)

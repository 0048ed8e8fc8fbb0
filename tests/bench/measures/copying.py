"""Copy a stream without sampling: loopback, a long round trip, and a region that writes to disk before it answers."""

import asyncio
from contextlib import AsyncExitStack

from tests.bench.contenders import Contender, Ours, Peer
from tests.bench.measures.sampling import pace_rows
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options, Pace, Stage, stage
from tests.bench.streams import stream_state

SENDERS = 1_000
PEER_LIMIT = 20.0
ROUND_TRIP = 0.05
SETTLED_AFTER = 1.0


async def copy(options: Options) -> Table:
    """Copy 1 kB and 13 kB between servers on this machine."""
    rows = [
        *await _rows(options, "1 kB, loopback", size=1_000, count=options.size(200_000, 20_000), must=25_000),
        *await _rows(options, "13 kB, loopback", size=13_000, count=options.size(60_000, 6_000), must=12_000),
    ]
    return Table("copy", "copy without sampling, default sync upstream", options.command("copy"), rows)


async def copy_far(options: Options) -> Table:
    """Copy 1 kB to a region that is 50 ms away; the order of the stream is checked."""
    count = options.size(200_000, 20_000)
    rows = await _rows(options, "1 kB, 50 ms round trip", size=1_000, count=count, must=15_000, round_trip=ROUND_TRIP)
    note = f"the peer is stopped after {PEER_LIMIT:g} s"
    return Table("copy-far", "copy without sampling over a long link", options.command("copy-far"), rows, notes=[note])


async def copy_synced(options: Options) -> Table:
    """Copy 1 kB to a region that acknowledges only what is on disk."""
    count = options.size(200_000, 20_000)
    rows = await _rows(options, "1 kB, sync_interval always", size=1_000, count=count, must=15_000, synced=True)
    return Table("copy-synced", "copy without sampling, upstream on disk", options.command("copy-synced"), rows)


MEASURES = {"copy": copy, "copy-far": copy_far, "copy-synced": copy_synced}


async def _rows(
    options: Options, what: str, *, size: int, count: int, must: float, round_trip: float = 0.0, synced: bool = False
) -> list[Row]:
    found: dict[type[Contender], list[Pace]] = {Ours: [], Peer: []}
    async with stage(options, sync_always=synced) as servers:
        await servers.register(registrations(SENDERS, count, size))
        for _ in range(options.turns):
            for kind in servers.kinds:
                found[kind].append(await _turn(servers, kind, count, round_trip))
    return pace_rows(f"{what}, {count:,}", "msg/s", found[Ours], found[Peer], must)


async def _turn(servers: Stage, kind: type[Contender], count: int, round_trip: float) -> Pace:
    async with AsyncExitStack() as stack:
        work = servers.work(copies=True)
        if round_trip:
            link = await stack.enter_async_context(servers.link("region", round_trip))
            work = servers.work(copies=True, region=link.url)
        contender = await stack.enter_async_context(servers.contender(kind, work))
        contender.child.start()
        limit = None if isinstance(contender, Ours) else PEER_LIMIT
        what = f"{kind.name}, copies"
        pace = await servers.pace(contender.child, lambda: servers.records(contender), count, what, limit)
        if isinstance(contender, Ours):
            await _check(servers, contender, count)
            state = await stream_state(servers.region, contender.target_stream)
            if state.seconds:
                pace = pace._replace(rate=min(pace.rate, (count - 1) / state.seconds))
    return pace


async def _check(servers: Stage, contender: Contender, count: int) -> None:
    """Look again a little later: nothing may come twice."""
    await asyncio.sleep(SETTLED_AFTER)
    found = await servers.records(contender)
    if found != count:
        raise RecordsLost(f"{contender.name}: {found:,} copies of {count:,} messages")

"""Stall the link between the program and the site's server while its senders live on: whom does it accuse?"""

import asyncio
import time

from shared.instants import SECOND
from tests.bench.contenders import Contender, Ours, Peer
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options, Stage, stage
from tests.bench.streams import acknowledged_through

PATIENCE = 120.0
SILENT = 10
MARGIN = 5


async def stalled_link(options: Options) -> Table:
    """2,000 living senders, a link that passes nothing for far longer than ``stale_after``, then passes again."""
    stall, stale_after, senders = options.size(40, 10), options.size(15, 6), options.size(2_000, 500)
    found: dict[type[Contender], tuple[int, int]] = {}
    for kind in [Ours, Peer] if options.peer else [Ours]:
        async with stage(options) as servers:
            found[kind] = await _turn(servers, kind, senders, stall, stale_after)
    ours, theirs = found[Ours], found.get(Peer, (None, None))
    rows = [
        Row("false timeouts", "advisories", ours[0], theirs[0], 1, "less"),
        Row(f"senders really silent, of {SILENT}", "advisories", ours[1], theirs[1]),
    ]
    title = f"the link to the site's server stalls {stall} s, {senders:,} living senders, stale after {stale_after} s"
    return Table("stalled-link", title, options.command("stalled-link"), rows)


MEASURES = {"stalled-link": stalled_link}


async def _turn(servers: Stage, kind: type[Contender], senders: int, stall: int, stale_after: int) -> tuple[int, int]:
    async with servers.link("site") as link:
        work = servers.work(site=link.url, stale_after=f"{stale_after}s", settle="400ms")
        async with servers.contender(kind, work) as contender:
            living = [senders + SILENT]
            registering = asyncio.create_task(_register(servers, living, stale_after / 3))
            try:
                contender.child.start()
                await _until_read(servers, contender, senders + SILENT)
                await asyncio.sleep(stale_after / 3)
                link.stall()
                living[0] = senders
                await asyncio.sleep(stall)
                await link.restore()
                await _until_past_it(servers, contender, time.time_ns() // 1000 + (stale_after + MARGIN) * SECOND)
            finally:
                registering.cancel()
                await asyncio.wait({registering})
            told = await servers.told(contender, contender.stale)
            # The last of the fleet ended for good; the contender that tells of fewer has told nothing false.
            return max(0, told - SILENT), min(told, SILENT)


async def _register(servers: Stage, living: list[int], interval: float) -> None:
    """Let the first senders register for ever, as many as ``living`` says by then."""
    while True:
        began = time.perf_counter()
        for payload in registrations(living[0], living[0], 1_000):
            await servers.site.publish("registration.site", payload)
        await servers.site.flush()
        await asyncio.sleep(max(0.0, began + interval - time.perf_counter()))


async def _until_read(servers: Stage, contender: Contender, count: int) -> None:
    give_up_at = time.perf_counter() + PATIENCE
    while await acknowledged_through(servers.site, "REGISTRATION") < count:
        _ = contender.child.pid
        if time.perf_counter() > give_up_at:
            raise RecordsLost(f"the fleet's first registrations were not read within {PATIENCE:g} s")
        await asyncio.sleep(0.1)


async def _until_past_it(servers: Stage, contender: Contender, instant: int) -> None:
    """Wait until the contender has seen the senders for ``stale_after`` behind the stall."""
    give_up_at = time.perf_counter() + PATIENCE
    while time.perf_counter() < give_up_at:
        if isinstance(contender, Ours):
            if contender.observed_through() > instant:
                return
        elif time.time_ns() // 1000 > instant + 15 * SECOND:
            return
        await asyncio.sleep(0.2)
    raise RecordsLost(f"{contender.name} does not read on after the link was restored")

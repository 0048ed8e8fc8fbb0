"""Read what a site stored while the agent was away: the rate holds and memory stays flat, however much it is."""

import asyncio
import time

from tests.bench.contenders import Ours
from tests.bench.measures.sampling import everything_arrived
from tests.bench.registrations import registrations
from tests.bench.report import Row, Table
from tests.bench.stage import Options, stage
from tests.bench.streams import acknowledged_of

SENDERS = 10_000
TENTHS = 10


async def backlog(options: Options) -> Table:
    """Fill the site's stream, then start the agent: rate and memory by tenth of the way."""
    count = options.backlog
    resident: list[float] = []
    reached_at: list[float] = []
    async with stage(options) as servers:
        await servers.register(registrations(SENDERS, count, 1_000))
        async with servers.contender(Ours, servers.work()) as contender:
            contender.child.start()

            async def read() -> int:
                reached = await acknowledged_of(servers.site, "REGISTRATION", count)
                while reached * TENTHS >= count * (len(reached_at) + 1):
                    reached_at.append(time.perf_counter())
                    resident.append(contender.child.resident())
                return reached

            pace = await servers.pace(contender.child, read, count, "messages read")
            peak = contender.child.peak_resident()
            await everything_arrived(servers, contender, SENDERS)
            await asyncio.sleep(0)
    last = reached_at[-1] - reached_at[TENTHS // 2 - 1]
    rows = [
        Row(f"{count:,} messages, 1 kB, {SENDERS:,} senders", "msg/s read", pace.rate, None, 25_000),
        Row("the second half of them", "msg/s read", count / 2 / last if last else None),
        Row("resident memory after a tenth", "MB", resident[0]),
        Row("resident memory at the end", "MB", resident[-1]),
        Row("the most it ever was", "MB", peak),
    ]
    return Table("backlog", "backlog after an outage", options.command("backlog"), rows)


MEASURES = {"backlog": backlog}

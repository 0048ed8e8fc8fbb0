"""Track a million senders: how fast they are met, what they take, how soon the program is back after kill -9."""

import asyncio
import signal
import time

from tests.bench.contenders import Contender, Ours
from tests.bench.measures.sampling import everything_arrived
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import POLL, STALLED, Options, Stage, rested, stage
from tests.bench.streams import acknowledged_of


async def million(options: Options) -> Table:
    """Meet all senders for the first time, rest, be killed, be back."""
    senders = options.size(1_000_000, 20_000)
    found: list[list[float | None]] = []
    async with stage(options) as servers:
        held = await servers.register(registrations(senders, senders, 1_000))
        for kind in servers.kinds:
            figures, held = await _turn(servers, kind, senders, held)
            found.append(figures)
    ours, theirs = found[0], found[1] if len(found) > 1 else [None] * len(found[0])
    rows = [
        Row("first sightings, 1 kB", "senders/s read", ours[0], theirs[0], 25_000),
        Row("their records in the region", "records/s", ours[1], theirs[1]),
        Row("its processor time until all are read", "us/sender", ours[7], theirs[7]),
        Row("that of both servers", "us/sender", ours[8], theirs[8]),
        Row("resident memory", "MB", ours[2], theirs[2], 400, "less"),
        Row("the most it ever was", "MB", ours[3], theirs[3]),
        Row("idle", "% of a core", ours[4], theirs[4]),
        Row("ready again after kill -9", "s", ours[5], theirs[5], 10, "less"),
        Row("resident memory after that", "MB", ours[6], theirs[6], 400, "less"),
    ]
    notes = [
        "ready: from the kill until a registration published after it is read and acknowledged",
        "idle: once the store has given back the space that the burst took",
    ]
    return Table("million", f"{senders:,} senders tracked", options.command("million"), rows, notes=notes)


MEASURES = {"million": million}


async def _turn(servers: Stage, kind: type[Contender], senders: int, held: int) -> tuple[list[float | None], int]:
    async with servers.contender(kind, servers.work()) as contender:
        child = contender.child
        child.start()

        async def read() -> int:
            _ = child.pid
            return await acknowledged_of(servers.site, "REGISTRATION", held)

        delivering = asyncio.create_task(_delivered(servers, contender, senders))
        reading = await servers.pace(child, read, held, f"{kind.name}, messages read")
        delivered_rate = await delivering
        await rested(contender, servers.options.rest)
        resident, peak = child.resident(), child.peak_resident()
        idle = await child.core_share(servers.options.size(60, 5))
        killed_at = time.perf_counter()
        await child.end(signal.SIGKILL)
        held = await servers.register(registrations(1, 1, 1_000))
        child.start()
        while await read() < held:
            if time.perf_counter() - killed_at > STALLED:
                raise RecordsLost(f"{kind.name} is not ready {STALLED:g} s after kill -9")
            await asyncio.sleep(POLL)
        ready_after = time.perf_counter() - killed_at
        await asyncio.sleep(servers.options.rest)
        figures = [reading.rate, delivered_rate, resident, peak, idle, ready_after, child.resident()]
        return [*figures, reading.processor, reading.servers], held


async def _delivered(servers: Stage, contender: Contender, senders: int) -> float | None:
    return await everything_arrived(servers, contender, senders) if isinstance(contender, Ours) else None

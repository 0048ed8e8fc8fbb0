"""Let a whole fleet fall silent at once: how late is the last stale advisory, and is any missing?"""

import asyncio
import time

from shared.instants import SECOND, parse_instant
from tests.bench.contenders import Contender, Ours
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options, Stage, stage
from tests.bench.streams import acknowledged_through, stream_state

SETTLE = 5
PATIENCE = 120.0
PEER_PATIENCE = 60.0


async def silence(options: Options) -> Table:
    """Register everybody once, then nobody again."""
    rows: list[Row] = []
    notes = []
    for senders in (50_000, 100_000) if not options.is_quick else (5_000,):
        async with stage(options) as servers:
            for kind in servers.kinds:
                late, told = await _turn(servers, kind, senders)
                if kind is Ours:
                    what = f"{senders:,} senders: last advisory"
                    rows.append(Row(what, "s after deadline + settle", late, None, 10, "less"))
                    rows.append(Row(f"{senders:,} senders: advisories missing", "advisories", senders - told))
                else:
                    out = f"{told:,} timeouts out {late + SETTLE:.0f} s after the deadline"
                    notes.append(f"peer, {senders:,} senders: {out}")
    return Table("silence", "a fleet goes silent at once", options.command("silence"), rows, notes=notes)


MEASURES = {"silence": silence}


async def _turn(servers: Stage, kind: type[Contender], senders: int) -> tuple[float, int]:
    stale_after = servers.options.size(90, 24)
    work = servers.work(stale_after=f"{stale_after}s", settle=f"{SETTLE}s")
    await servers.site.jetstream().purge_stream("REGISTRATION")
    async with servers.contender(kind, work) as contender:
        contender.child.start()
        held = await servers.register(registrations(senders, senders, 1_000))
        state = await stream_state(servers.site, "REGISTRATION")
        due_at = parse_instant(state.last_ts) + stale_after * SECOND
        patience = PATIENCE if kind is Ours else PEER_PATIENCE
        told = 0
        while told < senders and time.time_ns() // 1000 < due_at + patience * SECOND:
            _ = contender.child.pid
            told = await servers.told(contender, contender.stale)
            await asyncio.sleep(0.1)
        arrived = time.time_ns() // 1000
        if kind is Ours and told != senders:
            raise RecordsLost(f"{told:,} of {senders:,} senders were reported {patience:g} s after their deadline")
        if await acknowledged_through(servers.site, "REGISTRATION") < held and kind is Ours:
            raise RecordsLost("registrations were not read")
        return (arrived - due_at) / SECOND - SETTLE, told

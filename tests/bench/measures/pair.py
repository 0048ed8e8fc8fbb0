"""Let two agents serve an ordinary site: what each of them takes, and what their log does."""

import asyncio

from edge_agent.observability.status_board import PairPhase
from edge_agent.observability.status_report import read_status
from edge_agent.store.read_only import StoreUnreadable
from tests.bench.contenders import MEMBERS, Ours
from tests.bench.measures.sampling import everything_arrived
from tests.bench.measures.steady import INTERVAL, SENDERS, SIZE, shares_while_registering
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import POLL, STALLED, Options, stage
from tests.bench.streams import stream_state

LOG = "MUSTER_PAIR_dub1"


async def pair(options: Options) -> Table:
    """Let the fleet register evenly at its real rate, to a pair that has read all that was before."""
    seconds = options.size(120, 8)
    async with stage(options) as servers:
        await servers.register(registrations(SENDERS, SENDERS, SIZE))
        works = [servers.work(sample_interval="1h", stale_after="12m", member=name) for name in MEMBERS]
        async with servers.contender(Ours, works[0]) as leader:
            assert isinstance(leader, Ours)
            leader.child.start()
            await everything_arrived(servers, leader, SENDERS)
            standby = Ours(servers.directory, works[1])
            standby.child.start()
            try:
                await _does(standby, PairPhase.STANDING_BY)
                before = await stream_state(servers.site, LOG)
                shares = await shares_while_registering(servers, [leader.child, standby.child], seconds)
                after = await stream_state(servers.site, LOG)
                resident = leader.child.resident(), standby.child.resident()
            finally:
                await standby.child.end()
    rows = [
        Row("processor, the one that leads", "% of a core", shares[0]),
        Row("processor, the one that stands by", "% of a core", shares[1]),
        Row("resident memory, the one that leads", "MB", resident[0]),
        Row("resident memory, the one that stands by", "MB", resident[1]),
        Row("entries in the log", "per second", (after.messages - before.messages) / seconds),
        Row("what the log takes", "kB/s", (after.bytes - before.bytes) / seconds / 1000),
    ]
    title = f"a pair: {SENDERS:,} senders at {INTERVAL:g} s, 13 kB, sampled hourly, over {seconds} s"
    return Table("pair", title, options.command("pair"), rows)


MEASURES = {"pair": pair}


async def _does(member: Ours, phase: PairPhase) -> None:
    """Wait until a member has said that it does this."""
    give_up_at = asyncio.get_running_loop().time() + STALLED
    while asyncio.get_running_loop().time() < give_up_at:
        _ = member.child.pid
        try:
            status = read_status(member.store).pair
        except StoreUnreadable:
            status = None
        if status is not None and status.phase == phase:
            return
        await asyncio.sleep(POLL)
    raise RecordsLost(f"the second member is not {phase} after {STALLED:g} s")

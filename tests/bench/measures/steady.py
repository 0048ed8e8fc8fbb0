"""Watch 10,000 senders that register every 300 s, in real time: what an agent takes on an ordinary site."""

import asyncio
from collections.abc import Sequence

from tests.bench.children import Child, processor_seconds
from tests.bench.contenders import Contender, Ours
from tests.bench.measures.sampling import everything_arrived
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table
from tests.bench.stage import Options, Stage, rested, stage
from tests.bench.streams import acknowledged_of

SENDERS = 10_000
INTERVAL = 300.0
BURSTS_PER_SECOND = 5
SIZE = 13_000


async def steady(options: Options) -> Table:
    """Let the fleet register evenly at its real rate; nothing is accelerated."""
    seconds = options.size(120, 8)
    async with stage(options) as servers:
        await servers.register(registrations(SENDERS, SENDERS, SIZE))
        found = [await _turn(servers, kind, seconds) for kind in servers.kinds]
    ours, theirs = found[0], found[1] if len(found) > 1 else (None, None)
    rows = [
        Row("resident memory", "MB", ours[0], theirs[0], 60, "less"),
        Row("processor", "% of a core", ours[1], theirs[1], 2, "less"),
    ]
    title = f"{SENDERS:,} senders at {INTERVAL:g} s, 13 kB, sampled hourly, over {seconds} s"
    return Table("steady", title, options.command("steady"), rows)


async def probes(options: Options) -> Table:
    """Let a site be quiet under thresholds so short that a probe goes out several times a second."""
    seconds = options.size(60, 5)
    async with stage(options) as servers:
        sent, (agent, server) = await _quiet(servers, seconds, probes=True)
        none, (agent_without, server_without) = await _quiet(servers, seconds, probes=False)
    if none or not sent:
        raise RecordsLost(f"{sent} probes with, {none} without")
    rows = [
        Row("the agent, one probe", "us of a core", 1e6 * (agent - agent_without) / sent),
        Row("the site's server, one probe", "us of a core", 1e6 * (server - server_without) / sent),
    ]
    title = f"a quiet site with probes ({sent} in {seconds} s) and without: the difference, for each"
    return Table("probes", title, options.command("probes"), rows)


MEASURES = {"steady": steady, "probes": probes}


async def _quiet(servers: Stage, seconds: float, *, probes: bool) -> tuple[int, tuple[float, float]]:
    """Give how many messages were stored, and what the agent and the site's server took, in seconds of a core."""
    work = servers.work(stale_after="6s", settle="200ms", probes=probes)
    await servers.site.jetstream().purge_stream("REGISTRATION")
    async with servers.contender(Ours, work) as contender:
        contender.child.start()
        await servers.register([b'{"sender": "a"}'])
        await everything_arrived(servers, contender, 1)
        await rested(contender, servers.options.rest)
        pids = contender.child.pid, servers.servers["site"].pid
        stored, before = await _stored(servers), [processor_seconds(pid) for pid in pids]
        await asyncio.sleep(seconds)
        agent, server = (processor_seconds(pid) - taken for pid, taken in zip(pids, before, strict=True))
        return await _stored(servers) - stored, (agent, server)


async def _stored(servers: Stage) -> int:
    return (await servers.site.jetstream().stream_info("REGISTRATION")).state.last_seq


async def _turn(servers: Stage, kind: type[Contender], seconds: float) -> tuple[float, float]:
    async with servers.contender(kind, servers.work(sample_interval="1h", stale_after="12m")) as contender:
        contender.child.start()
        held = SENDERS if kind is Ours else 0

        published = await servers.register(())

        async def read() -> int:
            _ = contender.child.pid
            return await acknowledged_of(servers.site, "REGISTRATION", published)

        await servers.pace(contender.child, read, published, f"{kind.name}, messages read")
        if held:
            await everything_arrived(servers, contender, SENDERS)
        await rested(contender, servers.options.rest)
        (share,) = await shares_while_registering(servers, [contender.child], seconds)
        return contender.child.resident(), share


async def shares_while_registering(servers: Stage, children: Sequence[Child], seconds: float) -> list[float]:
    """Measure over whole seconds while the fleet registers evenly."""
    measuring = asyncio.gather(*(child.core_share(seconds) for child in children))
    burst = registrations(SENDERS, SENDERS, SIZE)
    per_burst, owed = SENDERS / INTERVAL / BURSTS_PER_SECOND, 0.0
    while not measuring.done():
        owed += per_burst
        for _ in range(int(owed)):
            await servers.site.publish("registration.site", next(burst))
        owed -= int(owed)
        await asyncio.sleep(1 / BURSTS_PER_SECOND)
    return await measuring

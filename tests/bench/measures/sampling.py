"""Read, decide and forward a sample: what a full day of a fleet is made of."""

from tests.bench.contenders import Contender, Ours, Peer
from tests.bench.registrations import registrations
from tests.bench.report import RecordsLost, Row, Table, median
from tests.bench.stage import Options, Pace, Stage, stage
from tests.bench.streams import acknowledged_of

PEER_LIMIT = 45.0


async def few_forwarded(options: Options) -> Table:
    """1,000 senders, of which only the first registration of each goes on."""
    rows = [
        *await _rows(options, senders=1_000, each=options.size(400, 40), size=1_000, must=60_000),
        *await _rows(options, senders=1_000, each=options.size(60, 10), size=13_000, must=15_000),
    ]
    return Table("sampled-few", "sampled, few forwarded", options.command("sampled-few"), rows)


async def many_senders(options: Options) -> Table:
    """100,000 senders that register twelve times in an interval."""
    senders = options.size(100_000, 2_000)
    rows = await _rows(options, senders=senders, each=12, size=13_000, must=12_000)
    note = f"the peer is stopped after {PEER_LIMIT:g} s"
    return Table("sampled-many", "sampled 12 to 1", options.command("sampled-many"), rows, notes=[note])


MEASURES = {"sampled-few": few_forwarded, "sampled-many": many_senders}


async def _rows(options: Options, *, senders: int, each: int, size: int, must: float) -> list[Row]:
    count = senders * each
    found: dict[type[Contender], list[Pace]] = {Ours: [], Peer: []}
    async with stage(options) as servers:
        await servers.register(registrations(senders, count, size))
        for _ in range(options.turns):
            for kind in servers.kinds:
                found[kind].append(await _turn(servers, kind, senders, count))
    what = f"{size // 1000} kB, {senders:,} senders, {each} to 1"
    return pace_rows(what, "msg/s read", found[Ours], found[Peer], must)


def pace_rows(what: str, unit: str, ours: list[Pace], theirs: list[Pace], must: float) -> list[Row]:
    """Write the rows of turns: the rate, what each message took of processors, and which rate that would allow."""
    rates = median([each.rate for each in ours]), median([each.rate for each in theirs])
    took = median([each.processor for each in ours]), median([each.processor for each in theirs])
    servers = median([each.servers for each in ours]), median([each.servers for each in theirs])
    bounds = median([each.bound for each in ours]), median([each.bound for each in theirs])
    return [
        Row(what, unit, *rates, must),
        Row("  its processor time", "us per message", *took),
        Row("  that of both servers", "us per message", *servers),
        Row("  two idle cores would allow at most", unit, *bounds),
    ]


async def _turn(servers: Stage, kind: type[Contender], senders: int, count: int) -> Pace:
    async with servers.contender(kind, servers.work()) as contender:
        contender.child.start()

        async def read() -> int:
            _ = contender.child.pid
            return await acknowledged_of(servers.site, "REGISTRATION", count)

        limit = None if isinstance(contender, Ours) else PEER_LIMIT
        pace = await servers.pace(contender.child, read, count, f"{kind.name}, messages read", limit)
        if isinstance(contender, Ours):
            await everything_arrived(servers, contender, senders)
    return pace


async def everything_arrived(servers: Stage, contender: Contender, senders: int) -> float:
    """Wait until every sender's first sighting has left its two records; give how fast they came."""
    what = f"{contender.name}, records in FLEET"
    pace = await servers.pace(contender.child, lambda: servers.records(contender), 2 * senders, what)
    news = await servers.told(contender, ".advisory.new")
    if news != senders:
        raise RecordsLost(f"{contender.name}: {news:,} senders are new where there are {senders:,}")
    return pace.rate

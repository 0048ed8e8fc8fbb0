"""Deliver registrations and advisories over a long link: the round trip must not be what bounds it."""

from tests.bench.contenders import Ours
from tests.bench.measures.sampling import everything_arrived
from tests.bench.registrations import registrations
from tests.bench.report import Row, Table, median
from tests.bench.stage import Options, Stage, stage

ROUND_TRIP = 0.05


async def distance(options: Options) -> Table:
    """First sightings, each an advisory and a registration, at 50 ms and at none, through the same proxy."""
    senders = options.size(150_000, 5_000)
    near, far = [], []
    async with stage(options) as servers:
        await servers.register(registrations(senders, senders, 1_000))
        for _ in range(options.turns):
            near.append(await _turn(servers, senders, 0.0))
            far.append(await _turn(servers, senders, ROUND_TRIP))
    at_none, at_50 = median(near), median(far)
    share = 100 * at_50 / at_none if at_50 and at_none else None
    rows = [
        Row(f"{senders:,} senders, 1 kB, no round trip", "records/s in the region", at_none),
        Row(f"{senders:,} senders, 1 kB, 50 ms round trip", "records/s in the region", at_50),
        Row("share of the loopback figure", "%", share, None, 90),
    ]
    note = "both through the same TCP proxy, so that only the round trip differs"
    return Table(
        "distance", "sampled registrations and advisories at 50 ms", options.command("distance"), rows, notes=[note]
    )


MEASURES = {"distance": distance}


async def _turn(servers: Stage, senders: int, round_trip: float) -> float:
    async with (
        servers.link("region", round_trip) as link,
        servers.contender(Ours, servers.work(region=link.url)) as contender,
    ):
        contender.child.start()
        return await everything_arrived(servers, contender, senders)

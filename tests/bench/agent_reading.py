"""How fast the agent reads, decides and commits, against nats-py's own fetch() loop reading the same stream."""

import json
import tempfile
import time
from pathlib import Path

from nats.aio.client import Client
from nats.js.api import AckPolicy, ConsumerConfig

from tests.bench.report import Measure, in_turns
from tests.bench.servers import agent, committed_through, fill, server

SENDERS = 1_000
FETCH = 500


async def bench_agent_reading(quick: bool) -> list[Measure]:
    """Measure sampled reading where few registrations are forwarded, at 1 kB and 13 kB."""
    sizes = {1_000: 40_000, 13_000: 10_000} if quick else {1_000: 200_000, 13_000: 60_000}
    return [await _reading(size, count, 2 if quick else 3) for size, count in sizes.items()]


async def _reading(size: int, count: int, turns: int) -> Measure:
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        directory = Path(name)
        async with server(directory, "site") as (site, client), server(directory, "region") as (region, upstream):
            await upstream.jetstream().add_stream(name="FLEET", subjects=["fleet.>"])
            await fill(client, "REGISTRATION", "registration", _registrations(size, count))
            turn = iter(range(2 * turns))

            async def ours() -> float:
                started = time.perf_counter()
                async with agent(directory / f"agent{next(turn)}", site.url, region.url) as store:
                    first = await committed_through(store, 1)
                    last = await committed_through(store, count)
                assert last > started
                return count / (last - first)

            async def theirs() -> float:
                return await _fetch_all(client, f"bench{next(turn)}", count)

            figures = await in_turns(ours, theirs, turns)
    what = f"sampled, {SENDERS:,} senders, {size // 1000} kB, {count:,} messages"
    return Measure(what, "messages read per s", figures[0], f"nats-py fetch({FETCH}), no work", figures[1])


async def _fetch_all(client: Client, consumer: str, count: int) -> float:
    unacknowledged = ConsumerConfig(ack_policy=AckPolicy.NONE)
    subscription = await client.jetstream().pull_subscribe("registration.>", durable=consumer, config=unacknowledged)
    began = time.perf_counter()
    read = 0
    while read < count:
        read += len(await subscription.fetch(FETCH, timeout=10))
    return count / (time.perf_counter() - began)


def _registrations(size: int, count: int) -> list[bytes]:
    filler = "x" * (size - 60)
    bodies = [json.dumps({"sender": f"node{n:06}.example.net", "data": filler}).encode() for n in range(SENDERS)]
    return [bodies[n % SENDERS] for n in range(count)]

"""How fast records leave through the outbox, against nats-py's publish_async with the same window."""

import asyncio
import json
import tempfile
import time
from pathlib import Path

from nats.aio.client import Client

from tests.bench.report import Measure, in_turns
from tests.bench.servers import DEADLINE, agent, fill, server

WINDOW = 4_000


async def bench_uploading(quick: bool) -> list[Measure]:
    """Measure first sightings: each makes an advisory and a forwarded registration."""
    senders, turns = (10_000, 2) if quick else (50_000, 3)
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as name:
        directory = Path(name)
        async with server(directory, "site") as (site, client), server(directory, "region") as (region, upstream):
            await upstream.jetstream().add_stream(name="FLEET", subjects=["fleet.>"])
            await upstream.jetstream().add_stream(name="PLAIN", subjects=["plain.>"])
            filler = "x" * 940
            bodies = [
                json.dumps({"sender": f"node{n:06}.example.net", "data": filler}).encode() for n in range(senders)
            ]
            await fill(client, "REGISTRATION", "registration", bodies)
            turn = iter(range(turns))

            async def ours() -> float:
                await upstream.jetstream().purge_stream("FLEET")
                began = time.perf_counter()
                async with agent(directory / f"agent{next(turn)}", site.url, region.url):
                    await _stored(upstream, "fleet.>", 2 * senders)
                    return 2 * senders / (time.perf_counter() - began)

            async def theirs() -> float:
                jetstream = upstream.jetstream(publish_async_max_pending=WINDOW)
                began = time.perf_counter()
                answers = [await jetstream.publish_async("plain.x", bodies[n % senders]) for n in range(2 * senders)]
                await asyncio.gather(*answers)
                return 2 * senders / (time.perf_counter() - began)

            figures = await in_turns(ours, theirs, turns)
    what = f"first sightings of {senders:,} senders, all records in FLEET"
    return [Measure(what, "records per s, start included", figures[0], "nats-py publish_async", figures[1])]


async def _stored(client: Client, subject: str, count: int) -> None:
    """Wait until a stream holds that many records, watermarks aside."""
    jetstream = client.jetstream()
    stored = 0
    give_up_at = time.perf_counter() + DEADLINE
    while time.perf_counter() < give_up_at:
        info = await jetstream.stream_info("FLEET", subjects_filter=subject)
        stored = sum(n for name, n in (info.state.subjects or {}).items() if not name.endswith(".watermark"))
        if stored >= count:
            return
    raise TimeoutError(f"{stored} of {count} records within {DEADLINE} s")

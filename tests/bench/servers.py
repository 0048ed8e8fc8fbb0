"""Start real servers and real agents for benchmarks, and fill streams."""

import asyncio
import contextlib
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import nats
from nats.aio.client import Client

from shared.embedded_nats import EmbeddedNats, ServerSettings

FILL_WINDOW = 2_000
DEADLINE = 300.0

AGENT = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["{region}"]
[store]
path = "{directory}/agent.db"
[monitor]
listen = ""
[[stream]]
name = "nodes"
[stream.source]
servers = ["{site}"]
stream = "REGISTRATION"
[stream.sender]
json_path = "sender"
[stream.policy]
sample_interval = "{sample_interval}"
"""


@asynccontextmanager
async def server(directory: Path, name: str) -> AsyncIterator[tuple[EmbeddedNats, Client]]:
    """Start a server with JetStream and connect to it."""
    async with EmbeddedNats(ServerSettings(name=name, store_dir=directory / name)) as embedded:
        client = await nats.connect(embedded.url, pending_size=64 << 20)
        try:
            yield embedded, client
        finally:
            await client.close()


async def fill(client: Client, stream: str, subject: str, payloads: list[bytes]) -> None:
    """Store messages pipelined, every acknowledgement awaited."""
    jetstream = client.jetstream(publish_async_max_pending=FILL_WINDOW)
    await jetstream.add_stream(name=stream, subjects=[f"{subject}.>"])
    for payload in payloads:
        _ = await jetstream.publish_async(f"{subject}.site", payload)
    await asyncio.wait_for(jetstream.publish_async_completed(), DEADLINE)


@asynccontextmanager
async def agent(directory: Path, site: str, region: str, sample_interval: str = "1h") -> AsyncIterator[Path]:
    """Run the real agent on a fresh store; give the store's path."""
    config = _write_settings(directory, site, region, sample_interval)
    with (directory / "agent.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            Path(sys.executable).with_name("muster-agent"), "run", "--config", config, stderr=log
        )
        try:
            yield directory / "agent.db"
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()


def _write_settings(directory: Path, site: str, region: str, sample_interval: str) -> Path:
    directory.mkdir(parents=True)
    config = directory / "agent.toml"
    config.write_text(AGENT.format(site=site, region=region, directory=directory, sample_interval=sample_interval))
    return config


async def committed_through(store: Path, sequence: int) -> float:
    """Wait until an agent has committed a source sequence; give when that was seen (perf_counter)."""
    give_up_at = time.perf_counter() + DEADLINE
    while time.perf_counter() < give_up_at:
        if _position(store) >= sequence:
            return time.perf_counter()
        await asyncio.sleep(0.005)
    raise TimeoutError(f"{store}: not read through {sequence} within {DEADLINE} s")


def _position(store: Path) -> int:
    if not store.exists():
        return 0
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=5)) as database:
        row = database.execute("SELECT json_extract(state, '$.position.sequence') FROM block").fetchone()
    return int(row[0]) if row else 0

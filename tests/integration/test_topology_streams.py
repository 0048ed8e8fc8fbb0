"""Streams that are laid out freely, on real servers: made once, changed without surprise, refused where due."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from shared.embedded_nats import EmbeddedNats, ServerSettings
from tests.support.aggregator_command import ran, refused
from tests.support.regions import client_of, federation, holds, stream
from tests.support.waiting import until

ORDERS = '[[stream]]\nname = "ORDERS"\nsubjects = ["ORDERS.*"]\nstorage = "memory"\nmax_age = "1h"\n'
GATHER = """
[[stream]]
name = "ALL"
subjects = ["ALL"]
max_messages = 1000
deny_purge = true
description = "everything"
[[stream.source]]
name = "ORDERS"
start_sequence = 2
transforms = [{ source = "ORDERS.new", destination = "new" }, { source = "ORDERS.old" }]
[[stream.source]]
name = "RETURNS"
filter_subject = "RETURNS.new"
"""
REST = """
[[stream]]
name = "RETURNS"
subjects = ["RETURNS.*"]
[[stream]]
name = "COPY"
mirror_direct = true
[stream.mirror]
name = "ALL"
start_time = 2020-01-01T00:00:00.250Z
"""


@asynccontextmanager
async def one_hub(directory: Path) -> AsyncIterator[tuple[EmbeddedNats, Path, Client]]:
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=directory / "hub", domain="hub")) as hub:
        path = directory / "topology.toml"
        path.write_text(topology(hub, GATHER + REST + ORDERS))
        async with await client_of(hub) as client:
            yield hub, path, client


def topology(hub: EmbeddedNats, streams: str) -> str:
    return f'[hub]\nservers = ["{hub.url}"]\ndomain = "hub"\n{streams}'


async def test_free_streams_are_made_once_origins_first(tmp_path: Path) -> None:
    async with one_hub(tmp_path) as (_, path, client):
        told = await ran("apply", "--config", path)
        made = [line.split()[-1] for line in told.splitlines() if "create stream" in line]
        assert made == ["RETURNS", "ORDERS", "ALL", "COPY"]
        assert await ran("apply", "--config", path) == "nothing to do\n"
        for subject in ("ORDERS.new", "ORDERS.new", "ORDERS.old", "ORDERS.odd", "RETURNS.new", "RETURNS.old", "ALL"):
            await client.jetstream().publish(subject, b"")
        await until(partial(holds, client, "COPY", 4), "everything that is taken arrives")
        taken = [await client.jetstream().get_msg("COPY", sequence) for sequence in range(1, 5)]
        assert sorted(message.subject or "" for message in taken) == ["ALL", "ORDERS.old", "RETURNS.new", "new"]
        rows = json.loads(await ran("report", "--json", "--config", path))["replication"]
        assert {(row["stream"], row["source"]): (row["origin_last"], row["behind"]) for row in rows} == {
            ("ALL", "ORDERS"): (3, 0),
            ("ALL", "RETURNS"): (1, 0),
            ("COPY", "ALL"): (4, 0),
        }
        drawn, drawing = await ran("report", "--dot", "-", "--config", path), tmp_path / "streams.dot"
        assert drawn.startswith("digraph replication {")
        assert '"hub/ALL" -> "hub/COPY" [label="mirror' in drawn
        assert (await ran("report", "--dot", drawing, "--config", path)).startswith("STREAM")
        assert drawing.read_text() == drawn


async def test_a_changed_source_asks_for_force_since_it_takes_everything_again(tmp_path: Path) -> None:
    async with one_hub(tmp_path) as (hub, path, client):
        await ran("apply", "--config", path)
        for _ in range(3):
            await client.jetstream().publish("RETURNS.new", b"")
        await until(partial(holds, client, "ALL", 3), "the messages are gathered")
        changed = GATHER.replace('filter_subject = "RETURNS.new"', 'filter_subject = "RETURNS.*"')
        path.write_text(topology(hub, changed + REST + ORDERS))
        answer = await refused("apply", "--config", path)
        assert "takes nothing more from RETURNS of this domain (RETURNS.new)" in answer.stderr
        await ran("apply", "--force", "--config", path)
        await until(partial(holds, client, "ALL", 6), "the new source has taken everything again")
        assert await ran("plan", "--config", path) == "nothing to do\n"


async def test_a_mirror_becomes_a_stream_of_its_own_and_keeps_what_it_has(tmp_path: Path) -> None:
    async with one_hub(tmp_path) as (hub, path, client):
        await ran("apply", "--config", path)
        await client.jetstream().publish("ALL", b"")
        await until(partial(holds, client, "COPY", 1), "the mirror has it")
        alone = REST[: REST.index("mirror_direct")] + 'subjects = ["COPY"]\n'
        path.write_text(topology(hub, GATHER + alone + ORDERS))
        answer = await refused("apply", "--config", path)
        assert "update COPY, which takes nothing more from ALL and goes its own way, for good" in answer.stderr
        await ran("apply", "--force", "--config", path)
        await client.jetstream().publish("COPY", b"")
        assert (await stream(client, "COPY"))["state"]["messages"] == 2
        assert await ran("plan", "--config", path) == "nothing to do\n"


async def test_a_refused_copy_changes_nothing_until_it_is_allowed(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        path = servers.topology_path
        text = path.read_text() + '[[stream]]\nname = "WORK"\nplace = "us-east"\nsubjects = ["w"]\n'
        text += 'retention = "workqueue"\n[[stream]]\nname = "DONE"\n[[stream.source]]\nname = "WORK"\n'
        text += 'domain = "us-east"\n'
        path.write_text(text)
        answer = await refused("plan", "--config", path)
        assert "refused: hub: DONE shall copy WORK of us-east, a workqueue behind a leaf link" in answer.stdout
        answer = await refused("apply", "--config", path)
        assert answer.stderr.startswith("muster-aggregator: nothing was changed: hub: DONE shall copy WORK")
        async with await client_of(servers.hub) as hub:
            names = await asyncio.wait_for(hub.jetstream().streams_info(), 10)
            assert names == []
            path.write_text(text + "allow = true\n")
            await ran("apply", "--config", path)
            config: dict[str, Any] = (await stream(hub, "DONE"))["config"]
            assert config["sources"] == [{"name": "WORK", "external": {"api": "$JS.us-east.API", "deliver": ""}}]

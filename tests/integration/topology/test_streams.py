"""Streams that are laid out freely, on real servers: made once, changed without surprise, refused where due."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.nats.connection import request_json
from shared.nats.jetstream_api import create_stream
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.topology.aggregator_command import muster, ran, refused
from tests.support.topology.regions import client_of, federation, holds, stream
from tests.support.waiting import until

# After a consumer was missing, the server tries again after 10 s, 20 s, 30 s and so on.
RETRIED = 150.0
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
        # The server's own duplicate window, two minutes, must not be longer than messages are kept.
        path.write_text(path.read_text().replace('max_age = "1h"', 'max_age = "1m"'))
        assert await ran("apply", "--force", "--config", path) != "nothing to do\n"
        config = (await stream(client, "ORDERS"))["config"]
        assert config["max_age"] == config["duplicate_window"] == 60 * 10**9
        assert await ran("plan", "--config", path) == "nothing to do\n"


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


DURABLE = """
[[stream]]
name = "ALL"
[[stream.source]]
name = "ORDERS"
start_sequence = 2
filter_subject = "ORDERS.new"
[[stream.source]]
name = "ORDERS"
transforms = [{ source = "ORDERS.old", destination = "old" }]
"""


async def test_a_durable_source_is_noticed_and_healed_when_its_origin_or_its_consumer_is_made_anew_by_hand(
    tmp_path: Path,
) -> None:
    async with one_hub(tmp_path) as (hub, path, client):
        path.write_text(topology(hub, ORDERS + DURABLE))
        jetstream, config = client.jetstream(), ("--config", path)
        await ran("apply", *config)
        names = [name for name in await consumers(client, "ORDERS") if name.endswith("@hub")]
        assert len(names) == 2
        for subject in ("ORDERS.new", "ORDERS.new", "ORDERS.old", "ORDERS.odd", "ORDERS.new"):
            await jetstream.publish(subject, b"before")
        await until(partial(holds, client, "ALL", 3), "what is taken arrives")
        rows = json.loads(await ran("report", "--json", *config))["replication"]
        assert [(row["kind"], row["takes"], row["behind"]) for row in rows] == [
            ("durable source", ["ORDERS.new"], 0),
            ("durable source", ["ORDERS.old"], 0),
        ]
        assert await ran("plan", *config) == "nothing to do\n"

        old = (await stream(client, "ORDERS"))["config"]
        await request_json(client, "$JS.API.STREAM.DELETE.ORDERS", None, dict[str, Any], deadline=60)
        await create_stream(client, "$JS.API.STREAM.CREATE.ORDERS", old, dict[str, Any], deadline=60)
        for subject in ("ORDERS.new", "ORDERS.new", "ORDERS.old"):
            await jetstream.publish(subject, b"after")
        checked = await muster("check", *config)
        assert checked.returncode == 2
        for name in names:
            said = f"hub: ORDERS lacks the consumer {name}, ALL of hub takes nothing from it: apply makes it again"
            assert said in checked.stdout
        assert (await ran("plan", *config)).count("+ create consumer muster-ALL-") == 2
        await ran("apply", *config)
        # As at first: of the new ones the second and the third, since the first source starts at the second.
        await until(partial(holds, client, "ALL", 5), "what is new is taken, once", RETRIED)
        assert await ran("plan", *config) == "nothing to do\n"

        path.write_text(topology(hub, ORDERS))
        await request_json(client, "$JS.API.STREAM.DELETE.ALL", None, dict[str, Any], deadline=60)
        told = await ran("apply", *config)
        assert told.count("- delete consumer muster-ALL-") == 2
        assert await consumers(client, "ORDERS") == []


async def test_a_hub_that_gets_its_domain_renames_its_consumers_and_takes_nothing_twice(tmp_path: Path) -> None:
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="main")) as hub:
        path, config = tmp_path / "topology.toml", ("--config", tmp_path / "topology.toml")
        text = topology(hub, ORDERS + '[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "ORDERS"\n')
        async with await client_of(hub) as client:
            path.write_text(text.replace('domain = "hub"\n', ""))
            await ran("apply", *config)
            for _ in range(3):
                await client.jetstream().publish("ORDERS.new", b"before")
            await until(partial(holds, client, "ALL", 3), "what is taken arrives")
            path.write_text(text.replace('domain = "hub"', 'domain = "main"'))
            assert "durable through muster-ALL@hub -> durable through muster-ALL@main" in await ran("plan", *config)
            assert "applied 3 changes" in await ran("apply", *config)
            assert await consumers(client, "ORDERS") == ["muster-ALL@main"]
            for _ in range(2):
                await client.jetstream().publish("ORDERS.new", b"after")
            await until(partial(holds, client, "ALL", 5), "it goes on through the new consumer")
            bodies = [(await client.jetstream().get_msg("ALL", sequence)).data for sequence in range(1, 6)]
            assert bodies == [b"before"] * 3 + [b"after"] * 2
            assert await ran("plan", *config) == "nothing to do\n"


async def consumers(client: Client, name: str) -> list[str]:
    answer = await request_json(client, f"$JS.API.CONSUMER.NAMES.{name}", None, dict[str, Any], deadline=60)
    return answer["consumers"] or []


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
            names = await asyncio.wait_for(hub.jetstream().streams_info(), 60)
            assert names == []
            path.write_text(text + "allow = true\n")
            await ran("apply", "--config", path)
            config: dict[str, Any] = (await stream(hub, "DONE"))["config"]
            (source,) = config["sources"]
            assert source["consumer"]["name"] == "muster-DONE@hub"


async def test_a_stream_whose_server_is_down_hides_no_other_of_its_place(tmp_path: Path) -> None:
    """They come first; the plan, whose steps may rest upon them, does nothing there.

    Nor does it where one is only known by a consumer that it reads through, and does not stand in the file any more.
    """
    members = [Member(name, (f"on:{name}",)) for name in ("n1", "n2", "n3")]
    placed = '[stream.placement]\ntags = ["on:n3"]\n'
    lonely = f'[[stream]]\nname = "LONELY"\nsubjects = ["lonely"]\n{placed}'
    lonely += f'[[stream]]\nname = "ALL"\n{placed}'
    lonely += "".join(f'[[stream.source]]\nname = "{origin}"\n' for origin in ("LONELY", "ORDERS"))
    async with EmbeddedCluster("c", tmp_path, members) as cluster:
        path = tmp_path / "topology.toml"
        urls = json.dumps([url for name, url in zip(cluster.servers, cluster.urls, strict=True) if name != "n3"])
        hub, orders = f"[hub]\nservers = {urls}\n", f"{ORDERS}replicas = 3\n"
        path.write_text(hub + lonely + orders)

        async def is_laid_out() -> bool:
            return (await muster("apply", "--config", path)).returncode == 0

        # Servers that have just started may not know each other yet.
        await until(is_laid_out, "all streams are there")
        await cluster.servers["n3"].kill()

        async def is_down() -> bool:
            shown = json.loads((await muster("report", "--json", "--config", path)).stdout)
            rows = {row["name"]: row["error"].partition(":")[0] for row in shown["streams"]}
            # Of a stream that gave no answer no consumer is asked for: each would be waited for.
            assert not any(each["consumer"] for each in shown["silent"] if each["stream"] == "LONELY")
            return rows == {"ALL": "is not available", "LONELY": "is not available", "ORDERS": ""}

        await until(is_down, "two streams are not available, the other is")
        for streams, away in ((lonely, ("ALL", "LONELY")), ("", ("ALL",))):
            path.write_text(hub + streams + orders.replace("1h", "2h"))
            answer = await refused("apply", "--config", path)
            told, rest = answer.stdout.splitlines()
            assert told.startswith("hub: ALL is not available: ")
            assert [name for name in ("ALL", "LONELY") if f"{name} is not available: " in told] == list(away)
            assert rest == "nothing to do where there was an answer"

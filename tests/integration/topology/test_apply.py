"""On real servers: what is planned is made, what is made carries every byte to the hub, and outages pass."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nats.aio.client import Client

from aggregator.topology.apply import apply
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.plan.changes import Change, plan
from aggregator.topology.plan.text import untaken
from shared.nats.connection import request_json
from shared.settings import load_settings
from tests.support.topology.aggregator_command import ran, refused
from tests.support.topology.archiving import BODY, RETRIED, acknowledged, applied, archived_sequences, publish
from tests.support.topology.regions import REGIONS, answers, client_of, federation, holds, stream
from tests.support.waiting import until

HEADERS = {"Nats-Msg-Id": "one", "Muster-Reason": "new", "X-Odd": "Zürich, café"}


async def test_apply_is_idempotent_and_plan_agrees(tmp_path: Path) -> None:
    async with federation(tmp_path) as servers:
        assert "6 to create" in await ran("plan", "--config", servers.topology_path)
        assert (await applied(servers)).endswith("applied 6 changes\n")
        assert await ran("apply", "--config", servers.topology_path) == "nothing to do\n"
        assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"
        assert json.loads(await ran("plan", "--json", "--config", servers.topology_path))["changes"] == []


async def test_every_byte_and_header_reaches_the_report_once_from_both_regions(tmp_path: Path) -> None:
    async with federation(tmp_path) as servers:
        await applied(servers)
        for region in REGIONS:
            async with await client_of(servers.regions[region]) as agent:
                subject = f"fleet.{region}.dub1.nodes.registration"
                await agent.jetstream().publish(subject, BODY, headers={**HEADERS, "Region": region})
                await agent.jetstream().publish(subject, b"", headers={"Nats-Msg-Id": "two"})
        async with await client_of(servers.hub) as hub:
            for name in ("ARCHIVE", "REPORT"):
                await until(partial(holds, hub, name, 4), f"{name} holds everything")
                arrived = [await hub.jetstream().get_msg(name, sequence, direct=True) for sequence in range(1, 5)]
                by_subject: dict[str, list[Any]] = {}
                for message in arrived:
                    by_subject.setdefault(message.subject or "", []).append(message)
                for region in REGIONS:
                    full, empty = by_subject[f"fleet.{region}.dub1.nodes.registration"]
                    assert full.data == BODY
                    assert {key: full.headers[key] for key in HEADERS} == HEADERS
                    assert full.headers["Region"] == region
                    assert not empty.data
            for region in REGIONS:
                assert (await stream(hub, "FLEET", f"$JS.{region}.API"))["state"]["messages"] == 2


@pytest.mark.parametrize("fault", ["cut", "stall", "region killed", "hub killed"])
async def test_what_was_published_during_an_outage_arrives_once_after_it(tmp_path: Path, fault: str) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        link, region = servers.links["us-east"], servers.regions["us-east"]
        async with await client_of(region) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 10)
            await until(partial(holds, hub, "ARCHIVE", 10), "the first messages are archived")
            await acknowledged(hub, "us-east", 10)
            if fault == "cut":
                await link.cut()
            elif fault == "stall":
                link.stall()
            elif fault == "region killed":
                await region.kill()
                await region.start()
                await until(lambda: agent.is_connected, "the agent is back")
            else:
                await servers.hub.kill()
            await publish(agent, "us-east", 10)
            if fault == "hub killed":
                await servers.hub.start()
            await link.restore()
            await until(lambda: hub.is_connected, "the hub is back")
            await until(partial(holds, hub, "REPORT", 20), "everything is reported")


async def test_a_destructive_change_asks_for_force_and_changes_nothing_without(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "REPORT", 3), "the messages are reported")
            more = '[archive]\nstorage = "memory"\n[report]\nmax_age = "1d"\n'
            servers.topology_path.write_text(servers.topology_path.read_text() + more)
            answer = await refused("apply", "--config", servers.topology_path)
            assert answer.stderr == (
                "muster-aggregator: nothing was changed, this asks for --force:"
                " hub: replace ARCHIVE, which deletes its 3 messages;"
                " hub: replace REPORT, which deletes its 3 messages\n"
            )
            assert (await stream(hub, "REPORT"))["config"]["max_age"] == 60 * 86_400 * 10**9
            await ran("apply", "--force", "--config", servers.topology_path)
            assert (await stream(hub, "ARCHIVE"))["config"]["storage"] == "memory"
            await until(partial(holds, hub, "ARCHIVE", 3), "the new archive has taken everything again", RETRIED)
            await until(partial(holds, hub, "REPORT", 3), "and the new report mirrors it", RETRIED)


async def test_a_replacement_that_failed_after_its_deletion_is_ended_by_the_next_apply(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        text, config = servers.topology_path.read_text(), ("--config", servers.topology_path)
        async with await client_of(servers.regions["us-east"]) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "us-east", 3)
            await until(partial(holds, hub, "REPORT", 3), "the messages are reported")
            # One server keeps no three replicas: it refuses the archive when the old one is gone.
            servers.topology_path.write_text(text + '[archive]\nstorage = "memory"\nreplicas = 3\n')
            answer = await refused("apply", "--force", *config)
            assert answer.stderr.startswith("muster-aggregator: hub: cannot replace ARCHIVE: replicas > 1")
            shown = (await refused("report", *config)).stdout
            assert "hub: ARCHIVE is missing: apply creates it" in shown
            assert "hub: REPORT is missing: apply creates it" in shown
            servers.topology_path.write_text(text + '[archive]\nstorage = "memory"\n')
            told = await ran("apply", *config)
            assert "hub: + create stream ARCHIVE" in told
            await publish(agent, "us-east", 2)
            await until(partial(holds, hub, "REPORT", 5), "everything is archived again, and reported", RETRIED)
            assert set(await archived_sequences(hub)) == {1, 2, 3, 4, 5}
            assert await ran("plan", *config) == "nothing to do\n"


async def test_an_operators_own_settings_survive_an_update(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        async with await client_of(servers.hub) as hub:
            config = (await stream(hub, "ARCHIVE"))["config"]
            config |= {"description": "ours", "metadata": {"owner": "ops"}, "max_msg_size": 1 << 20}
            await request_json(hub, "$JS.API.STREAM.UPDATE.ARCHIVE", config, dict[str, Any], deadline=60)
            assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"
            await applied(servers, '[archive]\nmax_age = "10d"\n')
            config = (await stream(hub, "ARCHIVE"))["config"]
            assert config["max_age"] == 10 * 86_400 * 10**9
            assert (config["description"], config["metadata"]["owner"], config["max_msg_size"]) == (
                "ours",
                "ops",
                1 << 20,
            )


async def test_a_region_that_is_taken_away_leaves_no_consumer_behind(tmp_path: Path) -> None:
    async with federation(tmp_path) as servers:
        orders = '[[stream]]\nname = "ORDERS"\nsubjects = ["ORDERS"]\n'
        copy = '[[stream]]\nname = "COPY"\nplace = "eu-west"\n[[stream.source]]\nname = "ORDERS"\ndomain = "hub"\n'
        await applied(servers, orders + copy)
        text = servers.topology_path.read_text()
        told = await applied(servers, '[[relay]]\nname = "up"\nregion = "us-east"\n')
        assert told == "us-east: + create consumer muster-up-up on FLEET\napplied 1 change\n"
        assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"
        servers.topology_path.write_text(text)
        answer = await refused("apply", "--config", servers.topology_path)
        assert "us-east: delete muster-up-up on FLEET, which lets the relay up read nothing more" in answer.stderr
        servers.topology_path.write_text(text.replace('[[region]]\nname = "eu-west"\n', "").replace(copy, ""))
        answer = await refused("apply", "--config", servers.topology_path)
        assert "takes nothing more from FLEET of $JS.eu-west.API" in answer.stderr
        told = await ran("apply", "--force", "--config", servers.topology_path)
        assert "eu-west: - delete consumer muster-archive on FLEET" in told
        assert "us-east: - delete consumer muster-up-up on FLEET" in told
        async with await client_of(servers.regions["eu-west"]) as region:
            names = await request_json(region, "$JS.API.CONSUMER.NAMES.FLEET", None, dict[str, Any], deadline=20)
            assert not names["consumers"]
            # Its copy of the hub's stream goes on until somebody deletes it.
            assert await ran("plan", "--config", servers.topology_path) == "nothing to do\n"
            await request_json(region, "$JS.API.STREAM.DELETE.COPY", None, dict[str, Any], deadline=20)
        told = await ran("apply", "--config", servers.topology_path)
        assert told == "hub: - delete consumer muster-COPY@eu-west on ORDERS\napplied 1 change\n"
        servers.topology_path.write_text(text)
        assert "applied 4 changes" in await ran("apply", "--config", servers.topology_path)
        servers.topology_path.write_text(text.replace('[[region]]\nname = "eu-west"\n', "").replace(copy, ""))
        await servers.regions["eu-west"].kill()
        answer = await refused("apply", "--config", servers.topology_path)
        assert "delete muster-COPY@eu-west on ORDERS, which gives COPY of eu-west nothing more" in answer.stderr
        told = await ran("apply", "--force", "--config", servers.topology_path)
        said = "eu-west: does not answer, so muster-archive on FLEET stays: once it is back, nats --js-domain eu-west"
        assert f"{said} consumer rm FLEET muster-archive" in told
        assert await ran("apply", "--config", servers.topology_path) == "nothing to do\n"


async def test_a_region_that_is_away_is_said_to_be_and_the_rest_is_done(tmp_path: Path) -> None:
    async with federation(tmp_path) as servers:
        await servers.regions["eu-west"].kill()
        config = ("--config", servers.topology_path)
        answer = await refused("apply", *config)
        assert "hub: + create stream REPORT" in answer.stdout
        assert "eu-west: $JS.eu-west.API.INFO: nobody answers there" in answer.stdout
        shown = json.loads((await refused("report", "--json", *config)).stdout)
        assert [(row["place"], row["error"]) for row in shown["streams"]] == [
            ("us-east", ""),
            ("eu-west", "unreachable"),
            ("hub", ""),
            ("hub", ""),
        ]
        await servers.regions["eu-west"].start()
        async with await client_of(servers.hub) as hub, await client_of(servers.regions["eu-west"]) as agent:
            await until(partial(answers, hub, "eu-west"), "the region is back")
            assert "applied 4 changes" in await ran("apply", *config)
            await publish(agent, "eu-west", 3)
            await until(partial(holds, hub, "REPORT", 3), "its messages are reported", RETRIED)


async def test_an_unreachable_hub_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "topology.toml"
    path.write_text('[hub]\nservers = ["nats://127.0.0.1:1"]\n[[region]]\nname = "us-east"\n')
    answer = await refused("apply", "--config", path)
    assert answer.stdout.splitlines() == [
        "us-east, hub: cannot connect within 5 s to 127.0.0.1:1: connection refused, nothing listens there",
        "nothing to do where there was an answer",
    ]


async def sealed(client: Client, name: str, api: str) -> None:
    config = (await stream(client, name, api))["config"]
    await request_json(client, f"{api}.STREAM.UPDATE.{name}", config | {"sealed": True}, dict[str, Any], deadline=60)


async def test_a_change_that_a_sealed_stream_does_not_take_is_not_told_as_applied(tmp_path: Path) -> None:
    """The server answers OK to an update of it. What else is planned is carried out."""
    async with federation(tmp_path, ("us-east",)) as servers:
        await applied(servers)
        path = servers.topology_path
        path.write_text(path.read_text() + '[fleet]\nmax_age = "5d"\n[report]\nmax_age = "7d"\n')
        settings = load_settings(path, TopologySettings)
        wanted, done = desired(settings), list[Change]()
        async with await client_of(servers.hub) as hub, connections(settings) as opened:
            todo = plan(wanted, await observe(wanted, opened, with_orphans=True))
            await sealed(hub, "FLEET", "$JS.us-east.API")
            now = (await stream(hub, "FLEET", "$JS.us-east.API"))["config"] | {"max_age": 5 * 86_400 * 10**9}
            changes = [
                msgspec.structs.replace(each, config=now) if each.stream == "FLEET" else each for each in todo.changes
            ]
            todo = msgspec.structs.replace(todo, changes=tuple(changes))
            (missed,) = await apply(todo, opened, done.append)
            line = untaken(*missed)
            assert line.startswith(
                "us-east: FLEET: the server answered OK to update and keeps max_age: for ever (asked for: 5d)"
            )
            assert [change.stream for change in done] == ["REPORT"]

            path.write_text(path.read_text().replace("7d", "8d"))
            said = "us-east: FLEET is sealed: it takes neither messages nor changes"
            planned = await refused("plan", "--config", path)
            assert (said in planned.stdout, "1 to update" in planned.stdout) == (True, True)
            answer = await refused("apply", "--config", path)
            assert (said in answer.stdout, "applied 1 change\n" in answer.stdout) == (True, True)
            assert (await stream(hub, "REPORT"))["config"]["max_age"] == 8 * 86_400 * 10**9
            await request_json(hub, "$JS.us-east.API.STREAM.DELETE.FLEET", None, dict[str, Any], deadline=60)
            await applied(servers)
            assert (await stream(hub, "FLEET", "$JS.us-east.API"))["config"]["max_age"] == 5 * 86_400 * 10**9

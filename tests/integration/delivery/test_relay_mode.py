"""Relay mode between real servers: a fleet's registrations go up sampled again, as they are, and nothing else does."""

import asyncio
import re
import urllib.request
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.core.block_state import BlockState
from shared.identifiers import BlockId, Incarnation
from shared.instants import SECOND
from shared.subjects import registration_subject, watermark_subject
from shared.wire import origin_header
from tests.support.agent.agent_process import Deployment, deployed, free_address
from tests.support.agent.mode_settings import ABOVE_BLOCKS, block
from tests.support.delivery.fleet_region import Stored
from tests.support.observability.exposition import parsed
from tests.support.waiting import until

TABLES = '[stream.sender]\njson_path = "sender"\n[stream.policy]\nsample_interval = "{interval}"\nretire_after = "1d"'
HOURLY = TABLES.format(interval="1h")
SITES = [BlockId("eu-west", site, "nodes") for site in ("dub1", "lon1")]
PAST = Incarnation(1_700_000_000 * SECOND, 1_700_000_000_000)
PATIENCE = 60.0


def relaying(tables: str = HOURLY, source: str = "") -> str:
    return ABOVE_BLOCKS + block("up", "relay", tables, stream="LOWER", source=source)


async def make_lower_stream(deployment: Deployment) -> None:
    await deployment.site.api("STREAM.CREATE.LOWER", {"name": "LOWER", "subjects": ["fleet.>"]})


async def lower_messages(deployment: Deployment) -> int:
    info: dict[str, Any] = await deployment.site.api("STREAM.INFO.LOWER")
    return int(info["state"]["messages"])


async def register(deployment: Deployment, sequence: int, *senders: str) -> None:
    """Let senders of all sites register, as sequence ``sequence`` of their sites' own streams."""
    for block_id in SITES:
        for place, sender in enumerate(senders):
            body = msgspec.json.encode({"sender": sender, "number": sequence})
            headers = {
                "Muster-Origin": origin_header(block_id, PAST, sequence * 100 + place),
                "Choria-SR-Source": f"R {sequence} {block_id.site} nodes 1",
                "Muster-Reason": "interval",
                "X-Own": "kept",
            }
            await deployment.site.client.jetstream().publish(registration_subject(block_id), body, headers=headers)


async def arrived(deployment: Deployment, count: int) -> list[Stored]:
    async def there() -> bool:
        return await deployment.region.stored_count() >= count

    await until(there, f"{count} records are in the region", PATIENCE)
    return await deployment.region.stored()


async def counters(deployment: Deployment) -> dict[str, dict[str, int]]:
    blocks = (await deployment.agent.status_json()).get("blocks", [])
    return msgspec.convert(blocks[0]["state"], BlockState).counters if blocks else {}


async def until_counted(deployment: Deployment, what: str, causes: dict[str, int]) -> None:
    async def is_counted() -> bool:
        return (await counters(deployment)).get(what) == causes

    await until(is_counted, f"{what}: {causes}", PATIENCE)


async def test_each_origin_goes_up_once_an_interval_and_as_it_is(tmp_path: Path) -> None:
    async with deployed(tmp_path, relaying()) as deployment:
        await make_lower_stream(deployment)
        for sequence in (1, 2, 3):
            await register(deployment, sequence, "a", "b")
        deployment.agent.start()
        await until_counted(deployment, "skipped", {"sampled": 8})
        records = await arrived(deployment, 4)
        assert [(record.subject, record.payload) for record in records] == [
            (registration_subject(block_id), msgspec.json.encode({"sender": sender, "number": 1}))
            for block_id in SITES
            for sender in "ab"
        ]
        for record in records:
            del record.headers["Nats-Msg-Id"]
        assert records[3].headers == {
            "Muster-Origin": origin_header(SITES[1], PAST, 101),
            "Choria-SR-Source": "R 1 lon1 nodes 1",
            "Muster-Reason": "interval",
            "X-Own": "kept",
        }


async def test_what_went_up_is_remembered_by_an_agent_that_was_killed(tmp_path: Path) -> None:
    async with deployed(tmp_path, relaying()) as deployment:
        await make_lower_stream(deployment)
        await register(deployment, 1, "a", "b")
        deployment.agent.start()
        await arrived(deployment, 4)
        deployment.agent.kill()
        await register(deployment, 2, "a", "b")
        await register(deployment, 3, "c")
        deployment.agent.start()
        await until_counted(deployment, "skipped", {"sampled": 4})
        records = await arrived(deployment, 6)
        assert [msgspec.json.decode(record.payload)["sender"] for record in records] == ["a", "b", "a", "b", "c", "c"]


async def test_an_origin_that_fits_in_no_store_is_counted_and_stops_nobody(tmp_path: Path) -> None:
    async with deployed(tmp_path, relaying()) as deployment:
        await make_lower_stream(deployment)
        huge = ["99999999999999999999", "9" * 5_000]
        hostile = [f"{SITES[0]}.{PAST}.{number}" for number in huge]
        hostile += [f"{SITES[0]}.{number}-1.1" for number in huge]
        for origin in hostile:
            await deployment.site.client.jetstream().publish(
                registration_subject(SITES[0]), b'{"sender":"a"}', headers={"Muster-Origin": origin}
            )
        await register(deployment, 1, "b")
        deployment.agent.start()
        await until_counted(deployment, "rejected", {"no_origin": len(hostile)})
        records = await arrived(deployment, 2)
        assert [msgspec.json.decode(record.payload)["sender"] for record in records] == ["b", "b"]


async def test_origins_are_listed_and_none_of_them_falls_stale(tmp_path: Path) -> None:
    async with deployed(tmp_path, relaying()) as deployment:
        await make_lower_stream(deployment)
        await register(deployment, 1, "a")
        deployment.agent.start()
        await until_counted(deployment, "forwarded", {"new": 2})
        config = str(deployment.agent.config)
        code, output, errors = await deployment.agent.run_command("senders", "--config", config)
        assert (code, errors) == (0, "")
        assert "eu-west.dub1.nodes.a" in output
        assert "eu-west.lon1.nodes.a" in output
        assert " in " not in output.replace("stale in all", "")
        assert "2 of 2 senders match; 2 heard, 0 stale in all" in output

        explain = ("explain", "eu-west.dub1.nodes.a", "--config", config)
        code, output, errors = await deployment.agent.run_command(*explain)
        assert (code, errors) == (0, "")
        said = " ".join(output.split())
        assert re.search(
            r" if heard forwarded( from \S+ \([\w ]+\) on)? settings retire_after 1d, sample_interval 1h", said
        )
        assert re.search(r" if not heard forgotten at \S+ \(in [\w ]+\); who is stale is said by its site if ", said)
        assert "stale_after" not in output


async def test_samples_go_on_as_time_does(tmp_path: Path) -> None:
    async with deployed(tmp_path, relaying(TABLES.format(interval="1s"))) as deployment:
        await make_lower_stream(deployment)
        deployment.agent.start()
        numbers = iter(range(1, 1_000_000))

        async def has_three_samples() -> bool:
            await register(deployment, next(numbers), "a")
            return await deployment.region.stored_count() >= 3 * len(SITES)

        await until(has_three_samples, "three samples of each origin went up", PATIENCE)
        assert await lower_messages(deployment) > 3 * len(SITES)


async def test_advisories_and_watermarks_stay_where_they_are(tmp_path: Path) -> None:
    source = 'filter_subject = "fleet.>"'
    async with deployed(tmp_path, relaying(source=source)) as deployment:
        await make_lower_stream(deployment)
        await deployment.site.client.jetstream().publish(watermark_subject(SITES[0]), b"{}")
        await register(deployment, 1, "a")
        deployment.agent.start()
        records = await arrived(deployment, 2)
        await until_counted(deployment, "skipped", {"watermark": 1})
        assert {record.subject for record in records} == {registration_subject(block_id) for block_id in SITES}


async def test_a_source_header_that_names_no_instant_is_an_age_that_nobody_knows(tmp_path: Path) -> None:
    listen = free_address()
    async with deployed(tmp_path, relaying(), listen) as deployment:
        await make_lower_stream(deployment)
        await deployment.region.link.cut()
        headers = {"Muster-Origin": origin_header(SITES[0], PAST, 1), "Choria-SR-Source": "x"}
        body = b'{"sender":"a"}'
        await deployment.site.client.jetstream().publish(registration_subject(SITES[0]), body, headers=headers)
        deployment.agent.start()

        async def waits() -> bool:
            status = await deployment.agent.status_json()
            return bool(status) and status["outbox"]["registrations"]["rows"] == 1

        await until(waits, "the registration waits, and status shows it", PATIENCE)
        code, output, errors = await deployment.agent.run_command("outbox", "--config", str(deployment.agent.config))
        assert (code, errors) == (0, "")
        assert output.splitlines()[1].split()[-2:] == ["unknown", "unknown"]

        def scraped() -> str:
            with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as response:
                return str(response.read().decode())

        page = parsed(await asyncio.to_thread(scraped))
        site = (("region", "eu-west"), ("site", "dub1"))
        waiting = (*site, ("lane", "registrations"))
        assert page["muster_agent_outbox_rows", waiting] == 1
        assert ("muster_agent_outbox_oldest_age_seconds", waiting) not in page


async def test_a_relay_into_the_stream_that_it_reads_comes_to_rest(tmp_path: Path) -> None:
    settings = relaying().replace("{upstream}", "{source}")
    async with deployed(tmp_path, settings) as deployment:
        await make_lower_stream(deployment)
        await register(deployment, 1, "a")
        deployment.agent.start()
        await until_counted(deployment, "skipped", {"repeated": 2})
        assert await lower_messages(deployment) == 4

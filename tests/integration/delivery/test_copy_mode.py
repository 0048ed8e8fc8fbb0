"""Copy mode: every message of a stream reaches the region once, whole and in order, and nothing is said of senders."""

import asyncio
import random
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState
from shared.identifiers import BlockId, Incarnation
from shared.instants import parse_instant
from shared.wire import parse_origin_header
from tests.support.agent.agent_process import Deployment, deployed
from tests.support.agent.mode_settings import ABOVE_BLOCKS, block
from tests.support.delivery.fleet_region import Stored
from tests.support.waiting import until

COPYING = ABOVE_BLOCKS + block("all", "copy")
BELOW = "fleet.eu-west.dub1.all.copy."
PATIENCE = 60.0


async def copied(deployment: Deployment, count: int) -> list[Stored]:
    """Wait until the region holds so many records; give them all."""

    async def there() -> bool:
        return await deployment.region.stored_count() >= count

    await until(there, f"{count} records are in the region", PATIENCE)
    return await deployment.region.stored()


async def counters(deployment: Deployment) -> dict[str, dict[str, int]]:
    """Give the block's counters as committed."""
    blocks = (await deployment.agent.status_json()).get("blocks", [])
    return msgspec.convert(blocks[0]["state"], BlockState).counters if blocks else {}


async def test_every_message_is_copied_whole_and_in_order(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        site = deployment.site
        await site.publish(*(b"%d" % number for number in range(300)))
        await site.publish(b"\x00\xff no text", subject="registration.other", headers={"X-Own": "kept"})
        last = await site.publish(b"", subject="registration.empty", headers={"Nats-Msg-Id": "theirs"})
        deployment.agent.start()
        records = await copied(deployment, last)
        assert [record.payload for record in records[:300]] == [b"%d" % number for number in range(300)]
        assert [(record.subject, record.payload) for record in records[300:]] == [
            (f"{BELOW}registration.other", b"\x00\xff no text"),
            (f"{BELOW}registration.empty", b""),
        ]
        assert records[300].headers["X-Own"] == "kept"
        assert records[301].headers["Nats-Msg-Id"] != "theirs"
        assert {record.subject for record in records[:300]} == {f"{BELOW}registration.nodes"}


async def test_a_copy_says_where_it_comes_from(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        await deployment.site.publish(b"a", b"b")
        deployment.agent.start()
        record = (await copied(deployment, 2))[1]
        facts = await deployment.site.api("STREAM.INFO.REGISTRATION")
        stored = await deployment.site.stored(2)
        block_id, incarnation, sequence = parse_origin_header(record.headers["Muster-Origin"])
        assert (block_id, sequence) == (BlockId("eu-west", "dub1", "all"), 2)
        assert incarnation == Incarnation(parse_instant(facts["created"]), incarnation.epoch_ms)
        milliseconds = parse_instant(stored.time) // 1000
        assert record.headers["Choria-SR-Source"] == f"REGISTRATION 2 dub1 all {milliseconds}"
        assert record.headers["Muster-Reason"] == "copy"


async def test_nothing_is_lost_doubled_or_reordered_when_the_agent_is_killed(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        total = 0
        for _ in range(4):
            deployment.agent.start()
            await deployment.site.publish(*(b"%d" % number for number in range(total, total + 300)))
            total += 300
            # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
            await asyncio.sleep(random.uniform(0.1, 1.0))
            deployment.agent.kill()
        deployment.agent.start()
        records = await copied(deployment, total)
        assert [record.payload for record in records] == [b"%d" % number for number in range(total)]


async def test_copies_survive_a_cut_link_in_order(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        deployment.agent.start()
        await deployment.site.publish(b"first")
        await copied(deployment, 1)
        await deployment.region.link.cut()
        await deployment.site.publish(*(b"%d" % number for number in range(500)))
        await deployment.region.link.restore()
        records = await copied(deployment, 501)
        assert [record.payload for record in records] == [b"first", *(b"%d" % number for number in range(500))]


async def test_nothing_is_said_of_senders(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        deployment.agent.start()
        async with deployment.senders(["a", "b"]):
            records = await copied(deployment, 20)
        assert {record.subject for record in records} == {f"{BELOW}registration.nodes"}


async def test_copies_go_below_another_prefix_less_what_is_removed(tmp_path: Path) -> None:
    target = '[stream.target]\nprefix = "fleet.nodes"\nremove = "registration"'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", target)) as deployment:
        for subject in ("registration.a", "registration.b.registration.c"):
            await deployment.site.publish(b"body", subject=subject)
        deployment.agent.start()
        records = await copied(deployment, 2)
        assert [record.subject for record in records] == ["fleet.nodes.a", "fleet.nodes.b.c"]


async def test_a_message_whose_subject_nothing_is_left_of_is_counted(tmp_path: Path) -> None:
    target = '[stream.target]\nprefix = "fleet.nodes"\nremove = "registration.a"'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", target)) as deployment:
        await deployment.site.publish(b"lost", subject="registration.a")
        await deployment.site.publish(b"kept", subject="registration.b")
        deployment.agent.start()
        records = await copied(deployment, 1)
        assert [record.payload for record in records] == [b"kept"]
        wanted = {"rejected": {"subject_not_usable": 1}, "forwarded": {"copy": 1}}

        async def are_counted() -> bool:
            return await counters(deployment) == wanted

        await until(are_counted, f"the counters are {wanted}", PATIENCE)


async def test_what_is_older_than_max_age_is_withheld_and_counted(tmp_path: Path) -> None:
    policy = '[stream.policy]\nmax_age = "2s"'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", policy)) as deployment:
        await deployment.site.publish(b"old", b"older")
        stored_at = parse_instant((await deployment.site.stored(2)).time)

        async def is_old() -> bool:
            return await deployment.site_time() > stored_at + 2_000_000

        await until(is_old, "both messages are old", PATIENCE)
        deployment.agent.start()

        async def are_withheld() -> bool:
            return (await counters(deployment)).get("withheld") == {"max_age": 2}

        await until(are_withheld, "both messages are withheld", PATIENCE)
        assert await deployment.region.stored_count() == 0


async def test_what_retention_takes_of_other_subjects_is_no_gap(tmp_path: Path) -> None:
    source = 'filter_subject = "registration.wanted"'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", source=source)) as deployment:
        await deployment.site.publish(b"1", subject="registration.wanted")
        last = await deployment.site.publish(*(b"other" for _ in range(9)))
        deployment.agent.start()

        async def is_examined() -> bool:
            blocks = (await deployment.agent.status_json()).get("blocks", [])
            return bool(blocks) and blocks[0]["state"]["examined_sequence"] == last

        await until(is_examined, "the store knows how far it has looked", PATIENCE)
        deployment.agent.kill()
        await deployment.site.api("STREAM.PURGE.REGISTRATION", {"seq": last})
        await deployment.site.publish(b"2", subject="registration.wanted")
        deployment.agent.start()
        records = await copied(deployment, 2)
        assert [record.payload for record in records] == [b"1", b"2"]
        assert "blind" not in await counters(deployment)


async def test_copying_begins_where_start_says(tmp_path: Path) -> None:
    async with deployed(tmp_path, COPYING) as deployment:
        await deployment.site.publish(b"1", b"2", b"3")
        second = (await deployment.site.stored(2)).time
        starts = {"all": "all", "fresh": "new", "sequence": "sequence:2", "time": f"time:{second}", "delta": "delta:1h"}
        blocks = "".join(block(name, "copy", source=f'start = "{start}"') for name, start in starts.items())
        settings = (ABOVE_BLOCKS + blocks).format(
            upstream=deployment.region.link.url, source=deployment.site.link.url, listen=""
        )
        deployment.agent.config.write_text(settings)
        deployment.agent.start()

        async def all_have_begun() -> bool:
            known = (await deployment.agent.status_json()).get("blocks", [])
            return {each["name"] for each in known} == set(starts)

        await until(all_have_begun, "every block knows its start", PATIENCE)
        await deployment.site.publish(b"4")
        records = await copied(deployment, 4 + 1 + 3 + 3 + 4)
        copies = {name: [each.payload for each in records if f".{name}.copy." in each.subject] for name in starts}
        assert copies == {
            "all": [b"1", b"2", b"3", b"4"],
            "fresh": [b"4"],
            "sequence": [b"2", b"3", b"4"],
            "time": [b"2", b"3", b"4"],
            "delta": [b"1", b"2", b"3", b"4"],
        }


async def test_only_what_passes_the_filter_is_copied(tmp_path: Path) -> None:
    source = 'filter_subject = "registration.wanted.>"\nstart = "sequence:2"'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy", source=source)) as deployment:
        for number, subject in enumerate(("wanted.a", "wanted.b", "other.c", "wanted.d")):
            await deployment.site.publish(b"%d" % number, subject=f"registration.{subject}")
        deployment.agent.start()
        records = await copied(deployment, 2)
        assert [record.payload for record in records] == [b"1", b"3"]

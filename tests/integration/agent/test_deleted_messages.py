"""What a server lets go is no silence of a sender's, and its own messages that stand for it are no sign of life."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from tests.support.agent.agent_process import STALE_AFTER, Deployment, deployed
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.agent_within import agent_within
from tests.support.agent.told_agent import until_running
from tests.support.nats.source_site import STREAM
from tests.support.waiting import until

MARKS_WHAT_EXPIRES = {
    "max_age": 8_000_000_000,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 60_000_000_000,
    "allow_rollup_hdrs": True,
}


async def test_a_silent_node_does_not_recover_by_the_marker_of_its_last_word(tmp_path: Path) -> None:
    async with agent_stage(tmp_path) as stage:
        await stage.site.delete_stream()
        await stage.site.make_stream(**MARKS_WHAT_EXPIRES)
        settings = stage.config_path.read_text().replace('json_path = "sender"', "subject_token = 2")
        stage.config_path.write_text(settings)
        async with agent_within(stage.config_path), registering(stage.site, "a", "b") as nodes:
            await until(lambda: told(stage, AdvisoryKind.NEW, {"a", "b"}), "both are known")
            nodes.fall_silent("b")
            await until(lambda: told(stage, AdvisoryKind.STALE, {"b"}), "b is stale")
            marked_at = 0

            async def is_marked() -> bool:
                nonlocal marked_at
                last = await stage.site.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": "registration.b"})
                marked_at = last["message"]["seq"] if "hdrs" in last["message"] else 0
                return marked_at > 0

            await until(is_marked, "the server has marked that its last word expired")

            async def is_read() -> bool:
                return any(mark.sequence > marked_at for mark in await stage.region.watermarks())

            await until(is_read, "the marker has been read")
            assert not await stage.region.senders_with(AdvisoryKind.RECOVERED)
            counters = (await stage.region.watermarks())[-1].counters
            assert counters["probes"]["delete_marker"] == 1


async def test_what_a_damaged_block_of_the_server_held_is_time_that_nobody_saw(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:
        site, agent = deployment.site, deployment.agent
        await until_running(deployment)
        await agent.stopped()
        # A block has 8 MB.
        body = b'{"sender":"node0.example.net","padding":"%b"}' % (b"x" * 500_000)
        await site.publish(*[body] * 40)
        await site.server.stop()
        directory = site.server.settings.store_dir / "jetstream"
        _, damaged, *_ = sorted(directory.rglob("msgs/*.blk"), key=lambda block: int(block.stem))
        damaged.write_bytes(bytes(damaged.stat().st_size))
        for index in directory.rglob("index.db"):
            index.unlink()
        await site.server.start()
        stored_by = await deployment.site_time()

        async def waits_for_long() -> bool:
            return await deployment.site_time() > stored_by + STALE_AFTER

        # What waits for less time than ``blind_after`` proves enough by what is left.
        await until(waits_for_long, "what was stored is older than an agent looks back")
        agent.start()

        async def is_counted() -> bool:
            (known,) = (await agent.status_json())["blocks"]
            return bool(known["counters"].get("blind", {}).get("gap"))

        await until(is_counted, "what is lost is a gap")
        line = "it let go of messages before they were read: retention, or a damaged file"
        await until(lambda: line in agent.log, "the log says so")


async def told(stage: Stage, kind: AdvisoryKind, senders: set[str]) -> bool:
    return set(await stage.region.senders_with(kind)) == senders


@asynccontextmanager
async def registering_beside(deployment: Deployment, headers: Mapping[str, str]) -> AsyncIterator[None]:
    """Let one node register whose messages the stream lets go, and one whose messages stay, each on its subject."""
    client = deployment.site.client

    async def register() -> None:
        for number in count():
            await client.publish("registration.a", b'{"sender":"a"}', headers=dict(headers) or None)
            await client.publish(f"registration.b.{number}", b'{"sender":"b"}')
            await asyncio.sleep(0.25)

    task = asyncio.create_task(register())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.parametrize(
    ("config", "headers"),
    [
        ({"max_msgs_per_subject": 1}, {}),
        ({"allow_msg_ttl": True}, {"Nats-TTL": "1s"}),
        ({"allow_rollup_hdrs": True}, {"Nats-Rollup": "sub"}),
        ({}, {}),
    ],
    ids=["limit of a subject", "time to live", "rollup", "purge of a subject"],
)
async def test_a_living_node_whose_messages_went_unread_while_others_stayed_is_not_accused(
    tmp_path: Path, config: dict[str, object], headers: dict[str, str]
) -> None:
    async with deployed(tmp_path) as deployment:
        site, agent = deployment.site, deployment.agent
        await site.delete_stream()
        await site.make_stream(**config)
        agent.start()
        async with registering_beside(deployment, headers):
            async with deployment.senders(["dies"], subject="registration.dies"):

                async def all_are_new() -> bool:
                    return len(await deployment.advisories()) >= 3

                await until(all_are_new, "all are new")
            agent.kill()
            away_through = await deployment.site_time() + 2 * STALE_AFTER

            async def has_passed() -> bool:
                return await deployment.site_time() > away_through

            await until(has_passed, "the agent was away for long")
            if not config:
                await site.api(f"STREAM.PURGE.{STREAM}", {"filter": "registration.a"})
            agent.start()

            async def is_told() -> bool:
                return any(
                    each.value == "dies" and each.kind is AdvisoryKind.STALE for each in await deployment.advisories()
                )

            await until(is_told, "who died is told")
            mark = await deployment.until_observed(away_through)
            assert mark.observed_since_us > away_through - 2 * STALE_AFTER, "what is missing may be anybody's"
        told = [(each.value, each.kind) for each in (await deployment.advisories())[3:]]
        assert told == [("dies", AdvisoryKind.STALE)]


async def test_a_living_node_whose_messages_others_replace_as_they_come_is_not_accused(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:
        site, agent = deployment.site, deployment.agent
        agent.start()
        await site.publish(b'{"sender":"first"}')
        await until(lambda: are_told(deployment, 1), "the first is known")
        await site.update_stream(max_msgs_per_subject=1)
        replacing = [b'{"sender":"first"}'] + [b'{"sender":"last"}'] * 50

        async def register() -> None:
            while True:
                for body in replacing:
                    await site.client.publish("registration.nodes", body)
                await asyncio.sleep(0.25)

        task = asyncio.create_task(register())
        try:
            since = await deployment.site_time()

            # What the limit takes at the front is a gap, what it takes from the middle a hole; either may be over
            # before anybody asks for the status.
            await until(lambda: "before they were read" in agent.log, "the log says why nothing is known")

            async def has_passed() -> bool:
                return await deployment.site_time() > since + 2 * STALE_AFTER

            await until(has_passed, "the first was not read for long")
        finally:
            task.cancel()
            await asyncio.wait({task})
        assert {each.kind for each in await deployment.advisories()} == {AdvisoryKind.NEW}


async def are_told(deployment: Deployment, count: int) -> bool:
    return len(await deployment.advisories()) >= count

"""What the closest peer gets wrong, numbered, and what agents that buffer get wrong: tests that we pass.

Two stand elsewhere. 4, copies without ids, or with random ones: ``integration/delivery/test_copy_mode.py``; 9, ids
of events drawn at random: ``unit/core/test_records.py``.
"""

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from edge_agent.core.policy import Policy
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, SECOND
from tests.support.agent.agent_process import (
    SETTINGS,
    STALE_AFTER,
    UNHURRIED,
    UNHURRIED_STALE_AFTER,
    Deployment,
    deployed,
)
from tests.support.agent.mortal_agent import MortalAgent
from tests.support.core.scripted_stream import ScriptedStream
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(10)]
DEADLINE = 180.0


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path) as deployment:
        yield deployment


def registration(sender: str, **more: object) -> bytes:
    return json.dumps({"sender": sender, **more}).encode()


async def told(deployment: Deployment, kind: AdvisoryKind) -> list[str]:
    return [advisory.value for advisory in await deployment.advisories() if advisory.kind is kind]


def all_told(deployment: Deployment, kind: AdvisoryKind, senders: Sequence[str]) -> Callable[[], object]:
    async def are_told() -> bool:
        return set(senders) <= set(await told(deployment, kind))

    return are_told


async def forwarded(deployment: Deployment) -> list[bytes]:
    return [record.payload for record in await deployment.region.stored() if record.subject.endswith(".registration")]


def has_arrived(deployment: Deployment, payload: bytes) -> Callable[[], object]:
    async def is_there() -> bool:
        return payload in await forwarded(deployment)

    return is_there


# The closest peer


@pytest.mark.parametrize("rule", ['json_path = "sender"', 'header = "X-Sender"', "subject_token = 2", "subject = true"])
async def test_1_sampling_works_by_every_way_of_naming_senders(tmp_path: Path, rule: str) -> None:
    """The peer samples by a JSON field alone: with a header or a subject token its limiter never starts."""
    async with deployed(tmp_path, SETTINGS.replace('json_path = "sender"', rule)) as deployment:
        deployment.agent.start()
        for _ in range(20):
            for name in ("a", "b"):
                await deployment.site.client.publish(
                    f"registration.{name}", registration(name), headers={"X-Sender": name}
                )
        await deployment.site.publish(registration("end"), subject="registration.end", headers={"X-Sender": "end"})
        await until(has_arrived(deployment, registration("end")), "the last sender's has arrived", DEADLINE)
        assert sorted(await forwarded(deployment)) == sorted(registration(name) for name in ("a", "b", "end"))

        async def are_told() -> bool:
            return len(await told(deployment, AdvisoryKind.NEW)) == 3

        await until(are_told, "all are told", DEADLINE)


async def test_2_a_force_field_that_is_false_forces_nothing(tmp_path: Path) -> None:
    """The peer asks whether the field is there, not whether it is true."""
    settings = SETTINGS.replace("[stream.policy]", '[stream.policy]\nforce_path = "urgent"\nsize_trigger = 0')
    async with deployed(tmp_path, settings) as deployment:
        deployment.agent.start()
        first = registration("a")
        calm = [registration("a", urgent=value) for value in (False, None, "true", 1, [True])]
        urgent = registration("a", urgent=True)
        await deployment.site.publish(first)
        await until(has_arrived(deployment, first), "the first has arrived", DEADLINE)
        await deployment.site.publish(*calm, urgent)
        await until(has_arrived(deployment, urgent), "what is urgent has arrived", DEADLINE)
        assert await forwarded(deployment) == [first, urgent]


async def test_3_a_changed_size_that_could_not_be_delivered_is_delivered_later(deployment: Deployment) -> None:
    """The peer takes note of the new size first: a copy that fails once is lost until the size changes again."""
    small, large = registration("a"), registration("a", facts="x" * 4_000)
    deployment.agent.start()
    await deployment.site.publish(small)
    await until(has_arrived(deployment, small), "the first has arrived", DEADLINE)
    await deployment.region.link.cut()
    await deployment.site.publish(large)

    async def is_read() -> bool:
        status = await deployment.agent.status_json()
        return bool(status["blocks"]) and status["blocks"][0]["state"]["counters"]["valid"] == {"registrations": 2}

    await until(is_read, "the large one is read", DEADLINE)
    deployment.agent.kill()
    deployment.agent.start()
    await deployment.region.link.restore()
    await until(has_arrived(deployment, large), "the large one has arrived", DEADLINE)
    assert await forwarded(deployment) == [small, large]


async def test_5_an_observer_whose_link_stalls_reports_nobody(deployment: Deployment) -> None:
    """The peer's ages run on its own clock: a link that stalls for longer than the warning time reports the fleet."""
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(all_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        deployment.site.link.stall()
        stalled_at = await deployment.site_time()

        async def has_lasted() -> bool:
            return await deployment.site_time() > stalled_at + 2 * STALE_AFTER

        await until(has_lasted, "the stall has lasted", DEADLINE)
        await deployment.site.link.restore()
        restored_at = await deployment.site_time()
        await deployment.until_observed(restored_at + STALE_AFTER, DEADLINE)
    assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


async def test_6_a_backlog_that_is_read_late_says_nothing_false(deployment: Deployment) -> None:
    """The peer notes its own time for what it reads: a replayed backlog gives false new and recover."""
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(all_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        deployment.agent.kill()
        killed_at = await deployment.site_time()

        async def has_lasted() -> bool:
            return await deployment.site_time() > killed_at + 2 * STALE_AFTER

        await until(has_lasted, "the agent has been down", DEADLINE)
        deployment.agent.start()
        await deployment.until_observed(await deployment.site_time() + STALE_AFTER, DEADLINE)
    advisories = await deployment.advisories()
    assert sorted(advisory.value for advisory in advisories) == sorted(NAMES)
    assert {advisory.kind for advisory in advisories} == {AdvisoryKind.NEW}


async def test_7_who_fell_silent_while_the_agent_was_down_is_reported_and_forgotten_in_its_time(tmp_path: Path) -> None:
    """The peer drops what expired while it was down, without a word."""
    settings = UNHURRIED.replace('retire_after = "1h"', 'retire_after = "10s"')
    async with deployed(tmp_path, settings) as deployment:
        deployment.agent.start()
        async with deployment.senders(NAMES[:5]):
            async with deployment.senders(NAMES[5:]):
                await until(all_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
                deployment.agent.kill()
            silent_at = await deployment.site_time()

            async def has_lasted() -> bool:
                return await deployment.site_time() > silent_at + 13 * SECOND

            await until(has_lasted, "the agent has been down", DEADLINE)
            deployment.agent.start()
            await until(all_told(deployment, AdvisoryKind.RETIRED, NAMES[5:]), "they are forgotten", DEADLINE)
        for kind, after in ((AdvisoryKind.STALE, UNHURRIED_STALE_AFTER), (AdvisoryKind.RETIRED, 10 * SECOND)):
            found = [advisory for advisory in await deployment.advisories() if advisory.kind is kind]
            assert sorted(advisory.value for advisory in found) == sorted(NAMES[5:])
            for advisory in found:
                assert advisory.at_us == advisory.last_seen_us + after
                assert advisory.last_seen_us <= silent_at


async def test_8_thousands_of_senders_that_change_at_once_are_all_reported(deployment: Deployment) -> None:
    """The peer drops new, recover and expire for good when more than 1,000 wait for its channel."""
    crowd = [f"crowd{number}.example.net" for number in range(4_000)]
    deployment.agent.start()
    async with deployment.senders(["steady"]):
        await until(all_told(deployment, AdvisoryKind.NEW, ["steady"]), "the agent reads", DEADLINE)
        await deployment.region.link.cut()
        for name in crowd:
            await deployment.site.client.publish("registration.crowd", registration(name))
        await deployment.site.client.flush()
        await deployment.region.link.restore()
        await until(all_told(deployment, AdvisoryKind.STALE, crowd), "all of them are missed", DEADLINE)
        for name in crowd:
            await deployment.site.client.publish("registration.crowd", registration(name))
        await deployment.site.client.flush()
        await until(all_told(deployment, AdvisoryKind.RECOVERED, crowd), "all of them are back", DEADLINE)
        for kind in (AdvisoryKind.NEW, AdvisoryKind.STALE, AdvisoryKind.RECOVERED):
            found = [name for name in await told(deployment, kind) if name != "steady"]
            assert len(found) >= len(crowd)
            assert set(found) == set(crowd)
        new = [name for name in await told(deployment, AdvisoryKind.NEW) if name != "steady"]
        assert sorted(new) == sorted(crowd), "each is new once"


def is_log_empty(path: Path) -> bool:
    """Let SQLite empty its log into the file; it cannot while the store is writing."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        is_busy, _, _ = database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not is_busy and log_size(path) == 0


def log_size(path: Path) -> int:
    return path.with_name(f"{path.name}-wal").stat().st_size


async def test_10_what_a_registration_costs_the_disk_does_not_grow_with_the_fleet(tmp_path: Path) -> None:
    """The peer's state is one file, written anew every 10 s: 118 MB for a million senders."""
    policy = Policy(sample_interval=DAY, stale_after=DAY, retire_after=2 * DAY, blind_after=DAY // 4)
    written = []
    for fleet in (100, 10_000):
        path = tmp_path / f"{fleet}.db"
        agent = MortalAgent(path, ScriptedStream(1_700_000_000 * SECOND), policy, 10_000)
        await agent.start()
        for number in range(fleet):
            agent.stream.publish({"sender": f"node{number}"})
        await agent.read(fleet)
        await agent.check()
        await until(partial(is_log_empty, path), "what was written so far has left the log", DEADLINE)
        agent.stream.clock += SECOND
        for number in range(10):
            agent.stream.publish({"sender": f"node{number * fleet // 10}"})
        await agent.read(10)
        written.append(log_size(path))
        await agent.store.close()
    small, large = written
    assert 0 < large < 4 * small, written


async def test_11_a_long_link_carries_many_messages_at_a_time(deployment: Deployment) -> None:
    """The peer has one message in flight: 10 a second at 100 ms. These would take it 400 s."""
    deployment.region.link.round_trip = 0.1
    deployment.agent.start()
    crowd = [f"crowd{number}.example.net" for number in range(2_000)]
    for name in crowd:
        await deployment.site.client.publish("registration.crowd", registration(name))
    await deployment.site.client.flush()
    await until(all_told(deployment, AdvisoryKind.NEW, crowd), "all of them are known", DEADLINE)

    async def is_complete() -> bool:
        return len(await forwarded(deployment)) == len(crowd)

    await until(is_complete, "every first registration has arrived", DEADLINE)
    assert await forwarded(deployment) == [registration(name) for name in crowd], "in order, each once"

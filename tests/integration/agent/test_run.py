"""The agent as a process: nobody is accused who was not seen, nothing is lost or said twice, whatever happens to it."""

import asyncio
import random
import re
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.wire import Advisory
from tests.support.agent.agent_process import UNHURRIED, UNHURRIED_STALE_AFTER, Deployment, deployed
from tests.support.agent.straight_run import assert_straight_run
from tests.support.waiting import until

KILLS = 5
NAMES = [f"node{number}.example.net" for number in range(10)]
UNHURRIED_BLIND_AFTER = 3_900_000


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, UNHURRIED) as deployment:
        yield deployment


def kinds(advisories: Sequence[Advisory]) -> Counter[AdvisoryKind]:
    return Counter(advisory.kind for advisory in advisories)


def check_complete(advisories: Sequence[Advisory]) -> None:
    """No advisory is there twice, and none is missing."""
    assert len({advisory.event_id for advisory in advisories}) == len(advisories)
    for incarnation in {advisory.incarnation for advisory in advisories}:
        ordinals = sorted(advisory.ordinal for advisory in advisories if advisory.incarnation == incarnation)
        assert ordinals == list(range(1, len(ordinals) + 1))


async def known_senders(deployment: Deployment, count: int) -> bool:
    watermark = await deployment.last_watermark()
    return watermark is not None and sum(watermark.senders.values()) >= count


async def has_sent_registrations(deployment: Deployment) -> bool:
    return bool((await deployment.agent.status_json())["outbox"]["registrations"]["rows"] == 0)


# Kills


async def test_a_killed_agent_loses_no_advisory_and_says_none_twice(deployment: Deployment) -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    lives = [random.uniform(0.3, 1.2) for _ in range(KILLS)]
    total = 0
    async with deployment.senders(NAMES):
        for life in lives:
            deployment.agent.start()
            await asyncio.sleep(life)
            newcomers = [b'{"sender":"newcomer%d"}' % number for number in range(total, total + 300)]
            await deployment.site.publish(*newcomers)
            total += 300
            deployment.agent.kill()
        deployment.agent.start()
        await until(lambda: known_senders(deployment, total + len(NAMES)), "every sender is known")
        await deployment.until_observed(await deployment.site_time())

    advisories = await deployment.advisories()
    check_complete(advisories)
    assert kinds(advisories)[AdvisoryKind.NEW] == total + len(NAMES)
    # Who registers once may well be stale by now.
    assert not [
        advisory for advisory in advisories if advisory.kind is not AdvisoryKind.NEW and advisory.value in NAMES
    ]
    assert len({advisory.incarnation for advisory in advisories}) == 1
    await until(lambda: has_sent_registrations(deployment), "registrations, which no watermark waits for, have arrived")
    registrations = [record for record in await deployment.region.stored() if record.subject.endswith("registration")]
    origins = Counter(record.headers["Muster-Origin"] for record in registrations)
    assert set(origins.values()) == {1}
    assert len(origins) == total + len(NAMES)
    await deployment.agent.stopped()
    arrived = [record.payload for record in await deployment.region.records(".advisory.")]
    await assert_straight_run(arrived, deployment.agent.config, deployment.site.client)


# Who is accused


async def test_senders_that_fall_silent_while_the_agent_watches_are_stale_at_their_deadline(
    deployment: Deployment,
) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: known_senders(deployment, len(NAMES)), "every sender is known")
        before = await deployment.until_observed()
    fell_silent_at = await deployment.site_time()
    after = await deployment.until_observed(fell_silent_at + UNHURRIED_STALE_AFTER + SECOND)
    assert after.observed_since_us == before.observed_since_us
    assert after.senders == {"heard": 0, "stale": len(NAMES)}

    advisories = await deployment.advisories()
    check_complete(advisories)
    stale = [advisory for advisory in advisories if advisory.kind is AdvisoryKind.STALE]
    assert sorted(advisory.value for advisory in stale) == sorted(NAMES)
    for advisory in stale:
        assert advisory.at_us == advisory.last_seen_us + UNHURRIED_STALE_AFTER
        assert advisory.last_seen_us <= fell_silent_at
    async with deployment.senders(NAMES[:4]):
        await until(lambda: have_said(deployment, AdvisoryKind.RECOVERED, 4), "senders that are back are recovered")


async def have_said(deployment: Deployment, kind: AdvisoryKind, count: int) -> bool:
    return kinds(await deployment.advisories())[kind] == count


async def test_a_suspended_agent_keeps_its_coverage_where_the_backlog_proves_it(deployment: Deployment) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: known_senders(deployment, len(NAMES)), "every sender is known")
        before = await deployment.until_observed()
        deployment.agent.signal(signal.SIGSTOP)
        suspended_at = await deployment.site_time()

        async def has_passed() -> bool:
            return await deployment.site_time() > suspended_at + 1.5 * UNHURRIED_BLIND_AFTER

        await until(has_passed, "it was suspended for longer than blind_after")
        deployment.agent.signal(signal.SIGCONT)
        after = await deployment.until_observed(suspended_at + 2 * UNHURRIED_BLIND_AFTER)

    assert kinds(await deployment.advisories()) == {AdvisoryKind.NEW: len(NAMES)}
    assert after.observed_since_us == before.observed_since_us


async def test_an_agent_that_saw_nothing_while_suspended_accuses_nobody(deployment: Deployment) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: known_senders(deployment, len(NAMES)), "every sender is known")
    await deployment.until_observed()
    deployment.agent.signal(signal.SIGSTOP)
    suspended_at = await deployment.site_time()
    await asyncio.sleep(UNHURRIED_STALE_AFTER / SECOND + 1)
    resumed_at = await deployment.site_time()
    deployment.agent.signal(signal.SIGCONT)
    async with deployment.senders(NAMES):
        after = await deployment.until_observed(resumed_at + UNHURRIED_STALE_AFTER + SECOND)

    assert kinds(await deployment.advisories()) == {AdvisoryKind.NEW: len(NAMES)}
    await check_blind_between(deployment, suspended_at, after.observed_since_us)
    assert after.observed_since_us > suspended_at + UNHURRIED_STALE_AFTER


async def test_a_site_whose_server_was_down_is_unknown_and_nobody_is_accused(deployment: Deployment) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: known_senders(deployment, len(NAMES)), "every sender is known")
        await deployment.until_observed()
        await deployment.site.server.kill()
        await asyncio.sleep(UNHURRIED_STALE_AFTER / SECOND + 1)

        async def is_told() -> bool:
            return bool(re.search(r"^  source +not connected for ", await deployment.agent.status(), re.MULTILINE))

        await until(is_told, "status says it")
        back_at = time.time_ns() // 1000
        await deployment.site.server.start()
        after = await deployment.until_observed(await deployment.site_time() + UNHURRIED_STALE_AFTER + SECOND)

    assert kinds(await deployment.advisories()) == {AdvisoryKind.NEW: len(NAMES)}
    assert after.observed_since_us > back_at
    await check_blind_between(deployment, back_at - UNHURRIED_STALE_AFTER, after.observed_since_us)


async def check_blind_between(deployment: Deployment, started_at: int, ended_at: int) -> None:
    """No watermark vouches for anything in a span but its very edges."""
    for watermark in await deployment.watermarks():
        assert watermark.observed_through_us <= started_at + SECOND or watermark.observed_since_us >= ended_at - SECOND

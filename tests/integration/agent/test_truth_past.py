"""A site's stream changes under the agent: what nobody can know is unknown, nobody is accused, and life goes on."""

from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from tests.support.agent.agent_process import BLIND_AFTER, STALE_AFTER, Deployment, deployed
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(5)]
DEADLINE = 180.0


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path) as deployment:
        yield deployment


async def are_known(deployment: Deployment) -> bool:
    new = [advisory.value for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.NEW]
    return set(NAMES) <= set(new)


async def blind_spans(deployment: Deployment) -> dict[str, int]:
    status = await deployment.agent.status_json()
    blocks = status.get("blocks") or [{"state": {"counters": {}}}]
    return dict(blocks[0]["state"]["counters"].get("blind", {}))


async def change_past(deployment: Deployment, how: str, tmp_path: Path) -> None:
    site = deployment.site
    match how:
        case "restored":
            await site.restore_store(tmp_path / "copy")
        case "made anew":
            await site.delete_stream()
            await site.make_stream()
        case "memory restarted":
            await site.restart()
            await site.make_stream(storage="memory")


async def has_stored_more(deployment: Deployment, sequence: int) -> bool:
    return await deployment.site.last_sequence() > sequence


async def have_said(deployment: Deployment, kind: AdvisoryKind, count: int) -> bool:
    return sum(advisory.kind is kind for advisory in await deployment.advisories()) >= count


@pytest.mark.parametrize("how", ["restored", "made anew", "memory restarted"])
async def test_a_stream_with_another_past_begins_an_epoch_and_its_senders_keep_their_lives(
    deployment: Deployment, tmp_path: Path, how: str
) -> None:
    if how == "memory restarted":
        await deployment.site.delete_stream()
        await deployment.site.make_stream(storage="memory")
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_known(deployment), "all are known", DEADLINE)
        if how == "restored":
            await deployment.site.copy_store(tmp_path / "copy")
            await until(partial(has_stored_more, deployment, await deployment.site.last_sequence()), "more", DEADLINE)
        before = await deployment.until_observed(await deployment.site_time(), DEADLINE)
        await change_past(deployment, how, tmp_path)
        changed_at = await deployment.site_time()
        after = await deployment.until_observed(changed_at + STALE_AFTER + SECOND, DEADLINE)

    advisories = await deployment.advisories()
    assert Counter((advisory.kind, advisory.value) for advisory in advisories) == {
        (AdvisoryKind.NEW, name): 1 for name in NAMES
    }
    assert after.incarnation != before.incarnation
    assert after.observed_since_us > before.observed_through_us
    assert after.advisory_ordinal == 0, "nothing was said since"
    assert (await blind_spans(deployment))["new_epoch"] >= 1
    # The past before was vouched for a last time, by its own ordinals.
    closing = [mark for mark in await deployment.watermarks() if mark.incarnation == before.incarnation][-1]
    assert closing.advisory_ordinal == len(NAMES)

    # Who falls silent from here on is missed, once, in the life that began before.
    await until(partial(have_said, deployment, AdvisoryKind.STALE, len(NAMES)), "all are missed", DEADLINE)
    stale = [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.STALE]
    opened = {advisory.value: advisory.opening_sequence for advisory in advisories}
    assert sorted((advisory.value, advisory.opening_sequence) for advisory in stale) == sorted(opened.items())
    assert sorted(advisory.ordinal for advisory in stale) == list(range(1, len(NAMES) + 1))


async def test_messages_that_retention_took_unread_are_a_blind_span_and_nobody_is_accused(
    deployment: Deployment,
) -> None:
    await deployment.site.update_stream(max_msgs=40)
    deployment.agent.start()
    async with deployment.senders(NAMES, interval=0.05):
        await until(lambda: are_known(deployment), "all are known", DEADLINE)
        await deployment.until_observed(await deployment.site_time(), DEADLINE)
        await deployment.site.link.cut()
        cut_at = await deployment.site_time()
        held = await deployment.site.last_sequence()

        async def has_gone_on() -> bool:
            # Longer than anybody may be silent, and more than the stream keeps.
            far = await deployment.site.last_sequence() > held + 100
            return far and await deployment.site_time() > cut_at + STALE_AFTER + 2 * BLIND_AFTER

        await until(has_gone_on, "the stream has gone on", DEADLINE)
        restored_at = await deployment.site_time()
        await deployment.site.link.restore()
        await deployment.until_observed(restored_at + STALE_AFTER + SECOND, DEADLINE)

        async def is_counted() -> bool:
            return (await blind_spans(deployment)).get("gap", 0) >= 1

        await until(is_counted, "the gap is counted", DEADLINE)
    assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}


# Streams that cannot store


async def test_a_full_stream_that_refuses_registrations_accuses_nobody(deployment: Deployment) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_known(deployment), "all are known", DEADLINE)
        await deployment.until_observed(await deployment.site_time(), DEADLINE)
        await deployment.site.update_stream(discard="new", max_msgs=await deployment.site.last_sequence() + 1)
        refused_since = await deployment.site_time()

        async def has_lasted() -> bool:
            return await deployment.site_time() > refused_since + 2 * STALE_AFTER

        await until(has_lasted, "registrations were refused for long", DEADLINE)
        refused_until = await deployment.site_time()

        async def is_told() -> bool:
            return "stream_not_storing" in {mark.condition for mark in await deployment.watermarks()}

        await until(is_told, "the region hears why", DEADLINE)
        await deployment.site.update_stream(discard="old", max_msgs=-1)
        after = await deployment.until_observed(refused_until + STALE_AFTER + SECOND, DEADLINE)
    assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
    assert after.observed_since_us >= refused_until - SECOND
    for mark in await deployment.watermarks():
        # What could not be stored is vouched for by nobody, but for what passes as no blind span.
        assert (
            mark.observed_through_us <= refused_since + BLIND_AFTER + SECOND
            or mark.observed_since_us >= refused_until - SECOND
        )

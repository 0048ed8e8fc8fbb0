"""Clocks that are wrong decide nothing: the agent's own, the senders', and steps of the site's."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.agent.agent_process import UNHURRIED, UNHURRIED_STALE_AFTER, Deployment, deployed, free_address
from tests.support.agent.straight_run import assert_straight_run, stored_message
from tests.support.nats.source_site import STREAM, SUBJECT
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock
from tests.support.observability.six_places import over, shown
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(5)]
DEADLINE = 180.0
STEP = 30 * MINUTE
"""Within source.max_clock_ahead."""

only_where_clocks_can_be_set = pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)

# Python imports it at its start; nothing needs to be installed for it, and the servers keep the machine's clock.
WRONG_CLOCK = """
import os, time
true, true_ns, elapsed = time.time, time.time_ns, time.monotonic
ahead, leap = float(os.environ["CLOCK_AHEAD"]), float(os.environ["CLOCK_LEAP"])
def wrong():
    return ahead + leap * (int(elapsed()) % 3 - 1)
time.time = lambda: true() + wrong()
time.time_ns = lambda: true_ns() + int(wrong()) * 10**9
"""


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, UNHURRIED) as deployment:
        yield deployment


def registration(sender: str) -> bytes:
    return json.dumps({"sender": sender}).encode()


async def told(deployment: Deployment, kind: AdvisoryKind) -> list[str]:
    return sorted(advisory.value for advisory in await deployment.advisories() if advisory.kind is kind)


async def are_told(deployment: Deployment, kind: AdvisoryKind, senders: Sequence[str]) -> bool:
    return await told(deployment, kind) == sorted(senders)


async def says_the_same_as_a_straight_run(deployment: Deployment) -> None:
    """End the agent: the region has the advisories that follow from the stream alone, to the byte."""
    await deployment.until_observed(await deployment.site_time(), DEADLINE)
    await deployment.agent.stopped()
    arrived = [record.payload for record in await deployment.region.records(".advisory.")]
    await assert_straight_run(arrived, deployment.agent.config, deployment.site.client)


# The agent's clock


@pytest.mark.parametrize(
    ("ahead", "leap"),
    [
        pytest.param(30 * DAY // SECOND, 0, id="a month ahead"),
        pytest.param(-30 * DAY // SECOND, 0, id="a month behind"),
        pytest.param(0, 3600, id="leaping by hours every second"),
    ],
)
async def test_an_agent_whose_clock_is_wrong_says_what_the_stream_says(
    deployment: Deployment, tmp_path: Path, ahead: int, leap: int
) -> None:
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(WRONG_CLOCK)
    deployment.agent.start({"PYTHONPATH": str(tmp_path / "clock"), "CLOCK_AHEAD": str(ahead), "CLOCK_LEAP": str(leap)})
    async with deployment.senders(NAMES[1:]):
        async with deployment.senders(NAMES[:1]):
            await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        await until(lambda: are_told(deployment, AdvisoryKind.STALE, NAMES[:1]), "who is silent is missed", DEADLINE)
        async with deployment.senders(NAMES[:1]):
            await until(lambda: are_told(deployment, AdvisoryKind.RECOVERED, NAMES[:1]), "it is back", DEADLINE)
            assert await told(deployment, AdvisoryKind.STALE) == NAMES[:1]
            (stale,) = [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.STALE]
            assert stale.at_us == stale.last_seen_us + UNHURRIED_STALE_AFTER
            await says_the_same_as_a_straight_run(deployment)


async def test_an_agent_whose_clock_is_a_year_behind_and_whose_region_is_away_reads_and_misses_who_is_silent(
    deployment: Deployment, tmp_path: Path
) -> None:
    """Its own clock alone stops nothing; what it has to say waits."""
    (tmp_path / "clock").mkdir()
    (tmp_path / "clock" / "sitecustomize.py").write_text(WRONG_CLOCK)
    behind = str(-365 * DAY // SECOND)
    await deployment.region.link.cut()
    deployment.agent.start({"PYTHONPATH": str(tmp_path / "clock"), "CLOCK_AHEAD": behind, "CLOCK_LEAP": "0"})

    async def counted(kind: str) -> int:
        blocks = (await deployment.agent.status_json()).get("blocks", [])
        return int(blocks[0]["state"]["counters"].get("advisories", {}).get(kind, 0)) if blocks else 0

    async def all_are(kind: str) -> bool:
        return await counted(kind) == len(NAMES)

    async with deployment.senders(NAMES):
        await until(lambda: all_are("new"), "all are known", DEADLINE)
    await until(lambda: all_are("stale"), "who is silent is missed", DEADLINE)
    assert "blind" not in await counters(deployment)
    await deployment.region.link.restore()
    await until(lambda: are_told(deployment, AdvisoryKind.STALE, NAMES), "the region hears it", DEADLINE)
    await says_the_same_as_a_straight_run(deployment)


# The senders' clocks


async def test_senders_whose_clocks_are_wrong_are_seen_when_the_stream_stored_them(deployment: Deployment) -> None:
    times = ["1970-01-01T00:00:00Z", "2999-12-31T23:59:59Z", -1, 0, 1 << 62, "yesterday", None]
    deployment.agent.start()
    async with deployment.senders(["steady"]):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, ["steady"]), "the agent reads", DEADLINE)
        began_at = await deployment.site_time()
        await deployment.site.publish(
            *(json.dumps({"sender": f"wrong{n}", "time": time}).encode() for n, time in enumerate(times)),
            headers={"Date": "Thu, 01 Jan 1970 00:00:00 GMT"},
        )
        ended_at = await deployment.site_time()
        everybody = ["steady", *(f"wrong{n}" for n in range(len(times)))]
        await until(lambda: are_told(deployment, AdvisoryKind.STALE, everybody[1:]), "they are missed", DEADLINE)
        advisories = [advisory for advisory in await deployment.advisories() if advisory.value != "steady"]
        for advisory in advisories:
            assert began_at - SECOND <= advisory.last_seen_us <= ended_at
            assert advisory.at_us == advisory.last_seen_us + (
                0 if advisory.kind is AdvisoryKind.NEW else UNHURRIED_STALE_AFTER
            )
        await says_the_same_as_a_straight_run(deployment)


async def test_messages_of_a_sender_that_come_out_of_its_order_count_in_the_streams(deployment: Deployment) -> None:
    """Adapters publish with several workers and wait for no answer."""
    deployment.agent.start()
    async with deployment.senders(["steady"]):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, ["steady"]), "the agent reads", DEADLINE)
        sent = [
            json.dumps({"sender": "a", "number": number, "time": 1_700_000_000 + number}).encode()
            for number in (3, 1, 2, 2, 0)
        ]
        await deployment.site.publish(*sent)
        await until(lambda: are_told(deployment, AdvisoryKind.STALE, ["a"]), "it is missed", DEADLINE)
        new, stale = [advisory for advisory in await deployment.advisories() if advisory.value == "a"]
        assert (new.kind, new.opening_sequence) == (AdvisoryKind.NEW, stale.opening_sequence)
        assert stale.sequence >= new.sequence + len(sent) - 1
        forwarded = [record.payload for record in await deployment.region.stored() if record.payload in sent]
        assert forwarded == sent[:1], "the first that the stream holds is passed on, as it is"
        await says_the_same_as_a_straight_run(deployment)


# The clock of the site's server


@pytest.fixture
def clock(deployment: Deployment) -> Iterator[SteppedClock]:
    with SteppedClock(deployment.site.server) as clock:
        yield clock


async def counters(deployment: Deployment) -> dict[str, dict[str, int]]:
    status = await deployment.agent.status_json()
    return dict(status["blocks"][0]["state"]["counters"])


@only_where_clocks_can_be_set
async def test_a_site_whose_clock_steps_forward_accuses_nobody(deployment: Deployment, clock: SteppedClock) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        before = await deployment.until_observed(await deployment.site_time(), DEADLINE)
        clock.set(STEP)
        stepped_at = await deployment.site_time()
        after = await deployment.until_observed(stepped_at + UNHURRIED_STALE_AFTER + SECOND, DEADLINE)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
        assert after.incarnation == before.incarnation
        assert before.observed_through_us + STEP - SECOND < after.observed_since_us < stepped_at + 2 * SECOND
        assert (await counters(deployment))["blind"] == {"unproven": 1}
        await says_the_same_as_a_straight_run(deployment)


@only_where_clocks_can_be_set
async def test_a_site_whose_clock_steps_back_accuses_nobody_and_goes_on(
    deployment: Deployment, clock: SteppedClock
) -> None:
    """While the clock is behind what was seen, no time passes; once it is set right, all goes on in the same lives."""
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        before = await deployment.until_observed(await deployment.site_time(), DEADLINE)
        clock.set(-HOUR)
        stepped_at = await deployment.site_time()

        async def has_lasted() -> bool:
            is_long = await deployment.site_time() > stepped_at + UNHURRIED_STALE_AFTER + SECOND
            return is_long and "clamped" in await counters(deployment)

        await until(has_lasted, "it is behind for longer than anybody may be silent", DEADLINE)

        async def is_told() -> bool:
            code, said, _ = await deployment.agent.run_command(
                "status", "--check", "--config", str(deployment.agent.config)
            )
            return (code, said.partition(" is ")[0]) == (1, "error: stream nodes: standing still: its server's clock")

        await until(is_told, "status says it", DEADLINE)
        clock.set(0)
        set_right_at = await deployment.site_time()
        after = await deployment.until_observed(set_right_at + SECOND, DEADLINE)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
    assert after.incarnation != before.incarnation
    assert (await counters(deployment))["blind"]["new_epoch"] == 1
    await until(lambda: are_told(deployment, AdvisoryKind.STALE, NAMES), "who is silent is missed", DEADLINE)
    stale = [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.STALE]
    assert all(advisory.at_us == advisory.last_seen_us + UNHURRIED_STALE_AFTER for advisory in stale)
    assert all(advisory.opening_sequence < before.sequence for advisory in stale)
    await says_the_same_as_a_straight_run(deployment)


@pytest.mark.provokes("standing_still")
@only_where_clocks_can_be_set
async def test_what_was_observed_ahead_of_the_time_is_kept_by_a_new_start_and_given_up_with_the_store(
    deployment: Deployment, clock: SteppedClock
) -> None:
    """What the guide says of an agent that stands still, and would for long."""
    agent = deployment.agent
    clock.set(STEP)
    agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        ahead = await deployment.until_observed(await deployment.site_time(), DEADLINE)
        clock.set(0)

        async def stands_still() -> bool:
            code, said, _ = await agent.run_command("status", "--check", "--config", str(agent.config))
            return code == 1 and "standing still: its server's clock is " in said and "(standing_still for " in said

        await until(stands_still, "it stands still", DEADLINE)
        await agent.stopped()
        agent.start()
        await until(stands_still, "it still does", DEADLINE)
        await agent.stopped()
        settings = agent.config.read_text()
        agent.config.write_text(settings.replace("[stream.source]", '[stream.source]\nstart = "new"'))
        for each in agent.store.parent.glob("agent.db*"):
            if each.name in ("agent.db", "agent.db-wal", "agent.db-shm"):
                each.unlink()
        given_up_at = await deployment.site_time()
        agent.start()
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, [*NAMES, *NAMES]), "all are told anew", DEADLINE)

        async def vouches() -> bool:
            mark = await deployment.last_watermark()
            return mark is not None and given_up_at < mark.observed_through_us < ahead.observed_through_us

        await until(vouches, "time passes", DEADLINE)
    anew = [advisory for advisory in await deployment.advisories() if advisory.incarnation != ahead.incarnation]
    assert {advisory.rebuilt for advisory in anew} == {True}
    assert {advisory.kind for advisory in anew} == {AdvisoryKind.NEW}


async def is_refused(deployment: Deployment) -> bool:
    agent = deployment.agent
    code, said, _ = await agent.run_command("status", "--check", "--config", str(agent.config))
    return code == 1 and "ahead of the region's" in said and "it is not followed" in said


@pytest.mark.provokes("clock_ahead")
@only_where_clocks_can_be_set
async def test_a_site_clock_a_year_ahead_is_not_followed_and_all_goes_on_when_it_is_set_right(
    deployment: Deployment, clock: SteppedClock
) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES[1:]):
        async with deployment.senders(NAMES[:1]):
            await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
            before = await deployment.until_observed(await deployment.site_time(), DEADLINE)
            clock.set(365 * DAY)
            await until(lambda: is_refused(deployment), "the clock is not followed", DEADLINE)
        # Who is new is heard, and who falls silent is not missed yet.
        async with deployment.senders(["late"]):
            await until(lambda: are_told(deployment, AdvisoryKind.NEW, [*NAMES, "late"]), "one is new", DEADLINE)
            clock.set(0)
            set_right_at = await deployment.site_time()
            after = await deployment.until_observed(set_right_at + SECOND, DEADLINE)
            assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
        assert max(advisory.at_us for advisory in await deployment.advisories()) < set_right_at
        assert max(mark.observed_through_us for mark in await deployment.watermarks()) < set_right_at + MINUTE
        assert after.incarnation == before.incarnation
        assert (await counters(deployment))["blind"] == {"clock_ahead": 1}
        silent = [NAMES[0], "late"]
        await until(lambda: are_told(deployment, AdvisoryKind.STALE, silent), "who is silent is missed", DEADLINE)
        stale = [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.STALE]
        assert min(advisory.at_us for advisory in stale) >= set_right_at + UNHURRIED_STALE_AFTER - SECOND
        events = [advisory.event_id for advisory in await deployment.advisories()]
        assert len(events) == len(set(events))
        await says_the_same_as_a_straight_run(deployment)


@only_where_clocks_can_be_set
async def test_a_clock_that_is_not_followed_is_said_in_all_six_places_and_so_is_its_end(tmp_path: Path) -> None:
    async with deployed(tmp_path, UNHURRIED, free_address()) as deployment, deployment.senders(NAMES):
        deployment.agent.start()
        with SteppedClock(deployment.site.server) as clock:
            await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
            clock.set(365 * DAY)
            await shown(deployment.agent, "clock_ahead")
            clock.set(0)
            await over(deployment.agent, "clock_ahead")


@only_where_clocks_can_be_set
async def test_an_agent_that_first_starts_at_a_clock_a_year_ahead_reads_and_dates_nothing_by_it(
    deployment: Deployment, clock: SteppedClock
) -> None:
    clock.set(365 * DAY)
    async with deployment.senders(NAMES):
        deployment.agent.start()
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        await until(lambda: is_refused(deployment), "the clock is not followed", DEADLINE)
        deployment.agent.kill()
        deployment.agent.start()
        await until(lambda: is_refused(deployment), "nor by the next start", DEADLINE)
        clock.set(0)
        set_right_at = await deployment.site_time()
        await deployment.until_observed(set_right_at + SECOND, DEADLINE)
        assert await told(deployment, AdvisoryKind.NEW) == NAMES
        assert max(advisory.at_us for advisory in await deployment.advisories()) < set_right_at
    await until(lambda: are_told(deployment, AdvisoryKind.STALE, NAMES), "who is silent is missed", DEADLINE)
    await says_the_same_as_a_straight_run(deployment)


@only_where_clocks_can_be_set
async def test_a_clock_that_runs_ahead_is_followed_where_no_bound_is_set(
    deployment: Deployment, clock: SteppedClock
) -> None:
    settings = deployment.agent.config.read_text()
    deployment.agent.config.write_text(
        settings.replace("[stream.source]", '[stream.source]\nmax_clock_ahead = "0s"', 1)
    )
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        clock.set(365 * DAY)
        await deployment.until_observed(await deployment.site_time(), DEADLINE)


@only_where_clocks_can_be_set
async def test_small_steps_of_the_sites_clock_are_clamped_and_change_nothing(
    deployment: Deployment, clock: SteppedClock
) -> None:
    deployment.agent.start()
    async with deployment.senders(NAMES):
        await until(lambda: are_told(deployment, AdvisoryKind.NEW, NAMES), "all are known", DEADLINE)
        before = await deployment.until_observed(await deployment.site_time(), DEADLINE)
        for ahead in (-2, 0, -2, -1, 0):
            clock.set(ahead * SECOND)
            await deployment.until_observed(await deployment.site_time() + SECOND, DEADLINE)
        after = await deployment.until_observed(await deployment.site_time() + SECOND, DEADLINE)
        assert {advisory.kind for advisory in await deployment.advisories()} == {AdvisoryKind.NEW}
        assert (after.incarnation, after.observed_since_us) == (before.incarnation, before.observed_since_us)
        assert (await counters(deployment))["clamped"]["stored_earlier"] > 0
        await says_the_same_as_a_straight_run(deployment)


@only_where_clocks_can_be_set
async def test_days_of_backlog_are_decided_as_they_would_have_been_in_time(tmp_path: Path) -> None:
    """Two days pass at the site's server before the agent first reads: one sender is silent through half of them."""
    every, rounds, silent = 80 * SECOND, 2_160, range(450, 1_500)
    stale_after = 720 * SECOND
    settings = UNHURRIED.replace('"8s"', '"12m"').replace('"1h"', '"1d"').replace('"3900ms"', '"3m"')
    async with deployed(tmp_path, settings) as deployment:
        site = deployment.site
        with SteppedClock(site.server) as clock:
            for number in range(rounds):
                clock.set((number - rounds) * every)
                senders = ["steady"] if number in silent else ["steady", "moody"]
                await asyncio.gather(
                    *(site.client.request(SUBJECT, registration(sender), timeout=DEADLINE) for sender in senders)
                )
            clock.set(0)
            deployment.agent.start()
            mark = await deployment.until_observed(await deployment.site_time() - every, DEADLINE)
            # The first of all, the last before the silence, the first after it.
            sequences = 1, 2 * silent.start, 2 * silent.start + len(silent) + 1
            stored = [await stored_message(site.client, STREAM, sequence) for sequence in sequences]
            advisories = [advisory for advisory in await deployment.advisories() if advisory.value == "moody"]
            assert await told(deployment, AdvisoryKind.NEW) == ["moody", "steady"]
            new, stale, recovered = advisories
            assert (new.kind, stale.kind, recovered.kind) == (
                AdvisoryKind.NEW,
                AdvisoryKind.STALE,
                AdvisoryKind.RECOVERED,
            )
            assert mark.observed_since_us == stored[0].stored_at, "a backlog that follows closely proves itself"
            assert abs(stale.last_seen_us - stored[1].stored_at) < SECOND
            assert stale.at_us == stale.last_seen_us + stale_after
            assert abs(recovered.at_us - stored[2].stored_at) < SECOND
            assert recovered.at_us - stale.last_seen_us > len(silent) * every
            await says_the_same_as_a_straight_run(deployment)

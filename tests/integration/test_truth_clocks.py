"""Clocks that are wrong decide nothing: the agent's own, the senders', and steps of the site's."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from edge_agent.core.decision import BlindCause, BlindSpan
from edge_agent.core.policy import Policy
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, SECOND
from tests.support.agent_process import UNHURRIED, UNHURRIED_STALE_AFTER, Deployment, deployed
from tests.support.mortal_agent import MortalAgent
from tests.support.scripted_stream import ScriptedStream
from tests.support.straight_run import advisories_of_a_straight_run
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(5)]
DEADLINE = 60.0

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


async def told(deployment: Deployment, kind: AdvisoryKind) -> list[str]:
    return sorted(advisory.value for advisory in await deployment.advisories() if advisory.kind is kind)


async def are_told(deployment: Deployment, kind: AdvisoryKind, senders: Sequence[str]) -> bool:
    return await told(deployment, kind) == sorted(senders)


async def says_the_same_as_a_straight_run(deployment: Deployment) -> None:
    """End the agent: the region has the advisories that follow from the stream alone, to the byte."""
    await deployment.until_observed(await deployment.site_time(), DEADLINE)
    await deployment.agent.stopped()
    arrived = [record.payload for record in await deployment.region.stored() if ".advisory." in record.subject]
    assert sorted(arrived, key=lambda body: int(json.loads(body)["ordinal"])) == await advisories_of_a_straight_run(
        deployment.agent.config, deployment.site.client
    )


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


# The site's clock. nats-server reads the kernel's clock directly, which only the whole machine could change, so the
# stream is a scripted one; the store is real.

START = 1_700_000_000 * SECOND
POLICY = Policy(sample_interval=30 * SECOND, stale_after=20 * SECOND, retire_after=50 * SECOND, blind_after=8 * SECOND)


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[MortalAgent]:
    agent = MortalAgent(tmp_path / "agent.db", ScriptedStream(START), POLICY, 1000)
    await agent.start()
    yield agent
    await agent.store.close()


async def register(agent: MortalAgent, rounds: int) -> None:
    """Let two senders register every second, read and checked as it comes."""
    for _ in range(rounds):
        for sender in ("a", "b"):
            agent.stream.publish({"sender": sender})
        agent.stream.clock += SECOND
        await agent.read(10)
        await agent.check()


async def test_a_site_whose_clock_steps_forward_accuses_nobody(scripted: MortalAgent) -> None:
    """Scripted: no server's clock can be set without the machine's."""
    await register(scripted, 30)
    scripted.stream.clock += 3_600 * SECOND
    await register(scripted, 30)
    counters = scripted.tracker.state.counters
    assert counters["advisories"] == {"new": 2}
    assert counters["blind"] == {"unproven": 1}
    (span,) = [item for item in scripted.recorded_inputs() if isinstance(item, BlindSpan)]
    assert span.cause is BlindCause.UNPROVEN
    assert 3_599 * SECOND <= span.ended_at - span.started_at <= 3_602 * SECOND


async def test_a_site_whose_clock_steps_back_accuses_nobody_and_goes_on(scripted: MortalAgent) -> None:
    """Scripted: no server's clock can be set without the machine's."""
    await register(scripted, 30)
    before = scripted.tracker.state
    scripted.stream.clock -= 3_600 * SECOND
    await register(scripted, 30)
    state = scripted.tracker.state
    assert state.counters["advisories"] == {"new": 2}
    assert state.counters["blind"] == {"new_epoch": 1}
    assert state.position.incarnation != before.position.incarnation
    assert state.observed_through >= before.observed_through


async def test_small_steps_of_the_sites_clock_are_clamped_and_change_nothing(scripted: MortalAgent) -> None:
    """Scripted: no server's clock can be set without the machine's."""
    await register(scripted, 30)
    for step in (-3, 2, -5, 4, -1, 3):
        scripted.stream.clock += step * SECOND
        await register(scripted, 8)
    state = scripted.tracker.state
    assert state.counters["advisories"] == {"new": 2}
    assert "blind" not in state.counters
    assert state.counters["clamped"]["stored_earlier"] > 0


async def test_days_of_backlog_are_decided_as_they_would_have_been_in_time(tmp_path: Path) -> None:
    """Scripted: no server stores a message of the day before yesterday. Read at once, or as it came: the same."""
    policy = Policy(
        sample_interval=3_600 * SECOND, stale_after=720 * SECOND, retire_after=DAY, blind_after=180 * SECOND
    )
    every, days, silent = 60, 3, range(600, 2_000)
    stories = []
    for batch in (4_000, 7):
        agent = MortalAgent(tmp_path / f"{batch}.db", ScriptedStream(START), policy, 1000)
        await agent.start()
        for minute in range(days * 24 * 60 * 60 // every):
            agent.stream.publish({"sender": "steady"})
            if minute not in silent:
                agent.stream.publish({"sender": "moody"})
            agent.stream.clock += every * SECOND
            if batch == 7:
                await agent.read(batch)
        while agent.tracker.state.position.sequence < agent.stream.held:
            await agent.read(batch)
        await agent.check()
        state = agent.tracker.state
        stories.append((state.counters["advisories"], state.observed_since, state.advisory_ordinal))
        await agent.store.close()
    assert stories == [({"new": 2, "stale": 1, "recovered": 1}, START, 4)] * 2

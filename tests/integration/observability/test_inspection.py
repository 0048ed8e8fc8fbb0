"""What an operator asks a store, with the agent up, cut off or dead: who is heard, what was decided, what waits."""

import asyncio
import base64
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest_asyncio

from edge_agent.inspection.explanation import Explanation
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.agent.operated_agent import OperatedAgent, operated_agent
from tests.support.waiting import until

STALE_AFTER = 4 * SECOND


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


@pytest_asyncio.fixture
async def agent(stage: Stage) -> AsyncIterator[OperatedAgent]:
    async with operated_agent(stage.config_path) as agent:
        yield agent


# Senders


async def test_senders_are_listed_with_what_becomes_of_them_if_they_are_not_heard(
    stage: Stage, agent: OperatedAgent
) -> None:
    async with registering(stage.site, "web-1", "web-2", "db-1") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 3), "all are known")
        nodes.fall_silent("db-1")
        await until(lambda: told(stage, AdvisoryKind.STALE, 1), "db-1 is missed")
        listed = await agent.json("senders")
        assert (listed["heard"], listed["stale"], listed["matching"], listed["unwatched"]) == (2, 1, 3, [])
        assert all(line["is_watched"] for line in listed["senders"])
        assert listed["senders"][0]["sender_id"] == "db-1", "the longest silent comes first"
        silent, *living = listed["senders"]
        (stale,) = [each for each in await stage.region.advisories() if each.kind is AdvisoryKind.STALE]
        assert (silent["state"], silent["last_seen_at"]) == ("stale", stale.last_seen_us)
        assert silent["due_at"] == stale.last_seen_us + 3600 * SECOND
        assert all(line["due_at"] == line["last_seen_at"] + STALE_AFTER for line in living)

        assert names(await agent.json("senders", "--match", "web-*")) == {"web-1", "web-2"}
        assert names(await agent.json("senders", "--state", "stale")) == {"db-1"}

        async def are_told_apart() -> bool:
            # Of those who live the agent may be behind for a moment.
            lately, before = [names(await agent.json("senders", each, "3s")) for each in ("--since", "--not-since")]
            return (lately, before) == ({"web-1", "web-2"}, {"db-1"})

        await until(are_told_apart, "who was heard lately is told from who was not")
        assert len((await agent.json("senders", "--limit", "1"))["senders"]) == 1
        assert (await agent.json("senders", "--newest-first"))["senders"][-1]["sender_id"] == "db-1"
        _, page, _ = await agent.command("senders")
        assert page.splitlines()[0].split() == ["SENDER", "STATE", "LAST", "SEEN", "FORWARDED", "IF", "NOT", "HEARD"]
        assert "3 of 3 senders match; 2 heard, 1 stale in all" in page

    await agent.end()
    listed = await agent.json("senders")
    assert (listed["matching"], listed["unwatched"]) == (3, ["nodes"])
    assert not any(line["is_watched"] for line in listed["senders"])
    _, page, _ = await agent.command("senders")
    assert "\nNot watched now: nodes. " in page


async def test_what_cannot_be_shown_is_said_in_one_line(stage: Stage) -> None:
    agent = OperatedAgent(stage.config_path)
    for command in (("senders",), ("advisories",), ("explain", "web-1"), ("outbox",)):
        code, output, errors = await agent.command(*command)
        assert (code, output) == (1, "")
        problem = f"store {stage.store_path}: there is no such file; has the agent run with these settings?"
        assert errors == f"muster-agent: {problem}\n"
    code, _, errors = await agent.command("senders", "--since", "yesterday")
    assert code == 2
    assert "'yesterday' is neither a duration (90s, 1h30m) nor an instant (2026-01-31T00:00:00Z)" in errors


# Decisions


async def test_advisories_are_those_of_the_hub_and_say_whether_they_were_sent(
    stage: Stage, agent: OperatedAgent
) -> None:
    async with registering(stage.site, "a") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "a is known")
        await until(lambda: nothing_waits(agent), "everything is acknowledged")
        await stage.region.link.cut()
        nodes.speak_up("b")
        await until(lambda: recorded(agent, "waiting"), "an advisory waits")
        lines = await agent.json_lines("advisories", "--kind", "new", "--kind", "forwarded")
        assert [(line["decision"], line["sender_id"], line["record"]) for line in lines] == [
            ("new", "a", "acknowledged"),
            ("forwarded", "a", "acknowledged"),
            ("new", "b", "waiting"),
            ("forwarded", "b", "waiting"),
        ]
        assert [line["reason"] for line in lines if line["decision"] == "forwarded"] == ["new", "new"]
        assert [line["sender_id"] for line in await agent.json_lines("advisories", "--sender", "[b-z]")] == ["b"]
        assert [line["sender_id"] for line in await agent.json_lines("advisories", "--limit", "1")] == ["b"]
        assert await agent.json_lines("advisories", "--since", "2100-01-01T00:00:00Z") == []
        await stage.region.link.restore()
        await until(lambda: told(stage, AdvisoryKind.NEW, 2), "b has arrived")
        await until(lambda: nothing_waits(agent), "its acknowledgement is committed")
    await agent.end(signal.SIGTERM)
    said = {each.event_id: each for each in await stage.region.advisories()}
    logged = {line["event_id"]: line for line in await agent.json_lines("advisories")}
    assert logged.keys() == said.keys()
    for event_id, line in logged.items():
        advisory = said[event_id]
        assert (line["decision"], line["sender_id"], line["at"]) == (advisory.kind, advisory.value, advisory.at_us)
        assert (line["sequence"], line["ordinal"]) == (advisory.sequence, advisory.ordinal)
    forwarded = await agent.json_lines("advisories", "--kind", "forwarded")
    assert len(forwarded) == len(await stage.region.records(".registration")) == 2


async def test_follow_goes_on_with_what_is_decided(stage: Stage, agent: OperatedAgent) -> None:
    async with registering(stage.site, "a") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "a is known")
        following = await agent.spawn("advisories", "--follow", "--json")
        try:
            assert following.stdout is not None
            async with asyncio.timeout(180):
                assert msgspec.json.decode(await following.stdout.readline())["sender_id"] == "a"
                nodes.speak_up("b")
                assert msgspec.json.decode(await following.stdout.readline())["sender_id"] == "b"
                nodes.fall_silent("b")
                stale = msgspec.json.decode(await following.stdout.readline())
                assert (stale["decision"], stale["sender_id"]) == ("stale", "b")
        finally:
            following.terminate()
            await following.wait()


# Explanations


async def test_an_explanation_tells_each_decision_and_the_blind_span_in_between(
    stage: Stage, agent: OperatedAgent
) -> None:
    async with registering(stage.site, "a", "b") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 2), "both are known")
        nodes.fall_silent("a", "b")
        await agent.end(signal.SIGTERM)
        # Longer than blind_after: nothing was stored meanwhile that could prove the stream.
        await asyncio.sleep(2.5)
        await agent.start()
        nodes.speak_up("a")
        await until(lambda: told(stage, AdvisoryKind.STALE, 1), "b is missed")
        nodes.speak_up("b")
        await until(lambda: told(stage, AdvisoryKind.RECOVERED, 1), "b is back")
        explained = await explanation(agent, "b")
        code, page, _ = await agent.command("explain", "b")
    (stale,) = [each for each in await stage.region.advisories() if each.kind is AdvisoryKind.STALE]
    headings = [entry.get("decision") or entry["type"] for entry in explained["history"]]
    assert headings == ["new", "forwarded", "blind_span", "stale", "recovered", "forwarded"]
    assert explained["tracked"]["state"] == "heard"
    assert explained["tracked"]["due_at"] == explained["tracked"]["last_seen_at"] + STALE_AFTER
    (span,) = [entry for entry in explained["history"] if entry.get("type") == "blind_span"]
    assert stale.at_us == span["ended_at"] + STALE_AFTER, "a blind observer accuses nobody"
    assert code == 0
    text = " ".join(page.split())
    assert text.startswith("b (site dub1, stream nodes): heard last seen 20")
    assert f"Heard for the first time, in message {stale.opening_sequence}." in text
    assert "nothing proved that it could be seen: agent, link or server was away" in text
    assert "the stream watched, its time counted from" in text
    assert "because it was heard again." in text
    assert len(page.rpartition("\n\n")[2].splitlines()) == 1 + len(headings), "a line each, where it is no terminal's"


async def test_an_unknown_sender_is_answered_with_similar_names(stage: Stage, agent: OperatedAgent) -> None:
    async with registering(stage.site, "web-1.example.net"):
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "it is known")
    code, output, errors = await agent.command("explain", "web-1")
    assert (code, output) == (1, "")
    assert errors == (
        "muster-agent: sender web-1: not known to this store, and nothing was decided of it; "
        "did you mean web-1.example.net?\n"
    )


async def test_a_retired_sender_is_still_explained(stage: Stage) -> None:
    stage.config_path.write_text(stage.config_path.read_text().replace('retire_after = "1h"', 'retire_after = "5s"'))
    async with registering(stage.site, "a", "b") as nodes, operated_agent(stage.config_path) as agent:
        await until(lambda: told(stage, AdvisoryKind.NEW, 2), "both are known")
        nodes.fall_silent("b")
        await until(lambda: told(stage, AdvisoryKind.RETIRED, 1), "b is retired")
        explained = await explanation(agent, "b")
    assert explained["tracked"] is None
    assert [entry["decision"] for entry in explained["history"]] == ["new", "forwarded", "stale", "retired"]


# The outbox


async def test_the_outbox_is_listed_exported_and_dropped_while_the_agent_runs(
    stage: Stage, agent: OperatedAgent, tmp_path: Path
) -> None:
    async with registering(stage.site, "a") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "a is known")
        await until(lambda: nothing_waits(agent), "everything is acknowledged")
        await stage.region.link.cut()
        nodes.speak_up("b", "c")
        await until(lambda: waiting(agent, registrations=2, advisories=2), "what was decided waits")
        await until(lambda: is_explained(agent), "it is said why nothing leaves")

        target, precious = tmp_path / "outbox.jsonl", tmp_path / "precious"
        precious.write_text("somebody's")
        target.with_name(f"{target.name}.part").symlink_to(precious)
        code, output, _ = await agent.command("outbox", "--to", str(target))
        assert (code, output.startswith(tuple("123456789"))) == (0, True)
        assert (stat.S_IMODE(target.lstat().st_mode), target.is_symlink()) == (0o600, False)
        assert precious.read_text() == "somebody's", "what lies in the way of an export is not written through"
        records = [msgspec.json.decode(line) for line in target.read_bytes().splitlines()]
        sent = [each for each in records if each["lane"] == "registrations"]
        assert {each["sender_id"] for each in sent} == {"b", "c"}
        bodies = [msgspec.json.decode(base64.b64decode(each["payload"])) for each in sent]
        assert {body["sender"] for body in bodies} == {"b", "c"}
        assert all(each["headers"]["Muster-Reason"] == "new" for each in sent)
        code, _, errors = await agent.command("outbox", "--to", str(target))
        assert (code, errors) == (1, f"muster-agent: {target}: is there already; name a new file\n")

        code, _, errors = await agent.command("outbox", "drop", "--lane", "registrations")
        assert (code, "--yes drops without asking" in errors) == (2, True)
        code, output, _ = await agent.command("outbox", "drop", "--lane", "registrations", "--yes")
        assert (code, output.startswith("2 registrations ("), output.endswith(" dropped\n")) == (0, True, True)
        assert await waiting(agent, registrations=0, advisories=2)
        forwarded = await agent.json_lines("advisories", "--kind", "forwarded")
        assert {each["sender_id"]: each["record"] for each in forwarded} == {
            "a": "acknowledged",
            "b": "operator",
            "c": "operator",
        }
        await stage.region.link.restore()
        await until(lambda: told(stage, AdvisoryKind.NEW, 3), "the advisories arrive all the same")
        await until(lambda: vouches_for_drops(stage, 2), "the watermark counts what was dropped")
    assert len(await stage.region.records(".registration")) == 1
    assert "Traceback" not in agent.log_path.read_text()


async def test_registrations_are_dropped_while_the_agent_is_down(stage: Stage, agent: OperatedAgent) -> None:
    async with registering(stage.site, "a") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "a is known")
        await until(lambda: nothing_waits(agent), "everything is acknowledged")
        await stage.region.link.cut()
        nodes.speak_up("b")
        await until(lambda: waiting(agent, registrations=1, advisories=1), "what was decided waits")
        await agent.end()
        code, output, _ = await agent.command("outbox", "drop", "--lane", "registrations", "--yes")
        assert (code, output.startswith("1 registrations ("), output.endswith(" dropped\n")) == (0, True, True)
        code, output, _ = await agent.command("outbox", "drop", "--lane", "registrations", "--yes")
        assert (code, output) == (0, "No registrations wait: nothing to drop.\n")
        await agent.start()
        await stage.region.link.restore()
        await until(lambda: told(stage, AdvisoryKind.NEW, 2), "the advisory arrives")
        await until(lambda: vouches_for_drops(stage, 1), "the watermark counts what was dropped")
    assert len(await stage.region.records(".registration")) == 1


async def test_a_hung_agent_drops_nothing_behind_the_operators_back(stage: Stage, agent: OperatedAgent) -> None:
    async with registering(stage.site, "a") as nodes:
        await until(lambda: told(stage, AdvisoryKind.NEW, 1), "a is known")
        await until(lambda: nothing_waits(agent), "everything is acknowledged")
        await stage.region.link.cut()
        nodes.speak_up("b")
        await until(lambda: waiting(agent, registrations=1, advisories=1), "what was decided waits")
        agent.send_signal(signal.SIGSTOP)
        asking = asyncio.create_task(agent.command("outbox", "drop", "--lane", "registrations", "--yes"))
        done, _ = await asyncio.wait({asking}, timeout=2)
        assert not done, "it waits for the agent's answer"
        agent.send_signal(signal.SIGCONT)
        code, output, _ = await asking
        assert (code, output.startswith("1 registrations (")) == (0, True)


# Helpers


async def explanation(agent: OperatedAgent, sender_id: str) -> dict[str, Any]:
    (explained,) = await agent.json("explain", sender_id)
    assert explained.keys() == set(Explanation.__struct_fields__)
    return dict(explained)


def names(listed: dict[str, Any]) -> set[str]:
    return {line["sender_id"] for line in listed["senders"]}


async def told(stage: Stage, kind: AdvisoryKind, count: int) -> bool:
    return len(await stage.region.senders_with(kind)) >= count


async def recorded(agent: OperatedAgent, record: str) -> bool:
    return record in {line["record"] for line in await agent.json_lines("advisories")}


async def waiting(agent: OperatedAgent, *, registrations: int, advisories: int) -> bool:
    report = await agent.json("outbox")
    counts = {each["records"]: each["count"] for each in report["waiting"]}
    return (counts.get("registrations", 0), counts.get("advisories", 0)) == (registrations, advisories)


async def nothing_waits(agent: OperatedAgent) -> bool:
    return await waiting(agent, registrations=0, advisories=0)


async def is_explained(agent: OperatedAgent) -> bool:
    _, page, _ = await agent.command("outbox")
    return "Nothing leaves: upstream not connected: " in page


async def vouches_for_drops(stage: Stage, count: int) -> bool:
    marks = await stage.region.watermarks()
    return bool(marks) and marks[-1].counters.get("dropped", {}) == {"operator": count}

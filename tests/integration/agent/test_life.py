"""Starts of an agent: refusals in one line, a lost store, and servers that come late."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from msgspec import UNSET

from shared.identifiers import AdvisoryKind, Incarnation
from tests.support.agent.agent_process import agent_process
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.waiting import until


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


# Refusals


async def refusal(config_path: Path) -> str:
    """Run an agent that must refuse at once, in one line."""
    async with agent_process(config_path) as agent:
        assert await agent.ended() == 1
        assert agent.log.count("\n") == 1, agent.log
        return agent.log.strip()


async def test_a_store_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(MINIMAL.format(store="/proc/agent.db", key=""))
    line = await refusal(path)
    assert line.startswith("muster-agent: store /proc/agent.db: ")
    assert line.endswith("; the agent needs to write there")
    assert "Errno" not in line


async def test_a_secret_that_is_none_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    (tmp_path / "key").write_text("open sesame")
    path.write_text(MINIMAL.format(store=tmp_path / "agent.db", key=tmp_path / "key"))
    line = await refusal(path)
    assert line.startswith(f"muster-agent: id key file {tmp_path / 'key'}: ")
    assert line.endswith("; it must hold 32 bytes in hex")


async def test_a_secret_that_was_cut_keeps_no_agent_from_starting(stage: Stage) -> None:
    key = stage.store_path.with_name(f"{stage.store_path.name}.id-key")
    key.write_text("00ff")
    async with registering(stage.site, "a"), agent_process(stage.config_path) as agent:
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "a is known")
        assert f"id key file {key}: 2 bytes; set aside as {key}.damaged, a new one is made" in agent.log


MINIMAL = """
site = "dub1"
region = "eu-west"
[upstream]
servers = ["nats://127.0.0.1:1"]
id_key_file = "{key}"
[store]
path = "{store}"
[monitor]
listen = ""
[[stream]]
name = "nodes"
[stream.source]
servers = ["nats://127.0.0.1:1"]
stream = "REGISTRATION"
[stream.sender]
json_path = "sender"
"""


# Beginnings


async def test_an_agent_whose_store_lost_its_log_reports_its_senders_as_not_new(stage: Stage) -> None:
    async with registering(stage.site, "a"), agent_process(stage.config_path) as agent:
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "a is known")
        agent.kill()
        stage.store_path.with_name(f"{stage.store_path.name}-wal").unlink()
        # It ends once more before it meets its stream.
        await stage.site.link.cut()
        agent.start()
        await until(lambda: "beginning anew" in agent.log, "the loss is said")
        agent.kill()
        await stage.site.link.restore()
        agent.start()
        await until(lambda: _is_announced_twice(stage), "a is announced again")
        await until(lambda: _is_vouched_for_anew(stage), "the new store's agent vouches")
    first, second = await stage.region.advisories()
    assert (first.kind, first.rebuilt, second.kind, second.rebuilt) == ("new", False, "new", True)
    assert first.incarnation != second.incarnation
    marks = [mark for mark in await stage.region.watermarks() if mark.incarnation == second.incarnation]
    assert {mark.rebuilt_at_us for mark in marks} == {second.at_us}


@pytest.mark.provokes("store_lost")
async def test_agent_on_a_new_host_without_its_store_reports_that_another_one_was_there(stage: Stage) -> None:
    async with registering(stage.site, "a"), agent_process(stage.config_path) as agent:
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "a is known")
        await until(stage.region.watermarks, "the first store covers time")
        assert not any(mark.conditions for mark in await stage.region.watermarks() if mark.conditions is not UNSET)
        agent.kill()
        for path in stage.store_path.parent.glob(f"{stage.store_path.name}*"):
            path.unlink()
        agent.start()
        await until(lambda: _is_announced_twice(stage), "a is announced again")
        await until(lambda: _is_named(stage, "store_lost"), "the loss is a condition")
    first, second = await stage.region.advisories()
    assert (first.kind, first.rebuilt, second.kind, second.rebuilt) == ("new", False, "new", True)
    marks = await stage.region.watermarks()
    stores = {(mark.incarnation, mark.store_began_us, mark.rebuilt_at_us) for mark in marks}
    began = [Incarnation.parse(each.incarnation).epoch_at for each in (first, second)]
    assert stores == {(first.incarnation, began[0], 0), (second.incarnation, began[1], second.at_us)}


async def test_an_older_copy_of_the_store_that_was_put_back_uses_no_ordinal_twice(stage: Stage) -> None:
    older = stage.store_path.with_name("older")
    older.mkdir()

    def files() -> list[Path]:
        return [path for path in stage.store_path.parent.glob(f"{stage.store_path.name}*") if path.is_file()]

    async def is_told(*names: str) -> bool:
        return set(names) <= set(await stage.region.senders_with(AdvisoryKind.NEW))

    async with registering(stage.site, "a") as nodes, agent_process(stage.config_path) as agent:
        await until(lambda: is_told("a"), "a is known")
        await agent.stop()
        for path in files():
            shutil.copy(path, older)
        nodes.speak_up("b")
        agent.start()
        await until(lambda: is_told("b"), "b is known")
        agent.kill()
        nodes.speak_up("c")
        agent.start()
        await until(lambda: is_told("c"), "c is known")
        assert "an older copy of the store" not in agent.log
        await agent.stop()

        for path in files():
            path.unlink()
            if (older / path.name).exists():
                shutil.copy(older / path.name, path)
        nodes.speak_up("d")
        agent.start()
        await until(lambda: is_told("d"), "d is known")
        assert agent.log.count("an older copy of the store was put back") == 1
        await agent.stop()

        # To begin anew on purpose, behind what was acknowledged, is no older copy.
        for path in files():
            path.unlink()
        nodes.speak_up("e")
        agent.start()
        await until(lambda: is_told("e"), "e is known")
        assert agent.log.count("an older copy of the store was put back") == 1
    advisories = await stage.region.advisories()
    numbered = {(each.incarnation, each.ordinal): each.event_id for each in advisories}
    assert len(numbered) == len({each.event_id for each in advisories})
    assert [each.value for each in advisories].count("b") > 1, "it is announced in each epoch that hears it"


async def _is_vouched_for_anew(stage: Stage) -> bool:
    return any(mark.rebuilt_at_us for mark in await stage.region.watermarks())


async def _is_named(stage: Stage, condition: str) -> bool:
    marks = await stage.region.watermarks()
    return any(mark.conditions is not UNSET and condition in mark.conditions for mark in marks)


async def _is_announced_twice(stage: Stage) -> bool:
    return len(await stage.region.senders_with(AdvisoryKind.NEW)) == 2


async def test_an_agent_waits_for_servers_and_streams_that_come_late(stage: Stage) -> None:
    await stage.site.delete_stream()
    await stage.site.link.cut()
    await stage.region.link.cut()
    async with agent_process(stage.config_path) as agent:
        await until(lambda: agent.log.count(": connecting") == 2, "it looks for its servers")
        await stage.region.link.restore()
        await stage.site.link.restore()
        await until(lambda: "stream not found" in agent.log, "the stream is missed")
        await stage.site.make_stream()
        async with registering(stage.site, "a"):
            await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "a is known")

"""What an operator sees of a full disk and of a full outbox: what it is, what becomes of it, and that it is over."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from edge_agent.observability.status_report import read_status
from shared.identifiers import AdvisoryKind
from tests.support.agent.agent_process import AgentProcess, agent_process
from tests.support.agent.agent_stage import Stage, agent_stage, registering
from tests.support.faults.disk import SmallDisk
from tests.support.waiting import until

PATIENCE = 60.0


@pytest_asyncio.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with agent_stage(tmp_path) as stage:
        yield stage


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with SmallDisk(tmp_path / "disk") as disk:
        if not disk.is_small:
            pytest.skip("a disk of its own for the store can be mounted by root only")
        yield disk


async def told_by_check(agent: AgentProcess) -> tuple[int, str]:
    code, output, _ = await agent.command("status", "--check")
    return code, output


@pytest.mark.provokes("disk_full")
@pytest.mark.parametrize("left", [0, 40 << 20], ids=["not one byte left", "less than the reserve left"])
async def test_a_full_disk_is_said_while_it_lasts_and_when_it_is_over(stage: Stage, disk: SmallDisk, left: int) -> None:
    stage.store_path = disk.path / "agent.db"
    stage.write_settings()
    async with registering(stage.site, "a") as nodes, agent_process(stage.config_path) as agent:
        await until(lambda: stage.region.senders_with(AdvisoryKind.NEW), "a is known")
        disk.fill(left)
        await until(lambda: 'msg="stream nodes: paused, disk full: ' in agent.log, "the log says it", PATIENCE)

        async def says_so() -> bool:
            _, page, _ = await agent.command("status")
            code, problems = await told_by_check(agent)
            # With not one byte left the log may still have room for the status, or not even that.
            is_said = "paused, disk full for " in page or (not left and "cannot write: its disk is full (" in page)
            return code == 1 and "disk full" in problems and "(disk_full for " in problems and is_said

        await until(says_so, "status says it", PATIENCE)
        nodes.speak_up("b")
        committed = read_status(stage.store_path).blocks[0].state.position.sequence
        assert await stage.site.last_sequence() > committed
        assert await stage.site.acknowledged_through() <= committed, "a work queue would have let it go"
        disk.free()
        await until(lambda: 'msg="stream nodes: reading again after ' in agent.log, "the log says its end", PATIENCE)

        async def is_useful() -> bool:
            return await told_by_check(agent) == (0, "useful\n")

        await until(is_useful, "status says that all is well", PATIENCE)

        async def knows_both() -> bool:
            return set(await stage.region.senders_with(AdvisoryKind.NEW)) == {"a", "b"}

        await until(knows_both, "what was said meanwhile is known", PATIENCE)
        assert "Traceback" not in agent.log
        assert agent.log.count("paused, disk full: ") == 1, "repetitions are summed up"


async def test_samples_that_a_full_outbox_gives_up_are_counted_in_status_and_log(stage: Stage) -> None:
    stage.config_path.write_text(
        stage.config_path.read_text().replace("[watermark]", 'max_outbox = "1MiB"\n[watermark]')
    )
    async with agent_process(stage.config_path) as agent:
        await until(lambda: "stream nodes: reading" in agent.log, "the agent reads", PATIENCE)
        await stage.region.link.cut()
        filler = b"x" * 20_000
        await stage.site.publish(*(b'{"sender": "n%d", "filler": "%s"}' % (number, filler) for number in range(80)))

        async def counts() -> bool:
            status = await agent.report()
            return status is not None and status.outbox_counters.get("dropped", {}).get("outbox_full", 0) > 20

        await until(counts, "drops are counted", PATIENCE)
        _, page, _ = await agent.command("status")
        assert "dropped         outbox_full " in page
        await until(lambda: 'msg="stream nodes: dropped: outbox_full ' in agent.log, "the log tells of it", PATIENCE)
        status = await agent.report()
        assert status is not None
        assert 0 < status.room < 64 << 10
        await stage.region.link.restore()

        async def has_arrived() -> bool:
            return len(await stage.region.senders_with(AdvisoryKind.NEW)) == 80

        await until(has_arrived, "no advisory was dropped", PATIENCE)


async def test_reading_pauses_where_nothing_may_be_dropped_and_goes_on(stage: Stage) -> None:
    stage.config_path.write_text(
        stage.config_path.read_text().replace("[watermark]", 'max_outbox = "1MiB"\n[watermark]')
    )
    async with agent_process(stage.config_path) as agent:
        await until(lambda: "stream nodes: reading" in agent.log, "the agent reads", PATIENCE)
        await stage.region.link.cut()
        await stage.site.publish(*(b'{"sender": "node-%d.example.net"}' % number for number in range(4_000)))

        async def pauses() -> bool:
            return "stream nodes: paused, outbox full" in (await told_by_check(agent))[1]

        await until(pauses, "status says that it pauses", PATIENCE)
        assert "stream nodes: paused, outbox full: " in agent.log
        await stage.region.link.restore()

        async def goes_on() -> bool:
            return len(await stage.region.senders_with(AdvisoryKind.NEW)) == 4_000

        await until(goes_on, "all senders are told of", PATIENCE)
        await until(lambda: "stream nodes: reading again after " in agent.log, "the log says its end", PATIENCE)

"""An agent that cannot go on, or is told to stop, says so to its region, and vouches for nothing more by that."""

from pathlib import Path

from shared.wire import STOPPING
from tests.support.agent.agent_process import DEADLINE, deployed
from tests.support.waiting import until


async def test_an_agent_says_what_it_cannot_read_and_that_it_was_told_to_stop(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:
        deployment.agent.start()
        async with deployment.senders(["web1"]):
            await deployment.until_observed(await deployment.site_time())
        await deployment.site.server.stop()

        async def conditions() -> set[object]:
            return {mark.condition for mark in await deployment.watermarks()}

        async def has_said() -> bool:
            return bool(await conditions() & {"link_down", "stream_not_read"})

        await until(has_said, "what it cannot read", DEADLINE)
        await deployment.agent.stopped()
        *before, last = await deployment.watermarks()
        assert (last.condition, last.boot_id) == (STOPPING, before[0].boot_id)
        ordinary = [mark.observed_through_us for mark in before if not mark.condition]
        assert max(ordinary) >= max(mark.observed_through_us for mark in (*before, last))


async def test_nothing_is_said_past_an_advisory_that_waits(tmp_path: Path) -> None:
    async with deployed(tmp_path) as deployment:

        async def has(condition: str) -> bool:
            return condition in {each["name"] for each in (await deployment.agent.status_json())["conditions"]}

        deployment.agent.start()
        async with deployment.senders(["web1"]):
            await deployment.until_observed(await deployment.site_time())
            # The region takes watermarks alone.
            await deployment.region.update_stream(subjects=["fleet.*.*.*.watermark"])
            async with deployment.senders(["web2"]):
                await until(lambda: has("region_refuses"), "an advisory waits", DEADLINE)
        said = await deployment.watermarks()
        await deployment.site.server.stop()

        await until(lambda: has("stream_not_read"), "the stream is not read", DEADLINE)
        await deployment.agent.stopped()
        assert await deployment.watermarks() == said
        assert not any(mark.condition for mark in said)

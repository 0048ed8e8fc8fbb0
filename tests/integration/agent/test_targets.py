"""Where a block samples, a target's prefix takes the place of the site's own subjects; the rest of them stays."""

from pathlib import Path

from tests.support.agent.agent_process import deployed
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.waiting import until


async def test_all_records_of_a_sampling_block_go_below_the_prefix(tmp_path: Path) -> None:
    target = '\n[stream.target]\nprefix = "choria.fleet"\n'
    async with deployed(tmp_path, ABOVE_BLOCKS + block("nodes", "sample", SAMPLING + target)) as deployment:
        await deployment.region.update_stream(subjects=["choria.fleet.>", "fleet.>"])
        await deployment.site.publish(b'{"sender":"a"}')
        deployment.agent.start()
        wanted = {"choria.fleet.registration", "choria.fleet.advisory.new", "choria.fleet.watermark"}

        async def subjects() -> set[str]:
            info = await deployment.region.api("STREAM.INFO.FLEET", {"subjects_filter": ">"})
            return set(info["state"].get("subjects", {}))

        async def are_there() -> bool:
            return await subjects() >= wanted

        await until(are_there, "a record of each kind is in the region", 60.0)
        assert await subjects() == wanted

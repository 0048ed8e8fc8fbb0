"""A server's own messages, which stand for what it let go, are nobody's sign of life."""

from pathlib import Path

from shared.identifiers import AdvisoryKind
from tests.support.agent_stage import Stage, agent_stage, registering
from tests.support.agent_within import agent_within
from tests.support.source_site import STREAM
from tests.support.waiting import until

MARKS_WHAT_EXPIRES = {
    "max_age": 8_000_000_000,
    "allow_msg_ttl": True,
    "subject_delete_marker_ttl": 60_000_000_000,
    "allow_rollup_hdrs": True,
}


async def test_a_silent_node_does_not_recover_by_the_marker_of_its_last_word(tmp_path: Path) -> None:
    async with agent_stage(tmp_path) as stage:
        await stage.site.delete_stream()
        await stage.site.make_stream(**MARKS_WHAT_EXPIRES)
        settings = stage.config_path.read_text().replace('json_path = "sender"', "subject_token = 2")
        stage.config_path.write_text(settings)
        async with agent_within(stage.config_path), registering(stage.site, "a", "b") as nodes:
            await until(lambda: told(stage, AdvisoryKind.NEW, {"a", "b"}), "both are known")
            nodes.fall_silent("b")
            await until(lambda: told(stage, AdvisoryKind.STALE, {"b"}), "b is stale")
            marked_at = 0

            async def is_marked() -> bool:
                nonlocal marked_at
                last = await stage.site.api(f"STREAM.MSG.GET.{STREAM}", {"last_by_subj": "registration.b"})
                marked_at = last["message"]["seq"] if "hdrs" in last["message"] else 0
                return marked_at > 0

            await until(is_marked, "the server has marked that its last word expired")

            async def is_read() -> bool:
                return any(mark.sequence > marked_at for mark in await stage.region.watermarks())

            await until(is_read, "the marker has been read")
            assert not await stage.region.told(AdvisoryKind.RECOVERED)
            counters = (await stage.region.watermarks())[-1].counters
            assert counters["probes"]["delete_marker"] == 1


async def told(stage: Stage, kind: AdvisoryKind, senders: set[str]) -> bool:
    return set(await stage.region.told(kind)) == senders

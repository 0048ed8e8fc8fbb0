"""``check`` on real servers: silent while all is well, and one line with an exit code for each thing that is not."""

import json
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from nats.aio.client import Client

from aggregator.topology.desired.model import HUB, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.connections import connections
from aggregator.topology.observed.reader import observe
from aggregator.topology.report.evidence import gather
from aggregator.topology.report.tables import report
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.instants import HOUR, MINUTE, SECOND
from shared.nats.connection import request_json
from shared.nats.jetstream_api import create_stream
from shared.settings import load_settings
from tests.support.lakehouse.hub import Block, Message
from tests.support.topology.aggregator_command import muster, ran, refused
from tests.support.topology.archiving import acknowledged, archived_sequences, holds_sequence
from tests.support.topology.regions import Federation, answers, client_of, federation, holds, stream
from tests.support.waiting import until

REGION = "us-east"
SOURCED_WITHIN = 180.0
COPIES = {"ARCHIVE": "FLEET", "COPY": "BIG"}


class Watched(NamedTuple):
    """A hub and a region whose one site publishes as its agent would."""

    servers: Federation
    hub: Client
    agent: Client
    site: Block

    async def publish(self, *messages: Message) -> None:
        for message in messages:
            await self.agent.jetstream().publish(message.subject, message.body, timeout=20)

    async def archived(self, count: int) -> None:
        # When it sources again is the server's own choice: on a busy machine it took more than a minute.
        await until(partial(holds, self.hub, "ARCHIVE", count), f"the archive holds {count}", SOURCED_WITHIN)

    def word(self, age: int = 0) -> Message:
        """Give the site's watermark up to ``age`` microseconds ago."""
        now = time.time_ns() // 1000
        return self.site.watermark(now - 60 * MINUTE, now - age)

    async def checked(self, *options: str) -> tuple[int, str]:
        """Give exit code and line."""
        answer = await muster("check", "--config", self.servers.topology_path, *options)
        assert not answer.stderr
        assert answer.stdout.count("\n") == 1
        return answer.returncode, answer.stdout.strip()

    async def comes_to(self, code: int) -> str:
        """Check until the exit code is as expected, and give the line: reports lag by a heartbeat."""

        async def line_of_it() -> str:
            found, line = await self.checked()
            return line if found == code else ""

        return str(await until(line_of_it, f"check ends with {code}"))


@asynccontextmanager
async def watched(directory: Path, extra_toml: str = "") -> AsyncIterator[Watched]:
    async with federation(directory, (REGION,), extra_toml) as servers:
        await ran("apply", "--config", servers.topology_path)
        async with await client_of(servers.hub) as hub, await client_of(servers.regions[REGION]) as agent:
            yield Watched(servers, hub, agent, Block(REGION, "dub1"))


async def test_all_is_well(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        await stage.publish(stage.site.new("a", SECOND), stage.site.new("b", SECOND), stage.word())
        await stage.archived(3)
        await until(partial(holds, stage.hub, "REPORT", 3), "the report has it too", SOURCED_WITHIN)
        well = 0, "OK - 3 streams, 2 copies, at most 0 messages behind, 1 block watched"

        async def is_said() -> bool:
            return await stage.checked() == well

        await until(is_said, f"check says {well}")
        code, shown = await muster_json(stage)
        assert (code, shown) == (0, [])


async def muster_json(stage: Watched) -> tuple[int, Any]:
    answer = await muster("check", "--json", "--config", stage.servers.topology_path)
    return answer.returncode, json.loads(answer.stdout)


async def test_a_late_watermark_warns_and_a_later_one_is_critical(tmp_path: Path) -> None:
    async with watched(tmp_path, '[[site]]\nname = "dub1"\nregion = "us-east"\n') as stage:
        line = await stage.comes_to(2)
        assert line == "CRITICAL - us-east: no watermark of dub1 has ever come"
        await stage.publish(stage.word(10 * MINUTE))
        await stage.archived(1)
        line = await stage.comes_to(2)
        assert line.startswith("CRITICAL - us-east: the last watermark of dub1, block nodes vouches up to 10m")
        code, line = await stage.checked("--watermark", "5m,2h")
        assert (code, line.partition(" - ")[0]) == (1, "WARNING")
        await stage.publish(stage.word())
        await stage.archived(2)
        await stage.comes_to(0)


async def test_sites_that_the_settings_do_not_name_are_not_waited_for_where_they_name_some(tmp_path: Path) -> None:
    async with watched(tmp_path, '[[site]]\nname = "dub1"\nregion = "us-east"\n') as stage:
        now = time.time_ns() // 1000
        closed = Block(REGION, "closed").watermark(now - 901 * MINUTE, now - 900 * MINUTE)
        await stage.publish(closed, stage.word())
        await stage.archived(2)
        await stage.comes_to(0)


async def test_two_agents_that_are_no_pair_are_both_named(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        other = Block(REGION, "dub1", epoch=2, agent="dub1-b", boot_id="theirs")
        now = time.time_ns() // 1000
        marks = [
            (stage.site if number % 2 else other).watermark(now - HOUR, now - (4 - number) * SECOND)
            for number in range(4)
        ]
        await stage.publish(*marks)
        await stage.archived(4)
        assert "dub1-b (boot theirs) and dub1-a (boot boot) both speak for dub1, block nodes, and are no pair" in (
            await stage.comes_to(2)
        )
        _, shown = await muster_json(stage)
        contested = [each for each in shown if each["name"] == "contested"]
        assert [(each["severity"], each["place"], "make them a pair" in each["remedy"]) for each in contested] == [
            ("CRITICAL", "us-east", True)
        ]


async def test_an_older_copy_of_a_store_is_told_of_by_what_it_has_said_until_it_is_begun_anew(tmp_path: Path) -> None:
    """Also when both runs have counted on to the same number, and none of their watermarks contradicts another."""
    async with watched(tmp_path) as stage:
        copy = Block(REGION, "dub1")
        await stage.publish(stage.site.new("a", SECOND), stage.site.new("b", 2 * SECOND), stage.word())
        await stage.publish(copy.new("a", SECOND), copy.new("c", 3 * SECOND), stage.word())
        await stage.archived(6)
        assert await stage.comes_to(2) == (
            f"CRITICAL - {REGION}: two advisories of dub1, block nodes have the ordinal 2, so that nothing is known of "
            "it: an older copy of the agent's store was put back; begin its store anew"
        )
        _, shown = await muster_json(stage)
        assert [each["name"] for each in shown] == ["put_back"]
        now = time.time_ns() // 1000
        await stage.publish(Block(REGION, "dub1", epoch=2).watermark(now - SECOND, now))
        await stage.archived(7)
        await stage.comes_to(0)


async def test_a_consumer_that_somebody_has_paused_is_named_until_it_is_resumed(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        await stage.publish(stage.word())
        await stage.archived(1)
        await stage.comes_to(0)
        api = "$JS.API.CONSUMER"
        (name,) = (await request_json(stage.agent, f"{api}.NAMES.FLEET", None, dict[str, Any], deadline=20))[
            "consumers"
        ]
        pause = {"pause_until": "2099-01-01T00:00:00Z"}
        await request_json(stage.agent, f"{api}.PAUSE.FLEET.{name}", pause, dict[str, Any], deadline=20)
        assert (await stage.comes_to(2)).startswith(
            f"CRITICAL - {REGION}: somebody has paused the consumer {name} of FLEET until 2099-01-01T00:00:00Z, and "
            f"ARCHIVE of hub takes nothing from it: nats consumer resume FLEET {name}"
        )
        await request_json(stage.agent, f"{api}.PAUSE.FLEET.{name}", {}, dict[str, Any], deadline=20)
        await stage.comes_to(0)


async def test_a_hole_in_the_ordinals_is_named_until_it_is_filled(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        early, late, later = (stage.site.new(name, SECOND) for name in "abc")
        await stage.publish(early, later, stage.word())
        await stage.archived(3)
        line = await stage.comes_to(2)
        assert "us-east: the archive lacks 1 advisories of dub1, block nodes (2)" in line
        await stage.publish(late, early)
        await stage.archived(5)
        await stage.comes_to(0)


async def taken_again(stage: Watched) -> None:
    """Do what the line says, and see that nothing is lacking then."""
    line = await stage.comes_to(2)
    assert f"apply --again {REGION} takes once more what is still in FLEET" in line
    mistyped = await muster("apply", "--again", "mars", "--config", stage.servers.topology_path)
    assert mistyped.returncode == 2
    assert f"Error: --again mars: there is no such [[region]]: {REGION}\n" in mistyped.stderr
    again = ("--again", REGION, "--config", stage.servers.topology_path)
    assert f"all that FLEET of {REGION} holds comes once more" in await ran("plan", *again)
    assert await ran("plan", "--config", stage.servers.topology_path) == "nothing to do\n"
    assert "applied 3 changes" in await ran("apply", *again)
    await until(partial(holds_all, stage), "the archive has all that the region holds", SOURCED_WITHIN)
    await stage.comes_to(0)
    assert await ran("plan", "--config", stage.servers.topology_path) == "nothing to do\n"


async def holds_all(stage: Watched) -> bool:
    held = (await stream(stage.agent, "FLEET"))["state"]["last_seq"]
    return set(await archived_sequences(stage.hub)) == set(range(1, held + 1))


async def test_what_the_hubs_server_left_out_is_named_and_comes_when_it_is_wanted_again(tmp_path: Path) -> None:
    """Rarely the server itself leaves something out after an outage; here its consumer is told to."""
    async with watched(tmp_path) as stage:
        await stage.publish(stage.site.new("a", SECOND), stage.word())
        await stage.archived(2)
        await acknowledged(stage.hub, REGION, 2)
        for times in (1, 2):
            await stage.servers.links[REGION].cut()
            await stage.publish(stage.site.new(f"lost {times}", SECOND), stage.word())
            held = (await stream(stage.agent, "FLEET"))["state"]["last_seq"]
            reset = "$JS.API.CONSUMER.RESET.FLEET.muster-archive"
            await request_json(stage.agent, reset, {"seq": held}, dict[str, Any], deadline=20)
            await stage.servers.links[REGION].restore()
            await until(partial(holds_sequence, stage.hub, held), "what came behind it is archived", SOURCED_WITHIN)
            assert "the archive lacks 1 advisories of dub1, block nodes" in await stage.comes_to(2)
            await taken_again(stage)


async def test_what_a_hub_lost_that_was_restored_from_an_older_copy_is_named(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        hub = stage.servers.hub
        await stage.publish(stage.site.new("a", SECOND), stage.word())
        await stage.archived(2)
        await acknowledged(stage.hub, REGION, 2)
        await hub.stop()
        shutil.copytree(tmp_path / "hub" / "jetstream", tmp_path / "copy")
        await hub.start()
        await until(lambda: stage.hub.is_connected, "the hub is back")
        await stage.publish(stage.site.new("b", SECOND), stage.site.new("c", SECOND), stage.word())
        await stage.archived(5)
        await acknowledged(stage.hub, REGION, 5)
        await hub.stop()
        shutil.rmtree(tmp_path / "hub" / "jetstream")
        shutil.copytree(tmp_path / "copy", tmp_path / "hub" / "jetstream")
        await hub.start()
        await until(lambda: stage.hub.is_connected, "the hub is back")
        await until(partial(answers, stage.hub, REGION), "the hub reaches the region", 60)
        await stage.publish(stage.word())
        await stage.archived(3)
        line = await stage.comes_to(2)
        assert "the archive lacks 2 advisories of dub1, block nodes (2..3)" in line
        await taken_again(stage)


async def waits_behind_a_paused_consumer(stage: Watched) -> None:
    """It is heard of all the time, with lag 0 and no error: only the origin's own sequences tell."""
    pause = f"$JS.{REGION}.API.CONSUMER.PAUSE.FLEET.muster-archive"
    await request_json(stage.hub, pause, {"pause_until": "2099-01-01T00:00:00Z"}, dict[str, Any], deadline=20)
    await stage.publish(stage.word(), stage.word(), stage.word())
    (source,) = (await stream(stage.hub, "ARCHIVE"))["sources"]
    assert source["lag"] == 0

    async def warns() -> bool:
        code, line = await stage.checked("--behind", "1s,1h")
        return code == 2 and "hub: ARCHIVE is 3 messages behind FLEET of us-east, the oldest waits for " in line

    await until(warns, "what waits for a second is named beside the consumer that is paused")


async def test_a_mirror_whose_origin_was_made_anew_is_critical_until_it_is_made_again(tmp_path: Path) -> None:
    """The server shows neither an error nor a lag."""
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub")) as server:
        path = tmp_path / "topology.toml"
        streams = '[[stream]]\nname = "ORIGIN"\nsubjects = ["o"]\n[[stream]]\nname = "COPY"\n'
        path.write_text(
            f'[hub]\nservers = ["{server.url}"]\ndomain = "hub"\n{streams}[stream.mirror]\nname = "ORIGIN"\n'
        )
        await ran("apply", "--config", path)
        async with await client_of(server) as hub:
            for _ in range(5):
                await hub.jetstream().publish("o", b"before")
            await until(partial(holds, hub, "COPY", 5), "the mirror has everything")
            config = (await stream(hub, "ORIGIN"))["config"]
            await request_json(hub, "$JS.API.STREAM.DELETE.ORIGIN", None, dict[str, Any], deadline=60)
            await create_stream(hub, "$JS.API.STREAM.CREATE.ORIGIN", config, dict[str, Any], deadline=60)
            for _ in range(3):
                await hub.jetstream().publish("o", b"after")

            checked = await muster("check", "--config", path)
            said = "COPY holds what ORIGIN of hub was before it was made anew or restored (up to 5, it ends at 3)"
            assert (checked.returncode, said in checked.stdout) == (2, True), checked.stdout
            assert f"hub: {said}" in await ran("report", "--config", path)
            assert "! replace stream COPY, which deletes its 5 messages" in await ran("plan", "--config", path)
            await refused("apply", "--config", path)
            await ran("apply", "--force", "--config", path)
            await until(partial(holds, hub, "COPY", 3), "the mirror holds what its origin is")
            assert (await hub.jetstream().get_msg("COPY", 1)).data == b"after"
            assert await ran("plan", "--config", path) == "nothing to do\n"


async def test_what_waits_is_found_where_a_hub_does_not_say_how_far_a_copy_has_come(tmp_path: Path) -> None:
    """As one before 2.15, of a plain copy: as many are lacking as were pending when it last heard."""
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub")) as server:
        path = tmp_path / "topology.toml"
        text = f'[hub]\nservers = ["{server.url}"]\ndomain = "hub"\n'
        text += '[[stream]]\nname = "ORIGIN"\nsubjects = ["o"]\n[[stream]]\nname = "COPY"\n'
        path.write_text(text + '[[stream.source]]\nname = "ORIGIN"\nsourcing = "plain"\n')
        await ran("apply", "--config", path)
        settings = load_settings(path, TopologySettings)
        async with await client_of(server) as hub, connections(settings) as opened:
            for _ in range(5):
                await hub.jetstream().publish("o", b"")
            await until(partial(holds, hub, "COPY", 5), "the copy has everything")
            third = await hub.jetstream().get_msg("ORIGIN", 3)
            found = await observe(desired(settings), opened)
            shown = report(desired(settings), found)
            (row,) = shown.replication
            row = msgspec.structs.replace(row, taken=None, lag=3, behind=3)
            shown = msgspec.structs.replace(shown, replication=(row,))
            waiting = (await gather(settings, found, shown, opened, SECOND)).waiting[row.key]
            assert third.time is not None
            now = found.streams[Place(HUB, "hub"), "ORIGIN"].ts
            assert abs(now - waiting.age - third.time.timestamp() * SECOND) < 1000


async def test_what_waits_a_missing_consumer_a_cut_link_and_bad_settings_are_told(tmp_path: Path) -> None:
    async with watched(tmp_path) as stage:
        await stage.publish(stage.word())
        await stage.archived(1)
        await stage.comes_to(0)
        await waits_behind_a_paused_consumer(stage)
        delete = f"$JS.{REGION}.API.CONSUMER.DELETE.FLEET.muster-archive"
        await request_json(stage.hub, delete, None, dict[str, Any], deadline=20)
        code, line = await stage.checked()
        assert code == 2
        assert (
            "us-east: FLEET lacks the consumer muster-archive, ARCHIVE of hub takes nothing from it: apply makes it"
            in line
        )
        await stage.servers.links[REGION].cut()
        code, line = await stage.checked()
        assert code == 2
        assert "us-east: $JS.us-east.API.INFO: " in line
        stage.servers.topology_path.write_text("[hub]\nserver = 1\n")
        code, line = await stage.checked()
        assert code == 2
        assert line.startswith("CRITICAL - ")
        assert "hub.server: there is no such key, did you mean servers?" in line


@pytest.mark.parametrize("retention", ["limits", "interest", "workqueue"])
async def test_what_waits_is_seen_however_large_it_is_and_the_link_stays(tmp_path: Path, retention: str) -> None:
    """An answer of MSG.GET, in base64, would be larger than a server takes: it would end the leaf connection."""
    big = f'[[stream]]\nname = "BIG"\nplace = "us-east"\nsubjects = ["big.*"]\nretention = "{retention}"\n'
    copy = '[[stream]]\nname = "COPY"\n[[stream.source]]\nname = "BIG"\ndomain = "us-east"\nallow = true\n'
    async with watched(tmp_path, f'{big}{copy}filter_subject = "big.new"\n') as stage:
        names = await request_json(stage.agent, "$JS.API.CONSUMER.NAMES.BIG", None, dict[str, Any], deadline=20)
        for consumer in ("FLEET.muster-archive", f"BIG.{names['consumers'][0]}"):
            pause = f"$JS.API.CONSUMER.PAUSE.{consumer}"
            await request_json(stage.agent, pause, {"pause_until": "2099-01-01T00:00:00Z"}, dict[str, Any], deadline=20)
        for subject in ("fleet.us-east.dub1.nodes.registration", "big.new"):
            await stage.agent.jetstream().publish(subject, b"x" * 1_000_000, timeout=20)
            await stage.agent.jetstream().publish(subject, b"x", timeout=20)

        async def is_seen() -> bool:
            code, line = await stage.checked("--behind", "1s,1h")
            waits = "2 messages behind {} of us-east, the oldest waits for "
            return code == 2 and all(f"{copy} is {waits.format(at)}" in line for copy, at in COPIES.items())

        await until(is_seen, "what waits is seen")
        assert "Maximum" not in stage.servers.hub.log_path.read_text()


async def test_what_breaks_a_promise_is_told_and_mended_by_apply_on_real_servers(tmp_path: Path) -> None:
    """A size that an archive does not take stops all that comes behind it, with lag 0 and no error."""
    async with watched(tmp_path) as stage:
        await stage.publish(stage.word())
        # What a mirror refuses by its size, it leaves out for good.
        await until(partial(holds, stage.hub, "REPORT", 1), "the first is reported", SOURCED_WITHIN)
        hidden = {
            "subject_transform": {"src": "fleet.>", "dest": "hidden.>"},
            "republish": {"src": ">", "dest": "fleet.a.>"},
        }
        by_hand: dict[str, dict[str, Any]] = {
            f"$JS.{REGION}.API FLEET": {"no_ack": True, "consumer_limits": {"inactive_threshold": 3600 * 10**9}},
            "$JS.API ARCHIVE": {**hidden, "max_msg_size": 1},
            "$JS.API REPORT": {**hidden, "max_msg_size": 1, "max_msgs_per_subject": 1, "allow_rollup_hdrs": True},
        }
        for key, config in by_hand.items():
            api, name = key.split()
            changed = (await stream(stage.hub, name, api))["config"] | config
            await request_json(stage.hub, f"{api}.STREAM.UPDATE.{name}", changed, dict[str, Any], deadline=20)
        word = stage.word()
        await stage.agent.publish(word.subject, word.body)
        code, line = await stage.checked()
        assert (code, line.count(": apply mends it")) == (2, sum(map(len, by_hand.values()))), line
        path = stage.servers.topology_path
        assert "applied 3 changes" in await ran("apply", "--config", path)
        assert await ran("plan", "--config", path) == "nothing to do\n"
        await until(partial(holds, stage.hub, "REPORT", 2), "everything is reported", SOURCED_WITHIN)
        await stage.comes_to(0)

"""Several blocks in one agent: each reads, remembers and reports for itself, and none waits for another."""

import json
import os
import re
import signal
from pathlib import Path

import pytest

from shared.identifiers import AdvisoryKind
from tests.support.agent.agent_process import Deployment, deployed
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.waiting import until

PATIENCE = 180.0
SENDERS = 300
OTHERS = block("others", "copy", stream="OTHERS")
SAMPLED = block("nodes", "sample", SAMPLING)
COPIED = block("all", "copy")


async def records(deployment: Deployment, part: str, count: int) -> list[bytes]:
    """Wait until the region holds so many records with ``part`` in their subjects; give their bodies."""
    found: list[bytes] = []

    async def there() -> bool:
        found[:] = [record.payload for record in await deployment.region.stored() if part in record.subject]
        return len(found) >= count

    await until(there, f"{count} records on {part}", PATIENCE)
    return found


async def until_phase(deployment: Deployment, part: str, phase: str) -> None:
    async def is_there() -> bool:
        parts = (await deployment.agent.status_json()).get("parts", {})
        return part in parts and bool(parts[part]["phase"] == phase)

    await until(is_there, f"{part} is {phase}", PATIENCE)


async def test_one_stream_is_sampled_and_copied_and_another_copied(tmp_path: Path) -> None:
    unprobed = block("nodes", "sample", SAMPLING, source="probe = false")
    async with deployed(tmp_path, ABOVE_BLOCKS + unprobed + COPIED + OTHERS) as deployment:
        await deployment.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        said = [b'{"sender":"a"}', b'{"sender":"b"}', b'{"sender":"a"}']
        await deployment.site.publish(*said)
        await deployment.site.client.publish("others.x", b"else")
        deployment.agent.start()
        assert await records(deployment, ".all.copy.registration.nodes", 3) == said
        assert await records(deployment, ".others.copy.others.x", 1) == [b"else"]
        assert await records(deployment, ".nodes.registration", 2) == said[:2]
        await records(deployment, ".nodes.advisory.", 2)
        advisories = await deployment.advisories()
        assert [(each.kind, each.value) for each in advisories] == [(AdvisoryKind.NEW, "a"), (AdvisoryKind.NEW, "b")]

        async def positions() -> dict[str, int]:
            blocks = (await deployment.agent.status_json()).get("blocks", [])
            return {each["name"]: each["state"]["position"]["sequence"] for each in blocks}

        async def all_is_read() -> bool:
            return await positions() == {"nodes": 3, "all": 3, "others": 1}

        await until(all_is_read, "every block has its own position", PATIENCE)


async def test_a_block_whose_stream_is_missing_holds_up_no_other(tmp_path: Path) -> None:
    async with deployed(tmp_path, ABOVE_BLOCKS + OTHERS + COPIED) as deployment:
        deployment.agent.start()
        await deployment.site.publish(b"1", b"2")
        assert await records(deployment, ".all.copy.", 2) == [b"1", b"2"]
        await until_phase(deployment, "stream others", "source unavailable")
        await until_phase(deployment, "stream all", "reading")
        await deployment.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        await deployment.site.client.publish("others.x", b"late")
        assert await records(deployment, ".others.copy.", 1) == [b"late"]


async def test_a_block_whose_server_is_down_holds_up_no_other(tmp_path: Path) -> None:
    elsewhere = OTHERS.replace("{source}", "nats://127.0.0.1:1")
    async with deployed(tmp_path, ABOVE_BLOCKS + elsewhere + COPIED) as deployment:
        deployment.agent.start()
        await deployment.site.publish(b"1", b"2")
        assert await records(deployment, ".all.copy.", 2) == [b"1", b"2"]
        await until_phase(deployment, "source of others", "not connected")


async def test_a_stream_that_is_gone_leaves_the_senders_of_another_watched(tmp_path: Path) -> None:
    lost = block("lost", "sample", SAMPLING, stream="OTHERS")
    async with deployed(tmp_path, ABOVE_BLOCKS + SAMPLED + lost) as deployment, deployment.senders(["a"]):
        await deployment.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        await deployment.site.client.publish("others.x", b'{"sender":"b"}')
        deployment.agent.start()
        asked = ("senders", "--config", str(deployment.agent.config))

        async def until_watched(*streams: str) -> None:
            async def is_so() -> bool:
                _, output, _ = await deployment.agent.run_command(*asked, "--json")
                lines = json.loads(output or '{"senders": []}')["senders"]
                return {line["stream"]: line["is_watched"] for line in lines} == {
                    name: name in streams for name in ("nodes", "lost")
                }

            await until(is_so, f"watched are {streams}", PATIENCE)

        await until_watched("nodes", "lost")
        await deployment.site.api("STREAM.DELETE.OTHERS")
        await until_watched("nodes")
        _, page, _ = await deployment.agent.run_command(*asked)
        heading, *lines = page.splitlines()
        fates = {line.split()[0]: line[heading.index("IF NOT HEARD") :] for line in lines[:2]}
        assert re.fullmatch(r"stale (in \d+s|now)", fates["a"]), page
        assert fates["b"] == "", page
        assert lines[-1].startswith("Not watched now: lost. "), page


async def test_a_block_that_may_not_publish_holds_up_no_other(tmp_path: Path) -> None:
    denied = 'permissions: { publish: { deny: "fleet.*.*.all.copy.>" } }'
    users = f"authorization {{ users: [ {{ user: u, password: p, {denied} }} ] }}\nno_auth_user: u"
    settings = ABOVE_BLOCKS + SAMPLED + COPIED
    async with deployed(tmp_path, settings, region_config=users) as deployment:
        bodies = [f'{{"sender":"{number}"}}'.encode() for number in range(SENDERS)]
        await deployment.site.publish(*bodies)
        deployment.agent.start()
        await until_phase(deployment, "upstream", "not accepted")
        assert len(await records(deployment, ".nodes.advisory.new", SENDERS)) == SENDERS
        known = len(await deployment.watermarks())
        await records(deployment, ".nodes.watermark", known + 10)
        assert "denied" not in deployment.agent.log
        parts = (await deployment.agent.status_json())["parts"]
        denial = "fleet.eu-west.dub1.all.copy.registration.nodes: publishing there is not permitted"
        assert parts["upstream"]["reason"] == f"block all: {denial}"

        server = deployment.region.server
        config_path = server.settings.store_dir / "nats-server.conf"
        config_path.write_text(config_path.read_text().replace(denied, ""))
        os.kill(server.pid, signal.SIGHUP)
        assert await records(deployment, ".all.copy.", SENDERS) == bodies
        await until_phase(deployment, "upstream", "connected")


async def test_a_block_whose_target_no_stream_takes_is_named_and_copies_go_on(tmp_path: Path) -> None:
    """Advisories share a lane: those of the other sampling block wait, and leave when the target is mended."""
    mistyped = block("lost", "sample", SAMPLING + '\n[stream.target]\nprefix = "nowhere"\n', stream="OTHERS")
    async with deployed(tmp_path, ABOVE_BLOCKS + mistyped + SAMPLED + COPIED) as deployment:
        await deployment.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        await deployment.site.client.publish("others.x", b'{"sender":"b"}')
        deployment.agent.start()

        async def is_named() -> bool:
            parts = (await deployment.agent.status_json()).get("parts", {})
            why = r"block lost: nowhere\..+: no stream of this account (in domain [\w-]+ )?has that subject"
            return bool(re.fullmatch(why, parts.get("upstream", {}).get("reason", "")))

        await until(is_named, "the block is named, and the cause")
        await deployment.site.publish(b'{"sender":"a"}')
        assert await records(deployment, ".all.copy.", 1) == [b'{"sender":"a"}']

        await deployment.region.update_stream(subjects=["fleet.>", "nowhere.>"])
        await records(deployment, ".nodes.advisory.new", 1)
        await records(deployment, ".nodes.watermark", 1)
        await until_phase(deployment, "upstream", "connected")


async def test_each_block_goes_on_from_its_own_position_after_a_kill(tmp_path: Path) -> None:
    async with deployed(tmp_path, ABOVE_BLOCKS + COPIED + OTHERS) as deployment:
        await deployment.site.api("STREAM.CREATE.OTHERS", {"name": "OTHERS", "subjects": ["others.>"]})
        deployment.agent.start()
        await deployment.site.publish(b"1", b"2")
        await records(deployment, ".all.copy.", 2)
        deployment.agent.kill()
        await deployment.site.publish(b"3")
        await deployment.site.client.publish("others.x", b"4")
        deployment.agent.start()
        assert await records(deployment, ".others.copy.", 1) == [b"4"]
        assert await records(deployment, ".all.copy.", 3) == [b"1", b"2", b"3"]


# A store that was written under other names


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'site = "dub1"',
            'site = "dub2"',
            "belongs to site dub1 of region eu-west, the settings say site dub2 of region eu-west: name them as before",
        ),
        (
            'region = "eu-west"',
            'region = "eu"',
            "belongs to site dub1 of region eu-west, the settings say site dub1 of region eu: name them as before",
        ),
        (
            'stream = "REGISTRATION"',
            'stream = "OTHERS"',
            "block all had stream REGISTRATION in store {store}, the settings say OTHERS: give it another name",
        ),
        (
            'mode = "copy"',
            'mode = "sample"\nsender = { json_path = "sender" }',
            "block all had mode copy in store {store}, the settings say sample: give it another name",
        ),
    ],
    ids=["site", "region", "stream", "mode"],
)
async def test_a_store_of_other_names_is_refused_in_one_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy")) as deployment:
        await deployment.site.publish(b"1")
        deployment.agent.start()
        await records(deployment, ".all.copy.", 1)
        deployment.agent.kill()
        config = deployment.agent.config
        config.write_text(config.read_text().replace(old, new))
        code, output, errors = await deployment.agent.run_command("run", "--config", str(config))
        assert (code, output) == (1, "")
        store = deployment.agent.store
        line = errors.strip()
        assert said.format(store=store) in line
        # A block that keeps its name is known to the tables by it: they are to be told that a store was lost.
        away = "away, not its marker," if line.startswith("muster-agent: block") else "and agent.db.marker away"
        assert line.endswith(f"or move {store} {away} to begin anew")

"""An agent beside records that its region cannot take: it goes on behind them, and people are told what helps."""

import asyncio
import base64
import json
import random
import re
import shutil
import sqlite3
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from shared.wire import ORIGIN_HEADER, REASON_HEADER, SOURCE_HEADER
from tests.support.agent.agent_process import AgentProcess, deployed
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.delivery.fleet_region import Region
from tests.support.waiting import until

LIMIT = 65_536
RAISED = "max_payload: 1048576"
LOWER = f"max_payload: {LIMIT}"
AGENT = (
    sys.executable,
    "-c",
    """from edge_agent.delivery import oversized, region
from edge_agent.cli import main
oversized.LOOK_EVERY = region.ASK_EVERY = 1.0
main()""",
)


async def test_an_agent_copies_on_behind_a_message_of_exactly_the_limit_and_delivers_it_after_a_reload(
    tmp_path: Path,
) -> None:
    """The limits are equal: a message that its site took is too large with what a copy needs in headers."""
    settings = ABOVE_BLOCKS + block("all", "copy")
    async with deployed(tmp_path, settings, site_config=LOWER, region_config=LOWER) as deployment:
        region, site = deployment.region, deployment.site
        agent = AgentProcess(deployment.agent.config, AGENT)
        agent.start()
        try:
            largest = bytes(range(256)) * (LIMIT // 256)
            bodies = [b"%d" % number for number in range(1_427)]
            await site.publish(b"first", largest, *bodies)

            async def has(count: int) -> bool:
                return await region.stored_count() >= count

            await until(partial(has, 1_428), "everything else has arrived", 60.0)
            assert [record.payload for record in await region.stored()] == [b"first", *bodies]
            await until(partial(_is_told, agent), "status tells of it", 60.0)
            await _check_what_people_see(agent, largest)
            agent.kill()
            agent.start()
            await site.publish(b"later")
            await until(partial(has, 1_429), "copying goes on", 60.0)
            region.server.reload(RAISED)
            await until(partial(has, 1_430), "what was too large has arrived", 60.0)
            await site.publish(b"last")
            await until(partial(has, 1_431), "copying goes on", 60.0)
            stored = await region.stored()
        finally:
            agent.end()
        assert [record.payload for record in stored] == [b"first", *bodies, b"later", largest, b"last"]
        assert stored[1_429].headers[ORIGIN_HEADER].endswith(".2")


async def test_a_copy_that_the_stream_does_not_take_is_not_lost_when_an_older_store_sends_all_once_more(
    tmp_path: Path,
) -> None:
    """The region knows those before and behind it, and the agent learns the stream's limit by a refusal alone."""
    async with deployed(tmp_path, ABOVE_BLOCKS + block("all", "copy")) as deployment:
        agent, region, older = deployment.agent, deployment.region, tmp_path / "older"
        await region.update_stream(max_msg_size=50_000, allow_atomic=True)
        agent.start()
        small = [b"%d" % number for number in range(8)]
        await deployment.site.publish(b"first")
        await until(lambda: _holds(region, [b"first"]), "copying begins")
        await region.link.cut()
        await deployment.site.publish(small[0], b"x" * 60_000, *small[1:])
        await until(lambda: _wait(agent, len(small) + 1), "all wait in the outbox")
        await agent.stopped()
        older.mkdir()
        for path in agent.store.parent.glob("agent.db*"):
            shutil.copy(path, older)
        await region.link.restore()
        agent.start()
        await until(lambda: _holds(region, [b"first", *small]), "those that fit arrive")
        await until(partial(_is_told, agent), "the other is set apart")
        await agent.stopped()
        for path in agent.store.parent.glob("agent.db*"):
            path.unlink()
        for path in older.iterdir():
            shutil.copy(path, agent.store.parent)
        agent.start()
        await until(lambda: _wait(agent, 0), "nothing waits any more")
        await until(partial(_is_told, agent), "the other is set apart again")
        assert await _holds(region, [b"first", *small])


async def _holds(region: Region, payloads: list[bytes]) -> bool:
    return [record.payload for record in await region.stored()] == payloads


async def _wait(agent: AgentProcess, count: int) -> bool:
    outbox = (await agent.status_json()).get("outbox") or {}
    return bool(outbox) and outbox["copies"]["rows"] == count


async def _is_told(agent: AgentProcess) -> bool:
    return any("set apart" in each["what"] for each in (await agent.status_json())["conditions"])


async def _check_what_people_see(agent: AgentProcess, largest: bytes) -> None:
    config = ("--config", str(agent.config))
    origin = "eu-west.dub1.all"
    code, listed, _ = await agent.run_command("outbox", *config, "set-apart", "--json")
    (row,) = json.loads(listed)
    assert (code, row["stream"], row["lane"], row["limit"]) == (0, "all", "copies", "max_payload")
    remedy = f"raise max_payload of the region's servers to at least {row['needed']} bytes"
    assert LIMIT + 100 < row["needed"] < LIMIT + 200

    _, exported, _ = await agent.run_command("outbox", *config, "set-apart", "--row", str(row["row_id"]), "--to", "-")
    record = json.loads(exported)
    assert base64.b64decode(record["payload"]) == largest
    assert record["headers"][ORIGIN_HEADER].startswith(origin)
    assert {SOURCE_HEADER, REASON_HEADER} < record["headers"].keys()

    what = "stream all: 1 copy is set apart: too large for the region's servers"
    code, told, _ = await agent.run_command("status", *config, "--check")
    assert (code, told.startswith(f"warning: {what}"), remedy in told) == (1, True, True)
    assert remedy in await agent.status()
    _, page, _ = await agent.run_command("outbox", *config)
    assert f"Too large: {what}" in page
    _, findings, _ = await agent.run_command("doctor", *config, "--json")
    assert [each["remedy"] for each in json.loads(findings)["findings"] if each["text"].startswith(what)] == [remedy]


async def test_copies_pass_the_store_by_again_behind_one_that_was_set_apart_though_the_agent_is_killed(
    tmp_path: Path,
) -> None:
    settings = ABOVE_BLOCKS + block("all", "copy")
    async with deployed(tmp_path, settings, region_config=LOWER) as deployment:
        region, site, agent = deployment.region, deployment.site, deployment.agent
        await region.update_stream(allow_atomic=True)
        total = 0
        for _ in range(5):
            agent.start()
            bodies = [b"%d" % number for number in range(total, total + 200)]
            total += 200
            await site.publish(*bodies[:100], bytes(100_000), *bodies[100:])
            # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
            await asyncio.sleep(random.uniform(0.1, 1.5))
            agent.kill()
        agent.start()

        async def all_has_come() -> bool:
            return await region.stored_count() == total

        await until(all_has_come, "all others have arrived", 60.0)
        assert [record.payload for record in await region.stored()] == [b"%d" % number for number in range(total)]

        async def are_set_apart() -> bool:
            (found,) = (await agent.status_json()).get("set_apart") or [{"count": 0}]
            return bool(found["count"] == 5)

        await until(are_set_apart, "each is set apart once", 60.0)
        stored_before = _last_stored(agent)
        await site.publish(*(b"%d" % number for number in range(total, total + 300)))
        total += 300
        await until(all_has_come, "what came later has arrived", 60.0)
        assert _last_stored(agent) == stored_before, "copies were stored on the way"


def _last_stored(agent: AgentProcess) -> int:
    with closing(sqlite3.connect(agent.store)) as database:
        ((last,),) = database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'copy_outbox'")
    return int(last)


async def test_a_registration_that_was_dropped_is_told_of_with_the_limit_that_would_take_it(tmp_path: Path) -> None:
    settings = ABOVE_BLOCKS + block("nodes", "sample", SAMPLING)
    async with deployed(tmp_path, settings) as deployment:
        await deployment.region.update_stream(max_msg_size=LIMIT)
        deployment.agent.start()
        await deployment.site.publish(b'{"sender":"a","pad":"%b"}' % bytes(100_000).replace(b"\0", b"p"))
        config = ("--config", str(deployment.agent.config))

        async def is_told() -> bool:
            _, told, _ = await deployment.agent.run_command("status", *config, "--check")
            found = re.search(r"raise max_msg_size of the region's stream to at least (\d+) bytes", told)
            return found is not None and int(found[1]) > 100_000 and "registrations or watermarks are dropped" in told

        await until(is_told, "status tells of it", 60.0)

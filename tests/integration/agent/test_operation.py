"""What an operator sees of the agent: it says what is going on, ends when told to, and refuses what cannot work."""

import os
import re
import signal
import sqlite3
import sys
import time
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.ingest import commits
from edge_agent.source.port import OpenResult
from edge_agent.source.reader import JetStreamSource
from edge_agent.store import schema
from tests.support.agent import failing_agent
from tests.support.agent.agent_process import COMMAND, SETTINGS, AgentProcess, Deployment, deployed, free_address
from tests.support.agent.agent_within import agent_within
from tests.support.agent.told_agent import BODIES, NAMES, arrived, told_of, until_running
from tests.support.delivery.fleet_region import STREAM as FLEET
from tests.support.nats.one_server import written
from tests.support.waiting import until


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, listen=free_address()) as deployment:
        yield deployment


def says(deployment: Deployment, text: str, after: int = 0) -> bool:
    return text in deployment.agent.log[after:]


def known(status: str) -> int:
    """Count the senders that status knows of; how many are stale depends on how fast this machine is."""
    told = re.search(r"^  senders +(\d+) heard, (\d+) stale$", status, re.MULTILINE)
    assert told, status
    return int(told[1]) + int(told[2])


# Status


async def test_status_says_what_a_cut_link_means_and_that_it_is_over(deployment: Deployment) -> None:
    await until_running(deployment)
    await deployment.region.link.cut()
    await deployment.site.publish(*(b'{"sender":"newcomer%d"}' % number for number in range(20)))

    async def tells() -> bool:
        status = await deployment.agent.status()
        return "20 registrations" in status and "connection refused" in status

    await until(tells, "status tells of the cut and of what waits")
    status = await deployment.agent.status()
    assert re.search(r"^dub1-a, site dub1, region eu-west: running for \S+, pid \d+", status)
    place = deployment.region.link.url.removeprefix("nats://")
    upstream = rf"^upstream +not connected for [\w. ]+: {place}: connection refused, nothing listens there$"
    assert re.search(upstream, status, re.MULTILINE)
    assert re.search(r"^stream nodes +reading for ", status, re.MULTILINE)
    assert re.search(r"^  lag +\d messages? to read, \d+s behind the stream's clock$", status, re.MULTILINE)
    assert re.search(r"^  watched +through 20\S+Z \([\w. ]+ ago\), without a gap since 20", status, re.MULTILINE)
    assert known(status) == 25
    waits = (
        r"^outbox +\d+ advisories and watermarks \(.*, the oldest \S+ ago\) and 20 registrations "
        r"\(.*\) wait for the region's acknowledgement; room for .* more$"
    )
    assert re.search(waits, status, re.MULTILINE)

    await deployment.region.link.restore()
    await until(lambda: arrived(deployment, len(NAMES) + 20), "the link is back and everything has arrived")

    async def tells_the_end() -> bool:
        status = await deployment.agent.status()
        phase = (await deployment.agent.status_json())["parts"]["upstream"]["phase"]
        return "outbox            empty: the region has acknowledged everything" in status and phase == "connected"

    await until(tells_the_end, "status tells that all has arrived")


async def test_status_tells_of_an_agent_that_does_not_run_any_more(deployment: Deployment) -> None:
    await until_running(deployment)
    deployment.agent.kill()
    status = await deployment.agent.status()
    assert re.search(r"NOT RUNNING, last sign of life .* ago: killed or crashed", status)
    assert known(status) == 5


async def test_a_region_without_a_stream_is_named_in_status(deployment: Deployment) -> None:
    await deployment.region.api(f"STREAM.DELETE.{FLEET}")
    deployment.agent.start()
    await deployment.site.publish(*BODIES)

    async def tells() -> bool:
        return "this account holds no stream" in await deployment.agent.status()

    await until(tells, "status names the reason")
    held_up = "Held up: block nodes: fleet.eu-west.dub1.nodes.advisory.new: this account holds no stream.\n"

    async def says_what_is_held_up() -> bool:
        _, said, _ = await deployment.agent.run_command("outbox", "--config", str(deployment.agent.config))
        return held_up in said and "Nothing leaves" not in said

    await until(says_what_is_held_up, "outbox does not say that nothing leaves")
    await deployment.region.make_stream()
    await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")


async def test_a_link_on_which_something_was_denied_is_well_again_when_it_is_permitted(tmp_path: Path) -> None:
    permissions = """
    authorization {{ users: [
      {{ user: admin, password: secret }}
      {{ user: agent, password: secret, permissions: {{ publish: {{ allow: [{allowed}] }} }} }}
    ] }}
    no_auth_user: admin
    """
    too_little, enough = (permissions.format(allowed=each) for each in ('"$JS.ACK.>"', '"$JS.>"'))
    auth = '[stream.source.auth]\nuser = "agent"\npassword_file = "password"\n\n[stream.sender]'
    written(tmp_path / "password", "secret")
    settings = SETTINGS.replace("[stream.sender]", auth)
    async with deployed(tmp_path, settings, site_config=too_little) as deployment:

        async def phase() -> str:
            parts = (await deployment.agent.status_json()).get("parts", {})
            return str(parts.get("source of nodes", {}).get("phase"))

        async def is_denied() -> bool:
            return await phase() == "denied"

        async def is_connected() -> bool:
            return await phase() == "connected"

        deployment.agent.start()
        await until(is_denied, "status says that something is denied")
        server = deployment.site.server
        config_path = server.settings.store_dir / "nats-server.conf"
        config_path.write_text(config_path.read_text().replace(too_little, enough))
        os.kill(server.pid, signal.SIGHUP)
        await deployment.site.publish(*BODIES)
        await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")
        await until(is_connected, "status says that the link is well")


async def test_a_stream_that_opens_and_cannot_be_read_is_opened_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    permissions = """
    authorization { users: [
      { user: admin, password: secret }
      { user: agent, password: secret, permissions: { publish: { deny: ["$JS.API.CONSUMER.MSG.NEXT.>"] } } }
    ] }
    no_auth_user: admin
    """
    auth = '[stream.source.auth]\nuser = "agent"\npassword_file = "password"\n\n[stream.sender]'
    written(tmp_path / "password", "secret")
    open_source, opened_at = JetStreamSource.open, list[float]()

    async def noted(source: JetStreamSource, state: BlockState) -> OpenResult:
        opened = await open_source(source, state)
        opened_at.append(time.monotonic())
        return opened

    monkeypatch.setattr(JetStreamSource, "open", noted)
    settings = SETTINGS.replace("[stream.sender]", auth)
    async with (
        deployed(tmp_path, settings, site_config=permissions) as deployment,
        agent_within(deployment.agent.config),
    ):
        await until(lambda: len(opened_at) >= 6, "it was opened again and again")
    assert opened_at[-1] - opened_at[-2] > 4 * commits.FIRST_RETRY


# Ending


@pytest.mark.parametrize("trouble", ["none", "a cut upstream", "a silent upstream", "a silent site", "nobody at home"])
async def test_an_agent_that_is_told_to_ends_within_seconds_and_without_a_complaint(
    deployment: Deployment, trouble: str
) -> None:
    if trouble == "nobody at home":
        await deployment.region.link.cut()
        await deployment.site.link.cut()
        deployment.agent.start()
        await until(partial(says, deployment, "source of nodes: connecting"), "the agent tries to connect")
    else:
        await until_running(deployment)
    async with deployment.senders(NAMES, interval=0.01):
        if trouble == "a cut upstream":
            await deployment.region.link.cut()
        if trouble == "a silent upstream":
            deployment.region.link.stall()
        if trouble == "a silent site":
            deployment.site.link.stall()
        enough = await deployment.site.last_sequence() + 20 * len(NAMES)

        async def is_busy() -> bool:
            return await deployment.site.last_sequence() >= enough

        await until(is_busy, "the senders have registered meanwhile")
        deployment.agent.signal(signal.SIGTERM)
        assert await deployment.agent.ended() == 0
    assert "Traceback" not in deployment.agent.log
    assert deployment.agent.log.splitlines()[-1].endswith("level=INFO site=dub1 region=eu-west msg=stopping")


async def test_an_agent_under_load_ends_cleanly_each_time(deployment: Deployment) -> None:
    async with deployment.senders(NAMES, interval=0.001):
        for _ in range(4):
            said_before = len(deployment.agent.log)
            deployment.agent.start()
            await until(partial(says, deployment, "stream nodes: reading", said_before), "the agent reads")
            deployment.agent.signal(signal.SIGTERM)
            assert await deployment.agent.ended() == 0
    assert "Traceback" not in deployment.agent.log


# Starting


@pytest.mark.parametrize(
    ("setting", "replacement", "reason"),
    [
        ('site = "dub1"', 'site = "dub.1"', r"the site 'dub\.1' is not usable in a subject"),
        ('stale_after = "4s"', 'stale_afer = "4s"', "there is no such key, did you mean stale_after?"),
        ('retire_after = "1h"', 'retire_after = "3s"', r"stale_after \(4s\) must be shorter than retire_after \(3s\)"),
        ('json_path = "sender"', "", "exactly one of json_path, header, subject_token, subject is needed, found none"),
        ('listen = ""', "listen = 8787", "monitor.listen: expected text in quotes, found a whole number"),
        ("[upstream]", "[upstream", "not valid TOML"),
    ],
)
async def test_wrong_settings_are_refused_in_one_clear_line(
    tmp_path: Path, setting: str, replacement: str, reason: str
) -> None:
    text = SETTINGS.format(upstream="nats://127.0.0.1:1", source="nats://127.0.0.1:1", listen="")
    assert setting in text
    agent = AgentProcess(tmp_path / "agent.toml")
    agent.config.write_text(text.replace(setting, replacement))
    for command in ("run", "check-config"):
        code, output, errors = await agent.run_command(command, "--config", str(agent.config))
        assert (code, output) == (1, "")
        assert re.fullmatch(rf"muster-agent: {re.escape(str(agent.config))}: .*{reason}.*\n", errors)
    assert not agent.store.exists()


async def test_check_config_warns_of_the_store_that_run_refuses(tmp_path: Path) -> None:
    text = SETTINGS.format(upstream="nats://127.0.0.1:1", source="nats://127.0.0.1:1", listen="")
    agent = AgentProcess(tmp_path / "agent.toml")
    mistyped = tmp_path / "agnet" / "agent.db"
    agent.config.write_text(text.replace('path = "agent.db"', f'path = "{mistyped}"'))
    code, _, errors = await agent.run_command("run", "--config", str(agent.config))
    refused = errors.removeprefix("muster-agent: ").strip()
    assert code == 1
    assert refused.startswith(f"store {mistyped}: there is no directory {mistyped.parent}; ")
    code, output, errors = await agent.run_command("check-config", "--config", str(agent.config))
    assert (code, errors) == (0, "")
    assert f"  warning: the agent would not start here: {refused}" in output.splitlines()
    assert not mistyped.parent.exists()
    agent.config.write_text(text.replace('path = "agent.db"', ""))
    _, output, _ = await agent.run_command("check-config", "--config", str(agent.config))
    assert "warning" not in output, "the service makes the directory of the default"


async def test_a_second_agent_on_the_same_store_is_refused_and_the_first_goes_on(deployment: Deployment) -> None:
    await until_running(deployment)
    code, output, errors = await deployment.agent.run_command("run", "--config", str(deployment.agent.config))
    store = deployment.agent.store
    assert (code, output) == (1, "")
    assert errors == f"muster-agent: store {store}: another agent is running on it; end that one first\n"
    await deployment.until_observed(await deployment.site_time())


@pytest.mark.parametrize("loss", ["corrupt", "damaged within", "gone"])
async def test_an_agent_whose_store_is_lost_starts_says_so_and_marks_what_it_learns_anew(
    deployment: Deployment, loss: str
) -> None:
    await until_running(deployment)
    deployment.agent.kill()
    store = deployment.agent.store
    if loss == "corrupt":
        store.write_bytes(b"nothing that SQLite can read" * 1_000)
    elif loss == "damaged within":
        with closing(sqlite3.connect(store)) as database, database:
            database.execute("UPDATE block SET state = substr(state, 1, length(state) / 2)")
    else:
        store.unlink()
    deployment.agent.start()
    await until(lambda: arrived(deployment, 2 * len(NAMES)), "all senders are announced again")

    said = {
        "corrupt": f"was corrupt: set aside as {store}.corrupt-1, beginning anew",
        "damaged within": (
            f"was corrupt (not a block's state: Input data was truncated): set aside as {store}.corrupt-1, "
            "beginning anew"
        ),
        "gone": "is gone though there was one",
    }
    assert f"store {store} {said[loss]}" in deployment.agent.log
    assert "Traceback" not in deployment.agent.log
    assert store.with_name("agent.db.corrupt-1").exists() is (loss != "gone")
    advisories = await told_of(deployment)
    assert [advisory.rebuilt for advisory in advisories] == [False] * len(NAMES) + [True] * len(NAMES)
    assert len({advisory.incarnation for advisory in advisories}) == 2
    assert [advisory.ordinal for advisory in advisories] == [*range(1, len(NAMES) + 1)] * 2


async def test_an_agent_whose_disk_fails_for_a_moment_says_so_and_goes_on_with_its_store(
    tmp_path: Path, deployment: Deployment
) -> None:
    deployment.agent = AgentProcess(deployment.agent.config, (sys.executable, "-m", failing_agent.__name__))
    agent = deployment.agent
    try:
        await until_running(deployment, {failing_agent.STORE: str(agent.store)})
        agent.signal(signal.SIGUSR1)
        with closing(sqlite3.connect(agent.store, isolation_level=None)) as other:

            def is_noticed() -> bool:
                # What the agent has in memory of its store is not valid any more: it reads.
                other.execute("INSERT INTO operator_request (asked) VALUES ('no such block')")
                return says(deployment, ") and is sound: going on with it")

            await until(is_noticed, "the agent has read, in vain, and looked at all of it")
        await deployment.site.publish(b'{"sender": "newcomer"}')
        await until(lambda: arrived(deployment, len(NAMES) + 1), "it goes on")
        await agent.stopped()
    finally:
        agent.end()
    advisories = await told_of(deployment)
    assert [advisory.rebuilt for advisory in advisories] == [False] * (len(NAMES) + 1)
    assert len({advisory.incarnation for advisory in advisories}) == 1
    assert not list(tmp_path.glob("*.corrupt-*"))
    assert "Traceback" not in agent.log


async def test_a_store_of_a_newer_version_is_refused_in_one_clear_line(deployment: Deployment) -> None:
    await until_running(deployment)
    deployment.agent.signal(signal.SIGTERM)
    assert await deployment.agent.ended() == 0
    with deployment.agent.store.open("r+b") as file:
        # SQLite's user_version: bytes 60 to 63 of the file.
        file.seek(60)
        file.write((99).to_bytes(4, "big"))
    code, output, errors = await deployment.agent.run_command("run", "--config", str(deployment.agent.config))
    said = f"version 99, this agent reads {schema.VERSION}; use a newer agent"
    assert (code, output, errors) == (1, "", f"muster-agent: store {deployment.agent.store}: {said}\n")


# Another host


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may have a host name of its own")
async def test_a_host_of_another_name_goes_on_with_the_store_that_it_finds(tmp_path: Path) -> None:
    renamed = 'hostname after.example.net && exec "$@"'
    async with deployed(tmp_path, SETTINGS.replace('name = "dub1-a"\n', "")) as deployment:
        deployment.agent.start()
        await deployment.site.publish(b'{"sender":"web1"}')
        before = await deployment.until_observed(await deployment.site_time())
        await deployment.agent.stopped()
        config = deployment.agent.config
        deployment.agent = AgentProcess(config, ("unshare", "--uts", "sh", "-c", renamed, "sh", COMMAND))
        try:
            deployment.agent.start()
            await deployment.site.publish(b'{"sender":"web1"}', b'{"sender":"web2"}')
            after = await deployment.until_observed(await deployment.site_time())
        finally:
            deployment.agent.end()
        assert (after.agent, after.incarnation) == ("after", before.incarnation)
        assert before.agent != "after"
        new = [each.value for each in await deployment.advisories() if each.kind == "new"]
    assert new == ["web1", "web2"]

"""What an operator sees of the agent: it says what is going on, ends when told to, and refuses what cannot work."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.store import schema
from shared.identifiers import AdvisoryKind
from shared.wire import Advisory
from tests.support.agent_process import SETTINGS, AgentProcess, Deployment, deployed, free_address
from tests.support.exposition import parsed
from tests.support.fleet_region import STREAM as FLEET
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(5)]
BODIES = [b'{"sender":"%s"}' % name.encode() for name in NAMES]


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, listen=free_address()) as deployment:
        yield deployment


async def told_of(deployment: Deployment) -> list[Advisory]:
    """Give the advisories of new senders: on a slow machine some are stale too by the time one looks."""
    return [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.NEW]


async def arrived(deployment: Deployment, count: int) -> bool:
    return len(await told_of(deployment)) == count


def says(deployment: Deployment, text: str, after: int = 0) -> bool:
    return text in deployment.agent.log[after:]


async def until_running(deployment: Deployment) -> None:
    """Start the agent, and wait until it has read and delivered what the senders say."""
    deployment.agent.start()
    await deployment.site.publish(*BODIES)
    await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")


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
    assert re.search(r"^  lag +\d messages to read, \d+s behind the stream's clock$", status, re.MULTILINE)
    assert re.search(r"^  watched +through 20\S+Z \([\w. ]+ ago\), without a gap since 20", status, re.MULTILINE)
    assert known(status) == 25
    waits = (
        r"^outbox +\d+ advisories \(.*, the oldest \S+ ago\) and 20 registrations \(.*\) wait for the region's "
        r"acknowledgement; room for .* more$"
    )
    assert re.search(waits, status, re.MULTILINE)

    await deployment.region.link.restore()
    await until(lambda: arrived(deployment, len(NAMES) + 20), "the link is back and everything has arrived")

    async def tells_the_end() -> bool:
        status = await deployment.agent.status()
        return "outbox            empty: the region has acknowledged everything" in status

    await until(tells_the_end, "status tells that all has arrived")
    assert (await deployment.agent.status_json())["parts"]["upstream"]["phase"] == "connected"


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
        return "no stream of the region listens there" in await deployment.agent.status()

    await until(tells, "status names the reason")
    await deployment.region.make_stream()
    await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")


# Health and metrics


def asked(deployment: Deployment, path: str) -> tuple[int, str]:
    """Ask the agent's monitor; 0 while nobody answers."""
    listen = re.search(r'listen = "(.*)"', deployment.agent.config.read_text())
    assert listen
    try:
        with urllib.request.urlopen(f"http://{listen[1]}{path}", timeout=5) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def test_health_tells_alive_from_useful_and_names_what_is_wrong(deployment: Deployment) -> None:
    await until_running(deployment)

    async def page(path: str) -> tuple[int, dict[str, Any]]:
        code, body = await asyncio.to_thread(asked, deployment, path)
        return code, json.loads(body or "{}")

    async def is_useful() -> bool:
        return await page("/readyz") == (200, {"alive": True, "useful": True, "problems": []})

    await until(is_useful, "the agent is useful")
    await deployment.site.link.cut()

    async def is_useless() -> bool:
        return (await page("/readyz"))[0] == 503

    await until(is_useless, "the cut is noticed")
    code, health = await page("/healthz")
    assert (code, health["alive"], health["useful"]) == (200, True, False)
    assert any(problem.startswith("source of nodes: not connected") for problem in health["problems"])
    await deployment.site.link.restore()
    await until(is_useful, "the agent is useful again")
    assert (await asyncio.to_thread(asked, deployment, "/elsewhere"))[0] == 404


async def test_metrics_count_what_was_read_forwarded_and_said(deployment: Deployment) -> None:
    await until_running(deployment)
    await deployment.site.publish(b"not JSON", b'{"sender":""}')

    async def metrics() -> dict[str, float]:
        _, text = await asyncio.to_thread(asked, deployment, "/metrics")
        return {f"{name}{dict(labels)}": value for (name, labels), value in parsed(text).items()}

    def named(name: str, **labels: str) -> str:
        return f"muster_agent_{name}{ {'region': 'eu-west', 'site': 'dub1', **labels} }"

    expected = {
        named("valid_total", stream="nodes", what="registrations"): 5,
        named("advisories_total", stream="nodes", kind="new"): 5,
        named("advisories_total", stream="nodes", kind="retired"): 0,
        named("forwarded_total", stream="nodes", reason="new"): 5,
        named("forwarded_total", stream="nodes", reason="copy"): 2,
        named("rejected_total", stream="nodes", cause="not_a_json_object"): 1,
        named("rejected_total", stream="nodes", cause="no_sender"): 1,
        named("lag_messages", stream="nodes"): 0,
        named("stream_reading", stream="nodes"): 1,
        named("link_up", link="source", stream="nodes"): 1,
        named("link_up", link="upstream", stream=""): 1,
        named("reconnects_total", link="upstream", stream=""): 0,
        named("useful"): 1,
        named("publishes_failed_total"): 0,
        named("outbox_rows", lane="registrations"): 0,
    }

    async def shows() -> bool:
        found = await metrics()
        # Seven registrations and five advisories; with time, watermarks and stale advisories too.
        has_all = found.get(named("publishes_acknowledged_total"), 0) >= 12
        return has_all and expected.items() <= found.items()

    await until(shows, f"metrics show {expected}")
    found = await metrics()
    # How many are stale by now depends on how fast this machine is.
    assert sum(found[named("senders", stream="nodes", state=state)] for state in ("heard", "stale")) == 5
    assert found[named("store_commit_duration_seconds_count")] > 0
    own = {"region": "eu-west", "site": "dub1"}
    assert 10 << 20 < found[f"process_resident_memory_bytes{own}"] < 1 << 30
    await deployment.region.link.cut()

    async def is_down() -> bool:
        return (await metrics())[named("link_up", link="upstream", stream="")] == 0

    await until(is_down, "the link is down")
    await deployment.site.publish(b'{"sender":"newcomer"}')

    async def grows() -> bool:
        return (await metrics())[named("outbox_oldest_age_seconds", lane="registrations")] > 0.5

    await until(grows, "what waits grows older")
    await deployment.region.link.restore()

    async def is_back() -> bool:
        return (await metrics())[named("reconnects_total", link="upstream", stream="")] == 1

    await until(is_back, "the link is back")


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
        await asyncio.sleep(0.2)
        deployment.agent.signal(signal.SIGTERM)
        assert await deployment.agent.ended(deadline=10) == 0
    assert "Traceback" not in deployment.agent.log
    assert deployment.agent.log.splitlines()[-1].endswith("level=INFO site=dub1 region=eu-west msg=stopping")


async def test_an_agent_under_load_ends_cleanly_each_time(deployment: Deployment) -> None:
    async with deployment.senders(NAMES, interval=0.001):
        for _ in range(4):
            said_before = len(deployment.agent.log)
            deployment.agent.start()
            await until(partial(says, deployment, "stream nodes: reading", said_before), "the agent reads")
            deployment.agent.signal(signal.SIGTERM)
            assert await deployment.agent.ended(deadline=10) == 0
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


async def test_a_second_agent_on_the_same_store_is_refused_and_the_first_goes_on(deployment: Deployment) -> None:
    await until_running(deployment)
    code, output, errors = await deployment.agent.run_command("run", "--config", str(deployment.agent.config))
    store = deployment.agent.store
    assert (code, output) == (1, "")
    assert errors == f"muster-agent: store {store}: another agent is running on it; end that one first\n"
    await deployment.until_observed(await deployment.site_time())


async def test_an_agent_that_starts_before_its_servers_waits_for_them(deployment: Deployment) -> None:
    await deployment.site.server.stop()
    await deployment.region.link.cut()
    deployment.agent.start()
    await until(partial(says, deployment, "source of nodes: not connected"), "the agent says that nobody is there")
    assert re.search("upstream: not connected: .* connection refused", deployment.agent.log)
    await deployment.site.server.start()
    await deployment.region.link.restore()
    await until(lambda: deployment.site.client.is_connected, "the site is back")
    await deployment.site.publish(*BODIES)
    await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")


@pytest.mark.parametrize("loss", ["corrupt", "gone"])
async def test_an_agent_whose_store_is_lost_starts_says_so_and_marks_what_it_learns_anew(
    deployment: Deployment, loss: str
) -> None:
    await until_running(deployment)
    deployment.agent.kill()
    store = deployment.agent.store
    if loss == "corrupt":
        store.write_bytes(b"nothing that SQLite can read" * 1_000)
    else:
        store.unlink()
    deployment.agent.start()
    await until(lambda: arrived(deployment, 2 * len(NAMES)), "all senders are announced again")

    said = {"corrupt": f"was corrupt: set aside as {store}.corrupt-1", "gone": "is gone though there was one"}
    assert f"store {store} {said[loss]}" in deployment.agent.log
    assert store.with_name("agent.db.corrupt-1").exists() is (loss == "corrupt")
    advisories = await told_of(deployment)
    assert [advisory.rebuilt for advisory in advisories] == [False] * len(NAMES) + [True] * len(NAMES)
    assert len({advisory.incarnation for advisory in advisories}) == 2
    assert [advisory.ordinal for advisory in advisories] == [*range(1, len(NAMES) + 1)] * 2


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


async def test_a_supervisor_hears_that_the_agent_is_ready_alive_and_stopping(
    deployment: Deployment, tmp_path: Path
) -> None:
    with supervisor_socket(tmp_path / "notify") as supervisor:
        deployment.agent.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000"})
        heard: list[bytes] = []

        async def hears(*wanted: bytes) -> None:
            while not all(any(each.startswith(start) for each in heard) for start in wanted):
                heard.append(await asyncio.to_thread(supervisor.recv, 1_000))

        await hears(b"READY=1", b"WATCHDOG=1")
        await deployment.site.publish(*BODIES)
        await hears(b"STATUS=reading 1 of 1 streams, 5 senders")
        await deployment.site.link.cut()
        await hears(b"STATUS=source of nodes: not connected")
        deployment.agent.signal(signal.SIGTERM)
        await hears(b"STOPPING=1\nSTATUS=stopping")
        assert await deployment.agent.ended() == 0
    assert heard[0] == b"READY=1"


async def test_an_agent_that_hangs_feeds_no_watchdog(deployment: Deployment, tmp_path: Path) -> None:
    with supervisor_socket(tmp_path / "notify") as supervisor:
        deployment.agent.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
        while await asyncio.to_thread(supervisor.recv, 1_000) != b"WATCHDOG=1":
            pass
        deployment.agent.signal(signal.SIGSTOP)
        # What was sent before it stopped is still in the socket; then there is nothing.
        supervisor.settimeout(2)
        with contextlib.suppress(TimeoutError):
            while await asyncio.to_thread(supervisor.recv, 1_000):
                pass
        deployment.agent.signal(signal.SIGCONT)
        supervisor.settimeout(30)
        assert (await asyncio.to_thread(supervisor.recv, 1_000)).split(b"=")[0] in (b"WATCHDOG", b"STATUS")


def supervisor_socket(address: Path) -> socket.socket:
    supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    supervisor.bind(str(address))
    supervisor.settimeout(30)
    return supervisor

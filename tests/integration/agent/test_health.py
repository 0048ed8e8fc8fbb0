"""What load balancers, Prometheus and systemd hear of an agent: alive, useful, what it counted; nothing if it hangs."""

import asyncio
import contextlib
import json
import re
import signal
import socket
import sqlite3
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from edge_agent.daemon import keep_watchdog
from edge_agent.observability import conditions, http
from edge_agent.observability.status_report import STARTS
from edge_agent.store.files import hold_of, prepare
from tests.support.agent.agent_process import Deployment, deployed, free_address
from tests.support.agent.agent_within import agent_within
from tests.support.agent.supervisor import ALIVE, MORE_TIME, supervisor_socket
from tests.support.agent.told_agent import BODIES, until_running
from tests.support.observability.exposition import parsed
from tests.support.observability.six_places import asked
from tests.support.waiting import until

SIGNS_LEFT = 300
"""So many are not left in a socket: whoever hears more hears an agent that goes on."""


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, listen=free_address()) as deployment:
        yield deployment


# Health and metrics


@pytest.mark.provokes("monitor_not_listening")
async def test_a_port_that_another_program_has_is_told_and_taken_once_it_is_free(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LISTEN_AGAIN", 0.2)
    listen = re.search(r'listen = "(.*):(.*)"', deployment.agent.config.read_text())
    assert listen
    with socket.create_server((listen[1], int(listen[2]))) as other:
        async with agent_within(deployment.agent.config):

            async def is_told() -> bool:
                found = (await deployment.agent.status_json()).get("conditions", [])
                said = {each["name"]: each["what"] for each in found}.get("monitor_not_listening", "")
                return bool(said == f"not listening: {listen[1]}:{listen[2]}: address already in use")

            await until(is_told, "the port is told")
            other.close()

            async def answers() -> bool:
                return (await asyncio.to_thread(asked, deployment.agent, "/healthz"))[0] == 200

            await until(answers, "the agent answers")


async def test_health_tells_alive_from_useful_and_names_what_is_wrong(deployment: Deployment) -> None:
    await until_running(deployment)

    async def page(path: str) -> tuple[int, dict[str, Any]]:
        code, body = await asyncio.to_thread(asked, deployment.agent, path)
        return code, json.loads(body or "{}")

    async def is_useful() -> bool:
        code, health = await page("/readyz")
        return bool(health.pop("boot_id", "")) and (code, health) == (
            200,
            {"alive": True, "useful": True, "conditions": []},
        )

    await until(is_useful, "the agent is useful")
    await deployment.site.link.cut()

    async def is_useless() -> bool:
        return (await page("/readyz"))[0] == 503

    await until(is_useless, "the cut is noticed")
    code, health = await page("/healthz")
    assert (code, health["alive"], health["useful"]) == (200, True, False)
    assert "source of nodes" in {each["subject"] for each in health["conditions"] if each["name"] == "link_down"}
    await deployment.site.link.restore()
    await until(is_useful, "the agent is useful again")
    assert (await asyncio.to_thread(asked, deployment.agent, "/elsewhere"))[0] == 404


@pytest.mark.provokes("store_moved")
@pytest.mark.parametrize("what", ["moved", "replaced", "log moved"])
async def test_files_that_are_moved_under_an_agent_are_told_until_they_are_put_back(
    deployment: Deployment, what: str
) -> None:
    store, settings = deployment.agent.store, ("--config", str(deployment.agent.config))
    away = store.with_name("away")
    away.mkdir()
    await until_running(deployment)

    async def is_ready(code: int) -> bool:
        return (await asyncio.to_thread(asked, deployment.agent, "/readyz"))[0] == code

    await until(partial(is_ready, 200), "the agent is useful")
    logs = [store.with_name(f"{store.name}{suffix}") for suffix in ("-wal", "-shm")]
    moved = logs[:1] if what == "log moved" else [store, *logs]
    for path in moved:
        path.rename(away / path.name)
    if what == "replaced":
        prepare(store)

    said = f"{moved[0]}: {'another file lies there' if what == 'replaced' else 'it was moved or removed'}"

    async def is_told() -> bool:
        # Where the agent looks between the two steps, it finds no file at first.
        code, health = await asyncio.to_thread(asked, deployment.agent, "/readyz")
        found = json.loads(health)["conditions"] if code == 503 else []
        return any(each["name"] == "store_moved" and said in each["what"] for each in found)

    await until(is_told, "the agent says why it is not useful")
    code, checked, _ = await deployment.agent.run_command("status", "--check", *settings)
    assert code
    assert said in checked
    _, findings, _ = await deployment.agent.run_command("doctor", *settings)
    assert " ".join(said.split()) in " ".join(findings.split())
    assert "it has not run on this store yet" not in findings

    for path in moved:
        (away / path.name).rename(path)
    await until(partial(is_ready, 200), "the agent is useful again")
    assert (await deployment.agent.run_command("status", *settings))[0] == 0
    assert deployment.agent.log.count("store: displaced") in ((1, 2) if what == "replaced" else (1,))
    assert deployment.agent.log.count("store: in place again") == 1
    await deployment.agent.stopped()
    deployment.agent.start()
    await until(partial(is_ready, 200), "it goes on")
    assert "beginning anew" not in deployment.agent.log


async def test_an_agent_whose_files_are_all_removed_says_so_and_knows_at_its_next_start(deployment: Deployment) -> None:
    store, settings = deployment.agent.store, ("--config", str(deployment.agent.config))
    await until_running(deployment)
    for path in store.parent.glob(f"{store.name}*"):
        path.unlink()
    await until(lambda: "store: displaced" in deployment.agent.log, "the loss is said")
    said = f"{store}: it was moved or removed while the agent runs on it"
    code, checked, _ = await deployment.agent.run_command("status", "--check", *settings)
    assert (code, checked.startswith(said)) == (2, True)
    code, findings, _ = await deployment.agent.run_command("doctor", *settings)
    assert (code, said in " ".join(findings.split())) == (2, True)
    marker = store.with_name(f"{store.name}.marker")
    await until(marker.exists, "what is committed is noted")
    await deployment.agent.stopped()
    deployment.agent.start()
    await until(lambda: "is gone though there was one: beginning anew" in deployment.agent.log, "the loss is known")


async def test_an_agent_whose_log_was_removed_loses_nothing_where_it_is_stopped_well(deployment: Deployment) -> None:
    await until_running(deployment)
    deployment.agent.store.with_name(f"{deployment.agent.store.name}-wal").unlink()
    await until(lambda: "store: displaced" in deployment.agent.log, "the loss is said")
    await deployment.agent.stopped()
    deployment.agent.start()
    await until(lambda: deployment.agent.log.count("reading") > 1, "it goes on")
    assert "beginning anew" not in deployment.agent.log


async def test_a_run_whose_site_is_not_there_says_nothing_that_the_run_before_it_said(deployment: Deployment) -> None:
    listen = re.search(r'listen = "(.*):(.*)"', deployment.agent.config.read_text())
    assert listen

    async def says(stream: str, source: str) -> bool:
        said = await deployment.agent.status_json()
        phases = {name: part["phase"] for name, part in said.get("parts", {}).items()}
        is_this_run = said.get("agent", {}).get("pid") == deployment.agent.process.pid
        return is_this_run and (phases.get("stream nodes"), phases.get("source of nodes")) == (stream, source)

    async def shows_monitor(phase: str) -> bool:
        parts = (await deployment.agent.status_json())["parts"]
        return bool(parts.get("monitor", {}).get("phase") == phase)

    with socket.create_server((listen[1], int(listen[2]))):
        await until_running(deployment)
        await until(partial(says, "reading", "connected"), "the first run reads")
        await until(partial(shows_monitor, "not listening"), "and does not listen")
        deployment.agent.kill()
    await deployment.site.link.cut()
    deployment.agent.start()
    await until(partial(says, "starting", "not connected"), "the next run says that it waits for its site")
    said = await deployment.agent.status_json()
    assert "monitor" not in said["parts"], "it listens"
    assert [(block["name"], block["progress"]) for block in said["blocks"]] == [("nodes", None)]
    assert {"starting", "link_down"} <= {each["name"] for each in said["conditions"]}

    async def is_counted() -> bool:
        _, metrics = await asyncio.to_thread(asked, deployment.agent, "/metrics")
        return 'muster_agent_stream_reading{region="eu-west",site="dub1",stream="nodes"} 0' in metrics

    await until(is_counted, "metrics say so too")


async def test_metrics_count_what_was_read_forwarded_and_said(deployment: Deployment) -> None:
    await until_running(deployment)
    await deployment.site.publish(b"not JSON", b'{"sender":""}')

    async def metrics() -> dict[str, float]:
        _, text = await asyncio.to_thread(asked, deployment.agent, "/metrics")
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


# The supervisor


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
    assert next(each for each in heard if each not in (ALIVE, MORE_TIME)) == b"READY=1"


async def test_a_supervisor_hears_of_an_agent_that_waits_for_a_slow_disk_and_gives_it_time(
    deployment: Deployment, tmp_path: Path
) -> None:
    with slow_start(deployment, tmp_path / "notify") as (supervisor, lasting):
        heard = [await asyncio.to_thread(supervisor.recv, 1_000) for _ in range(6)]
        assert heard == [ALIVE, MORE_TIME] * 3
        lasting.execute("ROLLBACK")
        while (said := await asyncio.to_thread(supervisor.recv, 1_000)) in (ALIVE, MORE_TIME):
            pass
        assert said == b"READY=1"


async def test_an_agent_that_is_told_to_stop_while_it_starts_asks_for_no_more_time(
    deployment: Deployment, tmp_path: Path
) -> None:
    with slow_start(deployment, tmp_path / "notify") as (supervisor, lasting):
        last = [await asyncio.to_thread(supervisor.recv, 1_000)]
        deployment.agent.signal(signal.SIGTERM)
        while last[-3:] != [ALIVE] * 3:
            last.append(await asyncio.to_thread(supervisor.recv, 1_000))
        lasting.execute("ROLLBACK")
        assert await deployment.agent.ended() == 0


async def test_a_supervisor_without_a_watchdog_is_asked_for_time_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.delenv("WATCHDOG_USEC", raising=False)
    monkeypatch.setattr("edge_agent.daemon.EXTEND_INTERVAL", 0.05)
    with supervisor_socket(tmp_path / "notify") as supervisor:
        async with keep_watchdog(asyncio.Event()):
            for _ in range(3):
                assert await asyncio.to_thread(supervisor.recv, 1_000) == MORE_TIME


async def test_an_agent_that_hangs_feeds_no_watchdog(deployment: Deployment, tmp_path: Path) -> None:
    with supervisor_socket(tmp_path / "notify") as supervisor:
        deployment.agent.start({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"})
        for sign in (b"READY=1", b"WATCHDOG=1"):
            while await asyncio.to_thread(supervisor.recv, 1_000) != sign:
                pass
        deployment.agent.signal(signal.SIGSTOP)
        # What was sent before it stopped is still in the socket; then there is nothing.
        supervisor.settimeout(2)
        with contextlib.suppress(TimeoutError):
            for _ in range(SIGNS_LEFT):
                await asyncio.to_thread(supervisor.recv, 1_000)
            pytest.fail("it goes on feeding")
        deployment.agent.signal(signal.SIGCONT)
        supervisor.settimeout(180)
        assert (await asyncio.to_thread(supervisor.recv, 1_000)).split(b"=")[0] in (b"WATCHDOG", b"STATUS")


@contextlib.contextmanager
def slow_start(deployment: Deployment, address: Path) -> Iterator[tuple[socket.socket, sqlite3.Connection]]:
    """Start an agent whose look at its store lasts, as on a slow disk, until what locks the store lets go."""
    prepare(deployment.agent.store)
    with (
        supervisor_socket(address) as supervisor,
        contextlib.closing(sqlite3.connect(deployment.agent.store, isolation_level=None)) as lasting,
    ):
        lasting.execute("BEGIN EXCLUSIVE")
        deployment.agent.start({"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "400000"})
        yield supervisor, lasting


async def test_an_agent_that_has_its_store_and_has_not_written_yet_is_not_called_dead(deployment: Deployment) -> None:
    await until_running(deployment)
    deployment.agent.kill()
    settings = ("--config", str(deployment.agent.config))
    with hold_of(deployment.agent.store):
        checked = await deployment.agent.run_command("status", "--check", *settings)
        _, findings, _ = await deployment.agent.run_command("doctor", *settings)
        assert checked[:2] == (
            1,
            f"error: agent: {STARTS}; {conditions.STARTING.remedy} (starting)\n",
        )
        assert STARTS in " ".join(findings.split())
        assert "killed or crashed" not in findings
    assert (await deployment.agent.run_command("status", "--check", *settings))[0] == 2

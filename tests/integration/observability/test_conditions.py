"""What goes wrong is said under one name in all six places, as long as it lasts, and its end is said too."""

import asyncio
import json
import os
import re
import resource
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from edge_agent.observability import health
from edge_agent.store.site_key import site_key
from shared.embedded.server import dies_with
from shared.instants import HOUR, SECOND, format_instant
from shared.policy import EVERY_REVISION, ForwardSender, Revision, Scope, consumer_name, encode_revision
from shared.policy import STREAM as POLICY
from tests.support.agent.agent_process import COMMAND, Deployment, deployed, free_address
from tests.support.agent.agent_within import agent_within
from tests.support.agent.mode_settings import ABOVE_BLOCKS, SAMPLING, block
from tests.support.agent.told_agent import BODIES, arrived, until_running
from tests.support.nats.one_server import written
from tests.support.nats.source_site import CONSUMER, STREAM
from tests.support.observability.six_places import lines_of, logging_to, over, places, shown
from tests.support.pair.pair_stage import pair_stage
from tests.support.waiting import until

BOUND, NO_ROOM = 256 << 10, 64 << 10
Act = Callable[[Deployment], Awaitable[None]]

SETTINGS = ABOVE_BLOCKS + block("nodes", "sample", SAMPLING)
UPSTREAM_AUTH = '[upstream.auth]\nuser = "agent"\npassword_file = "password"\n\n'
AUTH = '[stream.source.auth]\nuser = "agent"\npassword_file = "password"\n\n[stream.sender]'
USERS = """
authorization {{ users: [
  {{ user: admin, password: secret }}
  {{ user: agent, password: secret, permissions: {{ publish: {{ deny: [{denied}] }} }} }}
] }}
no_auth_user: admin
"""
TWO_ACCOUNTS = """
accounts {
  STREAMS { jetstream: enabled, users: [{ user: admin, password: secret }]
    exports: [{ service: "$JS.API.>", response_type: stream }]
  }
  EDGE {
    users: [{ user: agent, password: secret }]
    imports: [{ service: { account: STREAMS, subject: "$JS.API.>" } }]
  }
}
no_auth_user: admin
"""


@pytest.fixture
async def deployment(tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployed(tmp_path, listen=free_address()) as deployment:
        yield deployment


@asynccontextmanager
async def denied(directory: Path, *subjects: str) -> AsyncIterator[Deployment]:
    """Start an agent whose user may not publish on these subjects of its site."""
    written(directory / "password", "secret")
    users = USERS.format(denied=", ".join(f'"{subject}"' for subject in subjects))
    settings = SETTINGS.replace("[stream.sender]", AUTH)
    async with deployed(directory, settings, free_address(), site_config=users) as deployment:
        deployment.agent.start()
        yield deployment


def permit(deployment: Deployment) -> None:
    """Let the agent's user publish on everything; its connection stays."""
    server = deployment.site.server
    path = server.settings.store_dir / "nats-server.conf"
    _, _, rest = (text := path.read_text()).partition("deny: [")
    path.write_text(text.replace(f"deny: [{rest.partition(']')[0]}]", 'deny: ["nothing"]'))
    os.kill(server.pid, signal.SIGHUP)


# The site's stream


async def cut(deployment: Deployment) -> None:
    await deployment.site.link.cut()


async def restore(deployment: Deployment) -> None:
    await deployment.site.link.restore()


async def pause(deployment: Deployment) -> None:
    until_at = format_instant(time.time_ns() // 1_000 // SECOND * SECOND + HOUR)
    answer = await deployment.site.api(f"CONSUMER.PAUSE.{STREAM}.{CONSUMER}", {"pause_until": until_at})
    assert answer["paused"]


async def resume(deployment: Deployment) -> None:
    await deployment.site.api(f"CONSUMER.PAUSE.{STREAM}.{CONSUMER}", {})


async def limit_idle(deployment: Deployment) -> None:
    await change_consumer(deployment, inactive_threshold=3_600_000_000_000)


async def unlimit_idle(deployment: Deployment) -> None:
    await change_consumer(deployment, inactive_threshold=0)


async def change_consumer(deployment: Deployment, **changes: object) -> None:
    config = (await deployment.site.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}"))["config"]
    body = {"stream_name": STREAM, "config": {**config, **changes}}
    await deployment.site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", body)


async def fill(deployment: Deployment) -> None:
    await deployment.site.update_stream(max_msgs=1, discard="new")


async def make_room(deployment: Deployment) -> None:
    await deployment.site.update_stream(max_msgs=-1, discard="old")


async def take_away(deployment: Deployment) -> None:
    await deployment.site.delete_stream()


async def give_back(deployment: Deployment) -> None:
    await deployment.site.make_stream()


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        pytest.param("link_down", cut, restore, marks=pytest.mark.provokes("link_down")),
        pytest.param("stream_not_read", take_away, give_back, marks=pytest.mark.provokes("stream_not_read")),
        pytest.param("consumer_paused", pause, resume, marks=pytest.mark.provokes("consumer_paused")),
        pytest.param("consumer_expires", limit_idle, unlimit_idle, marks=pytest.mark.provokes("consumer_expires")),
        pytest.param("stream_not_storing", fill, make_room, marks=pytest.mark.provokes("stream_not_storing")),
    ],
)
async def test_what_is_wrong_with_a_stream_is_said_in_all_places_until_it_is_over(
    deployment: Deployment, name: str, begin: Act, end: Act
) -> None:
    await until_running(deployment)
    await begin(deployment)
    await shown(deployment.agent, name)
    await end(deployment)
    await over(deployment.agent, name)


async def test_a_consumer_that_is_paused_when_the_agent_starts_is_said_and_nothing_else(deployment: Deployment) -> None:
    await until_running(deployment)
    await deployment.agent.stopped()
    deployment.agent.log_path.unlink()
    await pause(deployment)
    await deployment.site.publish(b'{"sender":"newcomer"}')
    deployment.agent.start()
    await shown(deployment.agent, "consumer_paused")

    async def nothing_else() -> bool:
        return (await places(deployment.agent))["json"] == {"consumer_paused"}

    await until(nothing_else, "nothing else is said")

    async def is_counted() -> bool:
        (known,) = (await deployment.agent.status_json())["blocks"]
        # A probe that the run before did not read may wait, too.
        return bool(known["progress"] and known["progress"]["pending"])

    await until(is_counted, "what waits is counted though this run has read nothing")
    await resume(deployment)
    await over(deployment.agent, "consumer_paused")


@pytest.mark.provokes("not_moving")
async def test_a_stream_that_is_behind_and_does_not_move_is_told_from_one_that_catches_up(tmp_path: Path) -> None:
    """The agent's account imports the API and not $JS.ACK.>, so that its acknowledgements go nowhere."""
    written(tmp_path / "password", "secret")
    settings = SETTINGS.replace("[stream.sender]", AUTH)
    async with deployed(tmp_path, settings, free_address(), site_config=TWO_ACCOUNTS) as deployment:
        config = {"durable_name": CONSUMER, "ack_policy": "all", "max_ack_pending": 100}
        await deployment.site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})
        await deployment.site.publish(*BODIES * 100)
        deployment.agent.start()
        await shown(deployment.agent, "not_moving")
        assert "the server misses the acknowledgements of 100, and lets no more wait" in deployment.agent.log
        await change_consumer(deployment, max_ack_pending=-1)
        await over(deployment.agent, "not_moving")


@pytest.mark.provokes("starting")
async def test_an_agent_whose_site_is_not_there_says_that_it_starts(deployment: Deployment) -> None:
    await cut(deployment)
    deployment.agent.start()
    await shown(deployment.agent, "link_down")
    assert "starting" in (await places(deployment.agent))["check"]
    await restore(deployment)
    await over(deployment.agent, "link_down", "starting")


@pytest.mark.provokes("permission_denied")
async def test_what_the_agent_may_not_do_is_said_until_it_may(tmp_path: Path) -> None:
    async with denied(tmp_path, "$JS.API.CONSUMER.MSG.NEXT.>") as deployment:
        await shown(deployment.agent, "permission_denied")
        permit(deployment)
        await deployment.site.publish(*BODIES)
        await over(deployment.agent, "permission_denied")


@pytest.mark.provokes("probe_not_stored")
@pytest.mark.provokes("time_unproven")
async def test_where_nothing_proves_that_a_quiet_stream_stores_it_is_said_until_somebody_speaks(tmp_path: Path) -> None:
    async with denied(tmp_path, "registration.>") as deployment:
        await shown(deployment.agent, "probe_not_stored", "time_unproven")
        async with deployment.senders(["node0"]):
            await over(deployment.agent, "time_unproven")


@pytest.mark.provokes("heartbeat_not_stored")
async def test_a_heartbeat_that_no_stream_takes_is_said_until_one_does(tmp_path: Path) -> None:
    beating = SAMPLING + '\n[stream.heartbeat]\ninterval = "1s"\nsubject = "beat"\n'
    settings = ABOVE_BLOCKS + block("nodes", "sample", beating, source="probe = false")
    async with deployed(tmp_path, settings, free_address()) as deployment:
        deployment.agent.start()
        await shown(deployment.agent, "heartbeat_not_stored")
        await deployment.site.update_stream(subjects=["registration.>", "beat"])
        await over(deployment.agent, "heartbeat_not_stored")


# The store


@pytest.mark.provokes("store_locked")
async def test_a_store_that_is_locked_is_said_though_it_can_take_no_status(deployment: Deployment) -> None:
    await until_running(deployment)
    with closing(sqlite3.connect(deployment.agent.store, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        await deployment.site.publish(b'{"sender":"newcomer"}')
        await shown(deployment.agent, "store_locked")
    await over(deployment.agent, "store_locked")


@pytest.mark.provokes("disk_failing")
async def test_a_disk_that_takes_no_more_though_it_has_room_is_said_until_it_can_be_written(
    deployment: Deployment,
) -> None:
    """A bound of the kernel's (RLIMIT_FSIZE), as a quota is: the log is smaller, and the store larger than it."""
    await until_running(deployment)
    agent, boundless = deployment.agent, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    names = [f"node{number}" for number in range(40)]
    async with deployment.senders(names, size=8 << 10):
        await until(lambda: agent.store.with_name("agent.db-wal").stat().st_size > BOUND, "the store has grown")
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (BOUND, resource.RLIM_INFINITY))
        await shown(agent, "disk_failing")
        resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, boundless)
        await over(agent, "disk_failing")


@pytest.mark.parametrize("name", ["disk_failing", "store_locked"])
async def test_why_a_store_cannot_be_written_is_said_by_all_where_there_are_no_pages(tmp_path: Path, name: str) -> None:
    async with deployed(tmp_path) as deployment:
        await until_running(deployment)
        agent = deployment.agent

        async def all_say(*wanted: str) -> bool:
            found = await places(agent)
            asked = {found[place] for place in ("json", "page", "check", "doctor")}
            return asked == {frozenset(wanted)} and bool(lines_of(agent, name))

        with closing(sqlite3.connect(agent.store, isolation_level=None)) as other:
            boundless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
            if name == "store_locked":
                other.execute("BEGIN IMMEDIATE")
            else:
                resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (NO_ROOM, resource.RLIM_INFINITY))
            async with deployment.senders(["node0"], size=8 << 10):
                await until(lambda: all_say(name), f"all say {name}, and not that the agent hangs")
                resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, boundless)
                if name == "store_locked":
                    other.execute("ROLLBACK")
                await until(all_say, "all say that it is over")


@pytest.mark.provokes("log_lost")
async def test_a_log_that_nobody_reads_is_said_until_somebody_does(deployment: Deployment) -> None:
    agent = deployment.agent
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        COMMAND, "run", "--config", str(agent.config), stdout=writer, stderr=writer, preexec_fn=dies_with(os.getpid())
    )
    os.close(writer)
    try:
        await deployment.site.publish(*BODIES)
        await until(lambda: arrived(deployment, len(BODIES)), "it works")
        os.close(reader)
        # What it says of a link is lost.
        await cut(deployment)
        await restore(deployment)

        async def all_say(*wanted: str) -> bool:
            return set((await places(agent)).values()) == {frozenset(wanted)}

        await until(lambda: all_say("log_lost"), "all pages say that the log is lost")
        reader = os.open(f"/proc/{process.pid}/fd/2", os.O_RDONLY)
        await until(all_say, "all pages say that it is over")
        os.set_blocking(reader, False)
        assert b"condition=log_lost" in os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        process.kill()
        await process.wait()


# Senders


@asynccontextmanager
async def repeated(deployment: Deployment, body: bytes) -> AsyncIterator[None]:
    """Publish a message at the site twice a second, until the block ends."""

    async def publish() -> None:
        while True:
            await deployment.site.publish(body)
            await asyncio.sleep(0.5)

    publishing = asyncio.create_task(publish())
    try:
        yield
    finally:
        publishing.cancel()
        await asyncio.wait({publishing})


@pytest.mark.provokes("unidentified_registrations")
async def test_messages_that_name_no_sender_are_said_as_long_as_they_come(deployment: Deployment) -> None:
    await until_running(deployment)
    async with repeated(deployment, b'{"name":"node0"}'):
        await shown(deployment.agent, "unidentified_registrations")
    await over(deployment.agent, "unidentified_registrations")


@pytest.mark.provokes("batch_not_opened")
async def test_messages_of_several_senders_are_said_until_stale_after_has_passed_without_one(
    deployment: Deployment,
) -> None:
    await until_running(deployment)
    async with repeated(deployment, b'{"sender":"node0"}\n{"sender":"node1"}\n'):
        await shown(deployment.agent, "batch_not_opened")
    await over(deployment.agent, "batch_not_opened")


@pytest.mark.provokes("too_many_senders")
async def test_senders_beyond_the_limit_are_said_as_long_as_they_come(tmp_path: Path) -> None:
    settings = SETTINGS.replace("[stream.policy]", "[stream.policy]\nmax_senders = 3")
    async with deployed(tmp_path, settings, free_address()) as deployment:
        deployment.agent.start()
        async with deployment.senders([f"node{number}" for number in range(5)]):
            await shown(deployment.agent, "too_many_senders")
        await over(deployment.agent, "too_many_senders")


# The region


@pytest.mark.provokes("region_unreachable")
@pytest.mark.provokes("region_refuses")
async def test_a_region_that_cannot_be_reached_or_refuses_is_said_once_that_has_lasted(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "DRAIN_PATIENCE", 2 * SECOND)
    agent = deployment.agent
    with logging_to(agent.log_path):
        async with agent_within(agent.config):
            await deployment.region.link.cut()
            await shown(agent, "region_unreachable")
            await deployment.region.link.restore()
            await over(agent, "region_unreachable")
            await deployment.region.api("STREAM.DELETE.FLEET")
            await deployment.site.publish(*BODIES)
            await shown(agent, "region_refuses")
            await deployment.region.make_stream()
            await over(agent, "region_refuses")


@pytest.mark.provokes("outbox_full")
@pytest.mark.provokes("outbox_nearly_full")
async def test_an_outbox_that_is_full_is_said_with_what_waits_in_the_stream_until_there_is_room(tmp_path: Path) -> None:
    settings = SETTINGS.replace('path = "agent.db"', 'path = "agent.db"\nmax_outbox = "1MiB"')
    async with deployed(tmp_path, settings, free_address()) as deployment:
        agent = deployment.agent
        agent.start()
        await deployment.site.publish(*BODIES)
        await deployment.until_observed()
        await deployment.region.link.cut()
        last = await deployment.site.publish(*(b'{"sender": "node-%d.example.net"}' % each for each in range(4_000)))
        await shown(agent, "outbox_full", "outbox_nearly_full")
        last = await deployment.site.publish(*(b'{"sender": "node-%d.example.net"}' % each for each in range(1_369)))

        async def are_counted() -> bool:
            (known,) = (await agent.status_json())["blocks"]
            return bool(known["progress"]["pending"] == last - known["state"]["position"]["sequence"])

        await until(are_counted, "what the stream holds and was not read is counted though nothing is read")
        await deployment.region.link.restore()
        await over(agent, "outbox_full", "outbox_nearly_full")


@pytest.mark.provokes("set_apart")
@pytest.mark.provokes("too_large_dropped")
async def test_what_is_too_large_for_the_region_is_said(tmp_path: Path) -> None:
    settings = SETTINGS + block("all", "copy")
    async with deployed(tmp_path, settings, free_address()) as deployment:
        agent = deployment.agent
        await deployment.region.update_stream(max_msg_size=50_000)
        agent.start()
        await deployment.site.publish(b'{"sender":"a","pad":"%b"}' % (b"p" * 100_000))
        await shown(agent, "set_apart", "too_large_dropped")
        code, _, errors = await agent.run_command(
            "outbox", "--config", str(agent.config), "set-apart", "--drop", "--yes"
        )
        assert code == 0, errors
        await over(agent, "set_apart")


@pytest.mark.provokes("policy_not_heard")
async def test_policy_that_is_kept_back_is_said_until_it_is_heard(deployment: Deployment) -> None:
    policy = {"name": POLICY, "subjects": [EVERY_REVISION]}
    await deployment.region.api(f"STREAM.CREATE.{POLICY}", policy)
    await until_running(deployment)
    consumer = f"{POLICY}.{consumer_name('dub1')}"

    async def is_there() -> bool:
        part = (await deployment.agent.status_json())["parts"].get("policy", {})
        return bool(part.get("phase") == "following the hub")

    await until(is_there, "the agent listens")
    await deployment.region.api(f"CONSUMER.PAUSE.{consumer}", {"pause_until": "2099-01-01T00:00:00Z"})
    await shown(deployment.agent, "policy_not_heard")
    await deployment.region.api(f"CONSUMER.PAUSE.{consumer}", {})
    await over(deployment.agent, "policy_not_heard")


async def test_policy_that_was_taken_and_is_gone_from_the_region_is_said(deployment: Deployment) -> None:
    policy = {"name": POLICY, "subjects": [EVERY_REVISION]}
    await deployment.region.api(f"STREAM.CREATE.{POLICY}", policy)
    order = ForwardSender("node0")
    revision = Revision(revision=1, stream_created_us=1, given_at_us=1, author="test", order=order)
    await deployment.region.client.publish(Scope("eu-west").subject, encode_revision(revision))
    await until_running(deployment)

    async def is_taken() -> bool:
        (known,) = (await deployment.agent.status_json())["blocks"]
        return bool(known["state"].get("standing", {}).get("revision") == 1)

    await until(is_taken, "the revision is taken")
    await deployment.region.api(f"STREAM.DELETE.{POLICY}")
    gone = f"there is no stream {POLICY} in this region any more"
    await until(lambda: gone in deployment.agent.log, "that it is gone is what is said")
    await shown(deployment.agent, "policy_not_heard")


async def test_what_need_not_work_is_no_fault_in_the_log_either(tmp_path: Path) -> None:
    """The watch over names needs one permission more than publishing does."""
    Path(written(tmp_path / "password", "secret")).chmod(0o600)
    settings = SETTINGS.replace("[store]", UPSTREAM_AUTH + "[store]")
    users = USERS.format(denied='"$JS.API.DIRECT.GET.>"')
    async with deployed(tmp_path, settings, region_config=users) as deployment:
        await until_running(deployment)
        agent = deployment.agent
        await until(lambda: "names: not watched: not permitted" in agent.log, "it is told")
        assert not re.search("level=WARNING .*names: not watched", agent.log)
        _, found, _ = await agent.run_command("doctor", "--config", str(agent.config))
        assert re.search(r"OK +agent +names not watched: not permitted", found)


# A pair


@pytest.mark.provokes("pair_not_ready")
@pytest.mark.provokes("pair_alone")
async def test_a_member_says_that_it_cannot_lead_or_is_alone_until_the_other_is_there(tmp_path: Path) -> None:
    async with pair_stage(tmp_path) as pair:
        first, second = pair.a.agent, pair.b.agent
        for path in (first.config, second.config):
            path.write_text(path.read_text().replace('listen = ""', f'listen = "{free_address()}"'))
        # The member named first begins the log, whoever starts first.
        site_key(tmp_path / "id.key")
        second.start()
        await shown(second, "pair_not_ready")
        first.start()
        await over(second, "pair_not_ready")
        second.kill()
        await shown(first, "pair_alone")
        second.start()
        await over(first, "pair_alone")


# The process


@pytest.mark.provokes("agent_silent")
@pytest.mark.provokes("not_running")
async def test_an_agent_that_hangs_or_does_not_run_is_said_by_all_that_can_be_asked_then(
    deployment: Deployment,
) -> None:
    await until_running(deployment)
    agent, settings = deployment.agent, ("--config", str(deployment.agent.config))

    async def say(name: str) -> bool:
        _, told, _ = await agent.run_command("status", "--json", *settings)
        _, page, _ = await agent.run_command("status", *settings)
        code, check, _ = await agent.run_command("status", "--check", *settings)
        _, findings, _ = await agent.run_command("doctor", "--json", *settings)
        said = [
            [each["name"] for each in json.loads(told)["conditions"]] == [name],
            f"({name} for " in page,
            f"({name} for " in check,
            name in [each["condition"] for each in json.loads(findings)["findings"]],
        ]
        return all(said) and code == (1 if name == "agent_silent" else 2)

    agent.signal(signal.SIGSTOP)
    await until(lambda: say("agent_silent"), "all say that it hangs")
    agent.signal(signal.SIGCONT)
    agent.kill()
    await until(lambda: say("not_running"), "all say that it does not run")

"""What the simulator publishes is what its truth says, also when servers stop and when it is killed itself."""

import asyncio
import base64
import re
import signal
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise, takewhile
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from edge_agent.simulator.bodies import SizeRange
from edge_agent.simulator.commands import LiveOptions, run_live, simulate
from edge_agent.simulator.fleet import Fleet, FleetSettings
from edge_agent.simulator.script import Script, play
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.instants import SECOND, parse_instant
from shared.nats.connection import ApiError, ConnectionSettings, connect, request_json
from shared.settings import parse_settings
from shared.truth import Truth, read_truth
from shared.wire import Advisory, decode_advisory
from tests.support.waiting import until

MUSTER_AGENT = (str(Path(sys.executable).parent / "muster-agent"),)
INTERVAL = SECOND // 2
LATENESS = 2 * SECOND
"""How much later than planned a registration may be stored on a machine that does other things as well."""


class StoredMessage(msgspec.Struct):
    subject: str
    data: str
    time: str

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.data)

    @property
    def stored_at(self) -> int:
        return parse_instant(self.time)


class Stored(msgspec.Struct):
    message: StoredMessage


class StreamState(msgspec.Struct):
    last_seq: int


class StreamInfo(msgspec.Struct):
    state: StreamState


class Envelope(msgspec.Struct):
    sender: str
    requestid: str

    @property
    def number(self) -> int:
        return int(self.requestid[16:], 16)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedNats]:
    async with EmbeddedNats(ServerSettings(name="site", store_dir=tmp_path / "nats")) as running:
        yield running


async def stored_messages(server: EmbeddedNats, stream: str = "REGISTRATION") -> list[StoredMessage]:
    client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=10)
    try:
        info = await request_json(client, f"$JS.API.STREAM.INFO.{stream}", None, StreamInfo, deadline=60)
        return [
            (await request_json(client, f"$JS.API.STREAM.MSG.GET.{stream}", {"seq": seq}, Stored, deadline=60)).message
            for seq in range(1, info.state.last_seq + 1)
        ]
    finally:
        await client.close()


async def last_sequence(server: EmbeddedNats, stream: str) -> int:
    client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=10)
    try:
        return (
            await request_json(client, f"$JS.API.STREAM.INFO.{stream}", None, StreamInfo, deadline=60)
        ).state.last_seq
    except ApiError:
        return 0
    finally:
        await client.close()


async def heard_after(server: EmbeddedNats, instant: int) -> bool:
    messages = [message for message in await stored_messages(server) if message.stored_at > instant]
    return len({msgspec.json.decode(message.body, type=Envelope).sender for message in messages}) == 20


def truth_in(path: Path) -> Truth:
    with path.open("rb") as lines:
        return read_truth(lines)


def gone_down(truth: Truth) -> set[str]:
    return {sender for site, sender in truth.senders if truth.intervals(site, sender)[-1].up_to_us is not None}


@asynccontextmanager
async def simulating(server: EmbeddedNats, truth: Path, *more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    arguments = ["--server", server.url, "--site", "dub1", "--senders", "20", "--interval", "500ms", "--create-stream"]
    process = await asyncio.create_subprocess_exec(
        *MUSTER_AGENT,
        "simulate",
        *arguments,
        *("--truth", str(truth)),
        *more,
        stderr=PIPE,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_what_is_stored_is_what_the_truth_says(
    server: EmbeddedNats, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = """
        outage = [{at = "1s", for = "2s", racks = [2]}, {at = "4s", for = "1s", site = true}]
        flapping = [{at = "1s", period = "2s", count = 2, down = "1s", senders = ["dub1-r1-n1.example.net"]}]
        retire = [{at = "2s", senders = ["dub1-r1-n2.example.net"]}]
        rename = [{at = "3s", sender = "dub1-r1-n3.example.net", to = "web3.example.net"}]
        join = [{at = "2500ms", count = 3}]
    """
    fleet_settings = FleetSettings(site="dub1", sender_count=20, registration_interval=INTERVAL, rack_size=5)
    path = tmp_path / "outages.toml"
    fleet = Fleet(fleet_settings, play(fleet_settings, parse_settings(script, Script, path), path))
    (tmp_path / "outages.toml").write_text(script)
    await run_live(
        LiveOptions(
            servers=(server.url,),
            site="dub1",
            senders=20,
            interval=INTERVAL,
            rack_size=5,
            size=SizeRange(5_000, 9_000),
            script_path=tmp_path / "outages.toml",
            truth_path=tmp_path / "truth.jsonl",
            stream="REGISTRATION",
            create_stream=True,
            subject="registration.{site}.{sender}",
            duration=7 * SECOND,
        )
    )

    truth = truth_in(tmp_path / "truth.jsonl")
    assert truth.header.script == script
    assert truth.header.ended_at_us == truth.through
    assert 0 <= truth.header.started_at_us + 7 * SECOND - truth.through < SECOND // 10
    assert [sender for _, sender in truth.senders] == sorted(fleet.sender_ids)
    stored_at: dict[tuple[str, int], int] = {}
    for message in await stored_messages(server):
        said = msgspec.json.decode(message.body, type=Envelope)
        assert message.subject == f"registration.dub1.{said.sender.replace('.', '_')}"
        assert 5_000 <= len(message.body) <= 9_000
        assert (said.sender, said.number) not in stored_at
        stored_at[said.sender, said.number] = message.stored_at

    planned_at = {
        (fleet.sender_ids[sender], due_at // INTERVAL): truth.header.started_at_us + due_at
        for due_at, sender in takewhile(lambda registration: registration[0] < 6 * SECOND, fleet.registrations())
    }
    left_out = re.search(r"([\d,]+) left out, because this machine", capsys.readouterr().err)
    missing = 0
    for (sender, number), at in planned_at.items():
        assert not truth.down_spans("dub1", sender, at, at + 1)
        if (sender, number) in stored_at:
            assert at <= stored_at[sender, number] < at + LATENESS
        elif not truth.down_spans("dub1", sender, at, min(at + LATENESS, truth.through)):
            missing += 1
    assert missing <= (int(left_out[1].replace(",", "")) if left_out else 0)
    assert {key for key in stored_at if key[1] < 12} <= planned_at.keys()


async def test_a_stopped_server_stops_nobody(server: EmbeddedNats, tmp_path: Path) -> None:
    async with simulating(server, tmp_path / "truth.jsonl") as process:
        await until((tmp_path / "truth.jsonl").exists, "the truth is begun")
        await until(lambda: heard_after(server, 0), "every sender is heard")
        await server.kill()
        down_from = time.time_ns() // 1_000
        await asyncio.sleep(2 * INTERVAL / SECOND)
        up_again = time.time_ns() // 1_000
        await server.start()
        await until(lambda: heard_after(server, up_again), "every sender is heard again")
        process.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0
    assert b"no connection" in said

    truth = truth_in(tmp_path / "truth.jsonl")
    assert truth.header.ended_at_us is not None
    for site, sender in truth.senders:
        assert not truth.down_spans(site, sender, truth.header.started_at_us, truth.through)
    # What was said to nobody is not said later on somebody's behalf: two turns of each are missing for good.
    numbers: dict[str, list[int]] = {}
    for message in await stored_messages(server):
        assert not down_from < message.stored_at < up_again
        spoken = msgspec.json.decode(message.body, type=Envelope)
        numbers.setdefault(spoken.sender, []).append(spoken.number)
    assert all(max(b - a for a, b in pairwise(said)) >= 2 for said in numbers.values())


async def test_a_killed_simulator_leaves_what_happened_until_then(server: EmbeddedNats, tmp_path: Path) -> None:
    (tmp_path / "outages.toml").write_text('[[outage]]\nat = "1s"\nracks = [1]')
    more = ("--script", str(tmp_path / "outages.toml"), "--rack-size", "5")
    async with simulating(server, tmp_path / "truth.jsonl", *more) as process:
        await until((tmp_path / "truth.jsonl").exists, "the truth is begun")
        await until(lambda: gone_down(truth_in(tmp_path / "truth.jsonl")), "the rack is down")
        process.kill()
        killed_at = time.time_ns() // 1_000
        await process.wait()
    truth = truth_in(tmp_path / "truth.jsonl")
    assert truth.header.ended_at_us is None
    assert killed_at - 3 * SECOND < truth.through <= killed_at
    assert gone_down(truth) == {f"dub1-r1-n{place}.example.net" for place in range(1, 6)}


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--site", "dub1"], "say where to publish"),
        (["--server", "nats://127.0.0.1:1"], "the site has no name"),
        (["--site", "du.b1", "--server", "nats://127.0.0.1:1"], "not usable in a subject"),
        (["--site", "dub1", "--server", "nats://127.0.0.1:1", "--interval", "soon"], "not a duration"),
        (["--site", "dub1", "--server", "nats://127.0.0.1:1", "--jitter", "300s"], "jitter must be shorter"),
        (["--site", "dub1", "--server", "nats://127.0.0.1:1", "--size", "25kB..5kB"], "the smaller one first"),
        (["--site", "dub1", "--server", "nats://127.0.0.1:1", "--script", "/nowhere"], "/nowhere: No such file"),
        (["--site", "dub1", "--server", "http://127.0.0.1:1"], "not a server"),
    ],
)
def test_a_wrong_option_is_refused_in_one_clear_line(arguments: list[str], line: str) -> None:
    result = CliRunner().invoke(simulate, arguments)
    assert result.exit_code in (1, 2)
    assert line in result.output.splitlines()[-1]


async def test_history_reaches_the_regions_stream_once_however_often_it_is_published(
    server: EmbeddedNats, tmp_path: Path
) -> None:
    async def played(truth: str) -> str:
        arguments = ["--server", server.url, "--region", "eu", "--site", "dub1", "--site", "ber1", "--create-stream"]
        fleet = ["--senders", "20", "--duration", "2d", "--sender-up", "6h", "--ends", "2026-01-31T00:00:00Z"]
        process = await asyncio.create_subprocess_exec(
            *MUSTER_AGENT, "simulate", "history", *arguments, *fleet, "--truth", tmp_path / truth, stderr=PIPE
        )
        _, said = await asyncio.wait_for(process.communicate(), 60)
        assert process.returncode == 0, said.decode()
        return said.decode()

    said = await played("truth.jsonl")
    published = [(message.subject, message.body) for message in await stored_messages(server, "FLEET")]
    assert f"{len(published):,} records published" in said
    truth = truth_in(tmp_path / "truth.jsonl")
    assert truth.header.ended_at_us == truth.through == parse_instant("2026-01-31T00:00:00Z")
    assert len(truth.senders) == 40
    stale = 0
    for subject, body in published:
        if subject.endswith(".advisory.stale"):
            advisory = decode_advisory(body)
            assert isinstance(advisory, Advisory)
            assert truth.down_spans(
                advisory.site, advisory.value, advisory.last_seen_us, advisory.at_us - 5 * 60 * SECOND
            )
            stale += 1
    assert stale > 40

    await played("truth-again.jsonl")
    assert [(message.subject, message.body) for message in await stored_messages(server, "FLEET")] == published
    assert (tmp_path / "truth-again.jsonl").read_bytes() == (tmp_path / "truth.jsonl").read_bytes()


async def test_history_arrives_whole_through_a_server_that_is_killed(server: EmbeddedNats, tmp_path: Path) -> None:
    arguments = ["--server", server.url, "--region", "eu", "--site", "dub1", "--create-stream", "--sender-up", "12h"]
    process = await asyncio.create_subprocess_exec(
        *MUSTER_AGENT, "simulate", "history", *arguments, "--senders", "50", "--duration", "90d", stderr=PIPE
    )
    try:
        await until(lambda: last_sequence(server, "FLEET"), "the history has begun")
        await server.kill()
        await server.start()
        before = await last_sequence(server, "FLEET")
        _, said = await asyncio.wait_for(process.communicate(), 300)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()
    arrived = await last_sequence(server, "FLEET")
    assert 0 < before < arrived
    assert f"{arrived:,} records published" in said.decode()


async def test_without_a_stream_nothing_begins(server: EmbeddedNats, tmp_path: Path) -> None:
    truth = tmp_path / "truth.jsonl"
    arguments = ["--server", server.url, "--site", "dub1", "--truth", str(truth)]
    result = await asyncio.to_thread(CliRunner().invoke, simulate, arguments)
    assert result.exit_code == 1
    assert result.output == "Error: there is no stream REGISTRATION: make it, or add --create-stream\n"
    assert not truth.exists()

"""The demo ends in success, fails loudly, and leaves nothing running, however it ends."""

import asyncio
import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aggregator.demo.summary import QUERIES
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.java import java_home
from tests.support.waiting import until

PROGRAMS = Path(sys.executable).parent
SUCCESS_DEADLINE = 900.0
LIVE_DEADLINE = 300.0
GONE_DEADLINE = 180.0


class Demo:
    """A running demo and what it has printed."""

    def __init__(self, directory: Path, process: asyncio.subprocess.Process) -> None:
        self.directory = directory
        self.process = process
        self.lines: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def until_said(self, words: str, deadline: float = LIVE_DEADLINE) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(deadline):
            async for line in self.process.stdout:
                self.lines.append(line.decode().rstrip())
                if words in self.lines[-1]:
                    return
        raise AssertionError(f"it ended without saying {words!r}:\n{self.text}")

    async def ended(self, deadline: float) -> int:
        async with asyncio.timeout(deadline):
            rest = await self.process.stdout.read() if self.process.stdout else b""
            self.lines += rest.decode().splitlines()
            return await self.process.wait()

    def processes(self) -> dict[int, str]:
        """Give the command lines of what runs for it, the demo itself left out."""
        found = processes_with(str(self.directory))
        found.pop(self.process.pid, None)
        return found

    def kill(self, words: str) -> None:
        """Kill the one process that has ``words`` in its command line."""
        (pid,) = [pid for pid, command in self.processes().items() if words in command]
        os.kill(pid, signal.SIGKILL)

    def ports(self) -> list[int]:
        """Give every port that its servers were reached on."""
        words = self.text.replace("nats://127.0.0.1:", " nats://127.0.0.1:").split()
        return sorted({int(word.rpartition(":")[2]) for word in words if word.startswith("nats://127.0.0.1:")})


def unwrapped(text: str) -> str:
    """Undo the breaks in a shown command's output: where lines end depends on how long a path or a number is."""
    return re.sub(r"\n *\|  {4,}", " ", text)


def processes_with(words: str) -> dict[int, str]:
    found = {}
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if directory.name.isdecimal():
                command = (directory / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if words in command:
                    found[int(directory.name)] = command
    return found


@asynccontextmanager
async def running_demo(directory: Path) -> AsyncIterator[Demo]:
    process = await asyncio.create_subprocess_exec(
        *(str(PROGRAMS / "muster-aggregator"), "demo", "--quick", "--dir", str(directory)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    demo = Demo(directory, process)
    try:
        yield demo
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def listening(ports: list[int]) -> set[str]:
    """Give the kernel's numbers of the sockets that listen on ``ports``: whoever takes a port anew has another one."""
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) in ports}


async def nothing_runs(demo: Demo) -> None:
    await until(lambda: not demo.processes(), "every process of the demo is gone", GONE_DEADLINE)


def asked(directory: Path, query: str) -> str:
    command = [str(PROGRAMS / "muster-aggregator"), "sql", "--config", str(directory / "aggregator.toml")]
    answer = subprocess.run(
        [*command, "--format", "json", query], capture_output=True, text=True, timeout=600, check=False
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


async def test_the_demo_agrees_with_the_truth_whoever_kills_what_and_leaves_tables_and_a_page(tmp_path: Path) -> None:
    async with running_demo(tmp_path / "run") as demo:
        # Behind the regions' first acknowledgements, before which the hub's server may leave something out.
        await demo.until_said("is renamed web5")
        demo.kill("servers/hub/nats-server.conf")
        demo.kill("servers/eu-west/nats-server.conf")
        await demo.until_said("agent is started again")
        demo.kill("nyc1/agent.toml")
        demo.kill("servers/dub1/nats-server.conf")
        assert await demo.ended(SUCCESS_DEADLINE) == 0, demo.text
        await nothing_runs(demo)
    assert "SUCCESS: every promise was kept." in demo.text
    assert "FAILED" not in demo.text
    status = unwrapped(demo.text.partition("what its agent tells an operator meanwhile:")[2])
    assert re.search(r"upstream +not connected for \d+s", status), "status behind the cut link says that it is cut"
    assert re.search(r"outbox .* waits? for the region's acknowledgement", status), "and what waits for it"
    assert demo.text.count("kill -9") == 2, "the demo's own, and what it invites to"
    for name in ("hub", "eu-west", "dub1"):
        assert re.search(rf"{name} +somebody ended the server: it is started again", demo.text)
    assert re.search(r"nyc1 +somebody ended agent-nyc1 \(SIGKILL\): it is started again", demo.text)

    offered = [shlex.split(line) for line in demo.lines if line.startswith("      'S")]
    assert [query for line in offered for query in line] == list(QUERIES)
    for query in QUERIES:
        assert asked(demo.directory, query)
    found = {row["sender_id"] for row in json.loads(asked(demo.directory, "SELECT DISTINCT sender_id FROM outages"))}
    # dub1: a rack of five and one that flaps; lon1: a rack and the renamed one; nyc1: a rack and the retired one. On a
    # machine that pauses, a blind span may hide some of them: the demo has judged that.
    alone = {"dub1-r2-n4", "lon1-r1-n5", "nyc1-r1-n4"}
    down = alone | {f"{rack}-n{number}" for rack in ("dub1-r3", "lon1-r2", "nyc1-r4") for number in range(1, 6)}
    assert found <= {f"{sender}.example.net" for sender in down}
    assert {sender.partition("-")[0] for sender in found} == {"dub1", "lon1", "nyc1"}
    assert "<html" in (demo.directory / "report.html").read_text().lower()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
async def test_ending_the_demo_leaves_no_process_and_no_port(tmp_path: Path, number: signal.Signals, code: int) -> None:
    async with running_demo(tmp_path / "run") as demo:
        await demo.until_said("senders are new")
        assert len(demo.processes()) == 13, "six servers, the live service, three agents, three fleets"
        ports = demo.ports()
        sockets = listening(ports)
        assert len(ports) == len(sockets) == 6
        demo.process.send_signal(number)
        assert await demo.ended(GONE_DEADLINE) == code
        await nothing_runs(demo)
        assert not sockets & listening(ports)


async def test_spark_dies_with_the_demo(tmp_path: Path) -> None:
    spark = f"""
from pyspark.sql import SparkSession
settings = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
settings.config("spark.driver.extraJavaOptions", "-Dmuster.test={tmp_path}").getOrCreate()
print("started", flush=True)
import time
time.sleep(600)
"""
    demo = f"""
import asyncio, sys
from aggregator.demo.crew import run_shown
from aggregator.demo.story import Story
asyncio.run(run_shown(Story(), "spark", [sys.executable, "-c", {spark!r}]))
"""
    environment = os.environ | {"JAVA_HOME": str(java_home(default_cache())), "SPARK_LOCAL_IP": "127.0.0.1"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", demo, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    )
    running = Demo(tmp_path, process)
    await running.until_said("| started")
    assert any("java" in command for command in running.processes().values())
    process.kill()
    await running.ended(GONE_DEADLINE)
    await until(lambda: not running.processes(), "Spark's JVM is gone", GONE_DEADLINE)


def test_a_directory_that_is_not_the_demos_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    command = [str(PROGRAMS / "muster-aggregator"), "demo", "--dir", str(tmp_path)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert answer.returncode == 1
    assert "holds something else than a demo: name another place with --dir" in answer.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["letters"]


async def test_a_second_demo_does_not_remove_what_the_first_one_runs_in(tmp_path: Path) -> None:
    async with running_demo(tmp_path / "run") as first:
        await first.until_said("Servers")
        async with running_demo(tmp_path / "run") as second:
            assert await second.ended(GONE_DEADLINE) == 1
            assert "another demo is running in" in second.text
        await first.until_said("Agents and senders")

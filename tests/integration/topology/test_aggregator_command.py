"""The command loads only what it needs, and a person gets one clear line."""

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aggregator import cli, config
from shared.nats.settings import ConnectionSettings
from shared.settings import FilePath

PROGRAM = "from aggregator.cli import main; main()"
TOPOLOGY = (
    '[hub]\nservers = ["nats://hub:4222"]\n[[region]]\nname = "eu-west"\n[[site]]\nname="dub1"\nregion="eu-west"\n'
)
AGGREGATOR = '[hub]\nservers = ["nats://hub:4222"]\n[lakehouse]\npath = "tables"\n'


def muster(*arguments: str, cwd: Path, program: str = PROGRAM) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", program, *arguments]
    # The working directory is the settings' place, so the package is found by where the tests found it.
    environment = {"PYTHONPATH": str(Path(cli.__file__).parents[1]), "PATH": ""}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_help_names_every_command_and_loads_none(tmp_path: Path) -> None:
    program = f"import sys, atexit; atexit.register(lambda: print(*sys.modules)); {PROGRAM}"
    answer = muster("--help", cwd=tmp_path, program=program)
    assert answer.returncode == 0, answer.stderr
    for name in ("check-config", "plan", "apply", "report"):
        assert f"  {name} " in answer.stdout
    loaded = answer.stdout.splitlines()[-1].split()
    # To look whether a command is installed imports the package that it is in, which is empty.
    packages = {"aggregator.topology.commands", "aggregator.lakehouse.commands"}
    assert not [
        name
        for name in set(loaded) - packages
        if name.startswith(("aggregator.topology.", "aggregator.lakehouse.", "pyspark"))
    ]


def test_a_command_whose_package_is_left_out_is_not_there(tmp_path: Path) -> None:
    program = f"import sys; sys.modules['aggregator.lakehouse'] = None; {PROGRAM}"
    answer = muster("--help", cwd=tmp_path, program=program)
    assert answer.returncode == 0, answer.stderr
    assert "rollup" not in answer.stdout
    answer = muster("rollup", cwd=tmp_path, program=program)
    assert (answer.returncode, "No such command 'rollup'" in answer.stderr) == (2, True)


def test_a_mistake_is_one_line_and_debug_shows_where_it_came_from(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(TOPOLOGY + 'max_age = "1d"\n')
    answer = muster("plan", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr.startswith("muster-aggregator: topology.toml: site[0].max_age: there is no such key")
    assert answer.stderr.count("\n") == 1
    assert "Traceback" in muster("--debug", "plan", cwd=tmp_path).stderr


def test_check_config_says_what_the_files_amount_to(tmp_path: Path) -> None:
    (tmp_path / "topology.toml").write_text(TOPOLOGY)
    (tmp_path / "aggregator.toml").write_text(AGGREGATOR)
    answer = muster("check-config", cwd=tmp_path)
    assert answer.stdout.splitlines() == [
        "aggregator.toml: good",
        f"  hub: nats://hub:4222; tables: {tmp_path / 'tables'}",
        "  live service: 127.0.0.1:8480, for this machine only",
        "topology.toml: good",
        "  hub: nats://hub:4222; domain: its own",
        "  region eu-west in domain eu-west: dub1",
    ]
    assert "aggregator.toml" not in muster("check-config", "--topology", "topology.toml", cwd=tmp_path).stdout


def test_check_config_says_what_opens_the_live_service_to_others(tmp_path: Path) -> None:
    file = tmp_path / "aggregator.toml"
    file.write_text(AGGREGATOR + '[live]\nproxy = "127.0.0.1"\n')
    answer = muster("check-config", cwd=tmp_path)
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "proxy = '127.0.0.1' is open to others: name a read_token_file" in answer.stderr
    file.write_text(file.read_text() + 'read_token_file = "readers"\n')
    line = "  live service: 127.0.0.1:8480, open to others by proxy = '127.0.0.1', with tokens"
    assert line in muster("check-config", cwd=tmp_path).stdout.splitlines()


def test_check_config_without_any_file_says_what_to_do(tmp_path: Path) -> None:
    answer = muster("check-config", cwd=tmp_path)
    assert answer.returncode == 1
    assert answer.stderr == "muster-aggregator: neither aggregator.toml nor topology.toml is here: name one\n"


def test_the_aggregators_settings_have_their_defaults(tmp_path: Path) -> None:
    path = tmp_path / "aggregator.toml"
    path.write_text(AGGREGATOR + 'spark."spark.executor.memory" = "2g"\n')
    assert config.load(path) == config.AggregatorSettings(
        hub=ConnectionSettings(servers=("nats://hub:4222",)),
        lakehouse=config.LakehouseSettings(
            path=FilePath(tmp_path / "tables"),
            report_stream="REPORT",
            archive_stream="ARCHIVE",
            jars=FilePath(),
            spark_master="local[*]",
            spark={"spark.executor.memory": "2g"},
        ),
    )


@pytest.mark.parametrize("command", ["plan", "report"])
async def test_an_interrupt_ends_it_quietly(tmp_path: Path, command: str) -> None:
    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialled.set()
        await reader.read()
        writer.close()

    dialled = asyncio.Event()
    server = await asyncio.start_server(say_nothing, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    path = tmp_path / "topology.toml"
    path.write_text(TOPOLOGY.replace("nats://hub:4222", f"nats://127.0.0.1:{port}"))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, command, "--config", str(path), stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    await asyncio.wait_for(dialled.wait(), 60)
    process.send_signal(signal.SIGINT)
    shown, complained = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, shown, complained.strip()) == (130, b"", b"")
    server.close()

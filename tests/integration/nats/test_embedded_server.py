"""A server for demos and tests is ready when it is said to be, keeps its place, and is never left behind."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from shared.embedded.server import EmbeddedNats, LeafRemote, ServerFailed, ServerSettings, find_command
from shared.nats.connection import ConnectionSettings, RequestFailed, connect, request_json
from tests.support.waiting import until


async def connected(server: EmbeddedNats) -> Client:
    return await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=60)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_a_started_server_serves_jetstream_in_its_domain(tmp_path: Path) -> None:
    async with EmbeddedNats(ServerSettings(name="s", store_dir=tmp_path, domain="us-east", sync_always=True)) as server:
        async with await connected(server) as client:
            info = await request_json(client, "$JS.us-east.API.INFO", None, dict[str, object], deadline=2)
        assert info["domain"] == "us-east"
        pid = server.pid
    assert not is_alive(pid)
    assert not server.is_running


async def test_a_restart_and_a_kill_keep_port_and_messages(tmp_path: Path) -> None:
    async with EmbeddedNats(ServerSettings(name="s", store_dir=tmp_path, leaf_port=0)) as server:
        places = server.url, server.leaf_url, server.monitoring_url
        async with await connected(server) as client:
            await client.jetstream().add_stream(name="S", subjects=["s"])
            await client.jetstream().publish("s", b"kept")
        first_pid = server.pid

        await server.restart()
        await server.kill()
        assert not server.is_running
        for place in places:
            with socket.socket() as other, pytest.raises(OSError, match="Address already in use"):
                other.bind(("127.0.0.1", int(place.rpartition(":")[2])))
        await server.start()

        assert (server.url, server.leaf_url, server.monitoring_url) == places
        assert server.pid != first_pid
        async with await connected(server) as client:
            assert (await client.jetstream().get_msg("S", 1)).data == b"kept"


async def test_a_server_takes_further_lines_while_it_runs(tmp_path: Path) -> None:
    settings = ServerSettings(name="s", store_dir=tmp_path, extra_config="max_payload: 1000")
    async with EmbeddedNats(settings) as server, await connected(server) as client:
        pid = server.pid
        server.reload("max_payload: 2000")

        async def is_told() -> bool:
            async with await connected(server) as later:
                return later.max_payload == 2000

        await until(is_told, "the server takes larger messages")
        assert (server.pid, client.is_connected) == (pid, True)


async def test_a_suspended_server_is_silent_until_it_resumes(tmp_path: Path) -> None:
    server = EmbeddedNats(ServerSettings(name="s", store_dir=tmp_path))
    async with server, await connected(server) as client:
        server.suspend()
        with pytest.raises(nats.errors.FlushTimeoutError):
            await client.flush(timeout=1)
        assert server.is_running
        server.resume()
        await client.flush(timeout=5)


async def test_a_suspended_server_can_be_stopped(tmp_path: Path) -> None:
    server = EmbeddedNats(ServerSettings(name="s", store_dir=tmp_path))
    await server.start()
    pid = server.pid
    server.suspend()
    await server.stop()
    assert not is_alive(pid)


async def test_a_leaf_joins_its_hub_and_the_hub_manages_its_domain(tmp_path: Path) -> None:
    hub_settings = ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub", leaf_port=0)
    async with EmbeddedNats(hub_settings) as hub:
        leaf_settings = ServerSettings(
            name="leaf", store_dir=tmp_path / "leaf", domain="eu-west", leaf_remotes=(LeafRemote(hub.leaf_url),)
        )
        async with EmbeddedNats(leaf_settings), await connected(hub) as client:

            async def eu_west_answers() -> bool:
                try:
                    await request_json(client, "$JS.eu-west.API.INFO", None, dict[str, object], deadline=1)
                except RequestFailed:
                    return False
                return True

            await until(eu_west_answers, "the hub reaches the leaf's domain")


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = EmbeddedNats(ServerSettings(name="s", store_dir=tmp_path, extra_config="no_such_setting: 1"))
    with pytest.raises(ServerFailed, match="(?s)nats-server s ended.*no_such_setting"):
        await server.start()
    assert not server.is_running


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with EmbeddedNats(ServerSettings(name="first", store_dir=tmp_path / "1")) as first:
        second = EmbeddedNats(ServerSettings(name="second", store_dir=tmp_path / "2", port=first.port))
        with pytest.raises(ServerFailed, match="address already in use"):
            await second.start()


def test_a_missing_command_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerFailed, match="nats-server is neither beside .* nor on PATH"):
        find_command()


async def test_a_server_dies_with_its_parent_even_when_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import asyncio, pathlib
from shared.embedded.server import EmbeddedNats, ServerSettings
async def main():
    server = EmbeddedNats(ServerSettings(name="s", store_dir=pathlib.Path({str(tmp_path)!r})))
    await server.start()
    print(server.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server_pid = int(await asyncio.wait_for(parent.stdout.readline(), 60))
    assert is_alive(server_pid)
    parent.kill()
    await asyncio.wait_for(parent.wait(), 60)
    await until(lambda: not is_alive(server_pid), "the server is gone")

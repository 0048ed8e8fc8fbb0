"""The live fleet at a terminal is what the service says."""

import asyncio
import json
import sys
import time
from pathlib import Path

import pytest

from shared.instants import MINUTE, SECOND, format_instant
from tests.integration.live.test_facts import sample
from tests.support.lakehouse.hub import Block, Hub
from tests.support.live.live_service import serving
from tests.support.pseudo_terminal import shown_at_terminal
from tests.support.topology.aggregator_command import muster, ran
from tests.support.waiting import until

AGGREGATOR = [sys.executable, "-c", "from aggregator.cli import main; main()"]


async def test_a_redirect_gets_the_token_nowhere_else(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}")
        writer.close()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(f"HTTP/1.1 302 Found\r\nLocation: {other}/\r\nConnection: close\r\n\r\n".encode())
        writer.close()

    def url_of(server: asyncio.Server) -> str:
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["127.0.0.1:4222"]\n[lakehouse]\npath = "tables"\n')
    async with await asyncio.start_server(elsewhere, "127.0.0.1", 0) as there:
        other = url_of(there)
        async with await asyncio.start_server(redirect, "127.0.0.1", 0) as here:
            arguments = "top", "--config", str(config), "--url", url_of(here), "--once"
            answer = await muster(*arguments, environment={"MUSTER_TOKEN": "secret"})
    assert answer.returncode == 1
    assert answer.stderr.endswith(f": not the service itself: it redirects to {other}/\n")
    assert len(asked) == 1
    assert b"Authorization: Bearer secret" in asked[0]


@pytest.mark.parametrize(
    ("url", "token", "said"),
    [
        ("http://[::1", "", "http://[::1 is not the address of a service: write http://... or https://..."),
        (
            "http://127.0.0.1:port",
            "",
            "http://127.0.0.1:port is not the address of a service: write http://... or https://...",
        ),
        ("http://127.0.0.1:1", "two\nlines", "MUSTER_TOKEN holds no token, which is one line of ASCII"),
        ("http://127.0.0.1:1", "\u65e5\u672c", "MUSTER_TOKEN holds no token, which is one line of ASCII"),
    ],
)
async def test_an_address_or_a_token_of_no_use_is_said_in_one_line(
    tmp_path: Path, url: str, token: str, said: str
) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text('[hub]\nservers = ["127.0.0.1:4222"]\n[lakehouse]\npath = "tables"\n')
    answer = await muster("top", "--config", str(config), "--url", url, environment={"MUSTER_TOKEN": token})
    assert (answer.returncode, answer.stdout, answer.stderr) == (1, "", f"muster-aggregator: {said}\n")


async def test_top_shows_the_worst_first_and_sender_tells_a_story(tmp_path: Path) -> None:
    at = time.time_ns() // 1_000 - 20 * MINUTE
    dub1, ber1 = Block("eu-west", "dub1"), Block("eu-west", "ber1")
    hub = Hub(tmp_path / "hub")
    await hub.server.start()
    try:
        await asyncio.to_thread(hub.create_archive)
        await asyncio.to_thread(hub.create_report)
        said = [ber1.new("db1", at), dub1.new("web1", at), dub1.stale("web1", at)]
        last = await asyncio.to_thread(
            hub.publish, [*said, dub1.watermark(at, at + 19 * MINUTE), ber1.watermark(at, at)]
        )
        settings = 'unknown_after = "10m"\n[live.incidents]\nunknown_after = "1h"\n'
        with serving(tmp_path, hub.connection, settings) as service:
            await asyncio.to_thread(service.wait_through, last)
            asked = ["--config", str(tmp_path / "aggregator.toml"), "--url", f"http://127.0.0.1:{service.port}"]

            async def names_an_incident() -> bool:
                return "INCIDENT" in await ran("top", *asked, "--once")

            await until(names_an_incident, "it opens at one of the service's next looks")
            lines = (await ran("top", *asked, "--once")).splitlines()
            assert lines[0].startswith("+ 0 up   ! 1 stale   ? 1 unknown   ~ 0 maintenance")
            assert lines[1] == "1 of 2 sites is unknown, all others are current"
            (incident,) = json.loads(await ran("top", *asked, "--json"))["incidents"]
            since = format_instant(incident["started_at_us"] - incident["started_at_us"] % SECOND)
            assert lines[4].split() == ["INCIDENT", "SINCE", "NODES"]
            assert lines[5].split() == ["!", "eu-west.dub1:", "1", "of", "1", "stale", since, "web1"]
            assert [line.split()[:3] for line in lines[8:]] == [
                ["!", "eu-west.dub1", "stale"], ["?", "eu-west.ber1", "unknown"]
            ]  # fmt: skip
            assert "unknown (agent_behind)" in lines[9]
            story = await ran("sender", *asked, "web1")
            assert story.splitlines()[0] == "web1  at eu-west.dub1.nodes"
            assert [line.split()[1] for line in story.splitlines()[-2:]] == ["stale", "new"]
            # Of one that is stale it is known when it was heard last, of one that is up only since when.
            assert "; last seen " in story
            assert "; last seen " not in await ran("sender", *asked, "db1")
            shown = await asyncio.to_thread(shown_at_terminal, [*AGGREGATOR, "sender", *asked, "web1"])
            assert max(map(len, shown.splitlines())) <= 80
            (told,) = json.loads(await ran("sender", *asked, "web1", "--json"))
            assert [each["kind"] for each in told["advisories"]] == ["stale", "new"]
            await asyncio.to_thread(hub.publish, [sample(dub1, "web1", 1, b'{"os": "Debian"}')])
            assert "(interval, 16 bytes): --json has it" in await ran("sender", *asked, "web1")
            (told,) = json.loads(await ran("sender", *asked, "web1", "--json"))
            assert told["facts"]["text"] == '{"os": "Debian"}'
            nobody = await muster("sender", *asked, "web2")
            assert (nobody.returncode, nobody.stderr) == (1, "muster-aggregator: nobody has heard of a sender 'web2'\n")
        gone = await muster("top", *asked, "--once")
        assert gone.returncode == 1
        assert "is muster-aggregator serve running?" in gone.stderr
    finally:
        await hub.server.stop()


async def test_a_certificate_that_is_not_there_is_told_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:4222"]\n[lakehouse]\npath = "lake"\n'
        '[live]\nlisten = "127.0.0.1:8480"\ntls_cert = "none.pem"\ntls_key = "none.key"\n'
    )
    answer = await muster("top", "--config", str(config), "--once")
    assert answer.returncode == 1
    assert answer.stderr == f"muster-aggregator: tls_cert {tmp_path / 'none.pem'}: no such file or directory\n"

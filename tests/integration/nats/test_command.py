"""What we lay out is read by NATS's own command, where it is on PATH: its reports name every copy, without an error."""

import asyncio
import json
import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.support.topology.aggregator_command import ran
from tests.support.topology.regions import client_of, federation, holds
from tests.support.topology.rendered import rendered_servers
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(shutil.which("nats") is None, reason="NATS's command-line client (nats) is not on PATH")

ORDERS = """
[[stream]]
name = "ORDERS"
subjects = ["ORDERS.*"]
[[stream]]
name = "ALL"
[[stream.source]]
name = "ORDERS"
filter_subject = "ORDERS.new"
"""


async def nats(directory: Path, *arguments: str) -> str:
    """Run it, with settings of its own, and give what it says."""
    command = ["nats", "--timeout", "20s", *arguments]
    environment = os.environ | {"XDG_CONFIG_HOME": str(directory / "config"), "HOME": str(directory)}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


async def test_its_reports_show_what_was_applied(tmp_path: Path) -> None:
    async with federation(tmp_path, ("us-east",), ORDERS) as servers:
        await ran("apply", "--config", servers.topology_path)
        async with await client_of(servers.hub) as hub, await client_of(servers.regions["us-east"]) as agent:
            await hub.jetstream().publish("ORDERS.new", b"")
            await agent.jetstream().publish("fleet.us-east.dub1.nodes.watermark", b"{}")
            for name in ("ALL", "ARCHIVE", "REPORT"):
                await until(partial(holds, hub, name, 1), f"{name} has it")
        at_hub = partial(nats, tmp_path, "--server", servers.hub.url)
        shown = await at_hub("stream", "report")
        for line in (("ALL", "Source", "ORDERS"), ("ARCHIVE", "Source", "FLEET"), ("REPORT", "Mirror", "ARCHIVE")):
            assert any(all(word in row for word in line) for row in shown.splitlines()), shown
        assert "$JS.us-east.API" in shown
        known = json.loads(await at_hub("stream", "info", "ALL", "--json"))
        # Of a source's consumer 0.3.0 knows nothing: it leaves it out here, and cannot read it by itself.
        assert known["config"]["sources"][0]["name"] == "ORDERS"
        assert "FLEET" in await at_hub("--js-domain", "us-east", "stream", "report")


async def test_contexts_of_rendered_users_reach_what_is_theirs(tmp_path: Path) -> None:
    with rendered_servers(tmp_path) as rendered:
        keys = tmp_path / "nats" / "keys"
        for server, key, inbox in (
            ("hub", "aggregator", "_INBOX"),
            ("eu-west", "dub1-agent", "_INBOX_dub1"),
        ):
            options = ("--nkey", str(keys / f"{key}.nk"), "--tlsca", str(keys / "ca.pem"), "--tlsfirst")
            url = f"nats://127.0.0.1:{rendered.ports[server]}"
            await nats(tmp_path, "context", "save", key, "--server", url, *options, "--inbox-prefix", inbox)
        shown = await nats(tmp_path, "--context", "aggregator", "stream", "report")
        assert "ARCHIVE" in shown
        below = ("--context", "aggregator", "--inbox-prefix", "_INBOX.eu-west", "--js-domain", "eu-west")
        assert "MUSTER_POLICY" in await nats(tmp_path, *below, "stream", "report")
        stored = await nats(tmp_path, "--context", "dub1-agent", "request", "fleet.eu-west.dub1.nodes.watermark", "{}")
        assert '"stream":"FLEET"' in stored

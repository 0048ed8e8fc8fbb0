"""The manual's first site works as it is written: its files, keys, certificates and commands, on real servers."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent.agent_process import COMMAND as AGENT
from tests.support.agent.agent_process import AgentProcess
from tests.support.documents.documents import examples
from tests.support.nats.free_ports import free_ports
from tests.support.topology.rendered import SERVERS, lay_out, muster, running_servers
from tests.support.waiting import until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-site.md"
HOSTS = {"hub.example": "hub", "nats.eu-west.example": "eu-west", "dub1.example": "dub1"}
SIMULATE = re.compile(r"^muster-agent (simulate --connection .*)$", re.MULTILINE)
DEADLINE = 180.0


class FirstSite:
    """What the page has set up: the hub's directory, and the agent's, with its nodes' key."""

    def __init__(self, hub: Path, site: Path) -> None:
        self.hub = hub
        self.site = site

    def agent(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run one of the agent's commands."""
        command = [AGENT, *arguments, "--config", str(self.site / "agent.toml")]
        return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=False)

    def senders(self) -> list[dict[str, Any]]:
        """Say whom the agent knows."""
        answer = self.agent("senders", "--json")
        return list(json.loads(answer.stdout)["senders"]) if answer.returncode == 0 else []


@asynccontextmanager
async def first_site(directory: Path) -> AsyncIterator[FirstSite]:
    """Do what the page says, on ports of this machine, and with directories of this test."""
    hub, site = directory / "hub", directory / "site"
    hub.mkdir()
    site.mkdir()
    leaf, *numbers = free_ports(4)
    ports = dict(zip(HOSTS.values(), numbers, strict=True))
    topology, agent, nodes, aggregator = (here(text, ports) for text in examples(PAGE, "toml"))
    render = f'listen = "127.0.0.1"\nstore = "{hub}/store"\nleaf_port = {leaf}\n'
    changed, count = re.subn(r"^files = .*\n", render, topology, flags=re.MULTILINE)
    assert count == 1, "servers find their files where they are written"
    (hub / "topology.toml").write_text(changed)
    (hub / "aggregator.toml").write_text(aggregator)
    (site / "agent.toml").write_text(agent + '\n[store]\npath = "agent.db"\n\n[monitor]\nlisten = ""\n')
    (site / "nodes.toml").write_text(nodes)
    (register,) = (here(text, ports) for text in examples(PAGE, "python"))
    (site / "register.py").write_text(register)
    rendered = muster(hub, "render", "--make-keys", "--make-certificates")
    assert rendered.returncode == 0, rendered.stderr
    written = {str(path.relative_to(hub / "nats")) for path in (hub / "nats").rglob("*") if path.is_file()}
    assert set(rendered.stdout.splitlines()[: len(written)]) == written
    keys = hub / "nats" / "keys"
    for name in ("reader.nk", "ca.pem"):
        shutil.copy(keys / name, hub)
    for source, target in (("dub1-agent.nk", "agent.nk"), ("dub1-nodes.nk", "dub1-nodes.nk"), ("ca.pem", "ca.pem")):
        shutil.copy(keys / source, site / target)
    with running_servers(hub, SERVERS, [("127.0.0.1", port) for port in (*numbers, leaf)]):
        lay_out(hub)
        process = AgentProcess(site / "agent.toml")
        process.start()
        try:
            yield FirstSite(hub, site)
        finally:
            process.end()


def here(text: str, ports: dict[str, int]) -> str:
    """Put servers of this machine in the place of the page's."""
    for host, server in HOSTS.items():
        text = text.replace(f"//{host}:4222", f"//127.0.0.1:{ports[server]}")
    return text


def files_named(page: str) -> set[str]:
    """Give the keys and certificates that the page speaks of."""
    return set(re.findall(r"`([a-z0-9-]+\.(?:nk|pem|conf))`", page))


async def test_the_first_site_works_as_it_is_written(tmp_path: Path) -> None:
    async with first_site(tmp_path) as first:
        written = {path.name for path in (first.hub / "nats").rglob("*") if path.is_file()}
        assert files_named(PAGE.read_text()) - {"agent.nk"} == written
        page = PAGE.read_text().splitlines()
        await until(lambda: first.agent("doctor").stdout.splitlines()[-1] in page, "all is well as promised", DEADLINE)
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "register.py"], cwd=first.site, timeout=DEADLINE
        )
        assert done.returncode == 0
        await until(lambda: bool(first.senders()), "the agent knows the node", DEADLINE)
        assert [(each["sender_id"], each["state"]) for each in first.senders()] == [("web1.example.net", "heard")]
        simulate = [AGENT, *shlex.split(SIMULATE.search(PAGE.read_text())[1])]  # type: ignore[index]
        done = await asyncio.to_thread(subprocess.run, simulate, cwd=first.site, capture_output=True, timeout=DEADLINE)
        assert done.returncode == 0, done.stderr
        await until(lambda: len(first.senders()) == 11, "the agent knows the simulated nodes", DEADLINE)

        def all_is_well() -> bool:
            found = first.agent("doctor")
            words = r"0 failed, 0 warnings, \d+ passed: all well"
            return found.returncode == 0 and bool(re.fullmatch(words, found.stdout.splitlines()[-1]))

        await until(all_is_well, "all is well", DEADLINE)
        await until(lambda: muster(first.hub, "check").returncode == 0, "all is well at the hub", DEADLINE)
        assert muster(first.hub, "check-config").returncode == 0


@pytest.mark.parametrize("line", ["files = ", "handshake_first = true", "nkey_seed_file = "])
def test_the_page_shows_keys_and_encryption_in_every_file(line: str) -> None:
    wanted = 1 if line == "files = " else 4
    assert sum(line in block for block in examples(PAGE, "toml")) == wanted

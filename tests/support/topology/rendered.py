"""Run a hub, a region and a site on the very configurations that ``muster-aggregator render`` writes."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from shared.embedded.server import dies_with, find_command
from shared.nats.client import EdgeClient
from shared.nats.connection import LinkEvent, LinkState, connect
from shared.nats.jetstream_api import request_json
from shared.nats.settings import AuthSettings, ConnectionSettings, TlsSettings
from shared.settings import FilePath
from tests.support.agent.agent_process import AgentProcess
from tests.support.nats.free_ports import free_ports
from tests.support.waiting import until

COMMAND = str(Path(sys.executable).with_name("muster-aggregator"))
START_DEADLINE = 180.0
CONNECT_DEADLINE = 60.0
REQUEST_DEADLINE = 20.0
DENIAL_DEADLINE = 90.0
SERVERS = ("hub", "eu-west", "dub1")

TOPOLOGY = """
[hub]
servers = ["nats://127.0.0.1:{hub}"]
domain = "hub"
auth = {{ nkey_seed_file = "nats/keys/aggregator.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[render]
listen = "127.0.0.1"
store = "{directory}/store"
max_connections = 60
max_store = "{max_store}"
leaf_port = {leaf}

[policy]

[[region]]
name = "eu-west"
servers = ["nats://127.0.0.1:{region}"]

[[site]]
name = "dub1"
region = "eu-west"
members = ["dub1-a", "dub1-b"]
[site.server]
servers = ["nats://127.0.0.1:{site}"]
auth = {{ nkey_seed_file = "nats/keys/aggregator.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[[site]]
name = "lon1"
region = "eu-west"
"""


AGENT = """
site = "dub1"
region = "eu-west"
name = "{name}"

[upstream]
servers = ["{region}"]
id_key_file = "id.key"
auth = {{ nkey_seed_file = "nats/keys/dub1-agent.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[pair]
members = ["dub1-a", "dub1-b"]

[store]
path = "{name}.db"

[watermark]
interval = "300ms"

[monitor]
listen = ""

[[stream]]
name = "nodes"

[stream.source]
servers = ["nats://127.0.0.1:{site}"]
stream = "REGISTRATION"
settle = "200ms"
auth = {{ nkey_seed_file = "nats/keys/dub1-agent.nk" }}
tls = {{ ca = "nats/keys/ca.pem", handshake_first = true }}

[stream.sender]
json_path = "sender"
"""


class Visitor:
    """A connection with somebody's key; ``denials`` is what the server said no to."""

    def __init__(self, client: EdgeClient, denials: list[str]) -> None:
        self.client = client
        self.denials = denials

    async def api(self, subject: str, body: Any = None) -> dict[str, Any]:
        """Ask ``$JS.API.<subject>``; raise ApiError, RequestFailed."""
        return await request_json(self.client, f"$JS.API.{subject}", body, dict[str, Any], deadline=REQUEST_DEADLINE)

    async def of_domain(self, domain: str, subject: str) -> dict[str, Any]:
        """Ask ``$JS.<domain>.API.<subject>``; raise ApiError, RequestFailed."""
        asked = f"$JS.{domain}.API.{subject}"
        return await request_json(self.client, asked, None, dict[str, Any], deadline=REQUEST_DEADLINE)

    async def store(self, subject: str, body: bytes, **headers: str) -> None:
        """Publish, and wait until it is stored; raise what nats-py raises where it is not."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        await self.client.jetstream().publish(subject, body, headers=named or None, timeout=REQUEST_DEADLINE)

    async def is_denied(self, subject: str, what: str = "publish") -> None:
        """Publish on a subject, or subscribe to it, and see to it that the server says no."""
        if what == "publish":
            await self.client.publish(subject, b"{}")
        else:
            await self.client.subscribe(subject)
        await self.client.flush()
        # A server's own domain is mapped away before it looks.
        quoted = {f'"{each.lower()}"' for each in (subject, subject.replace("$JS.eu-west.API", "$JS.API"))}
        await until(
            lambda: any(each in denial.lower() for denial in self.denials for each in quoted),
            f"{subject} is denied",
            DENIAL_DEADLINE,
        )


class Rendered:
    """The three servers, and whoever visits them."""

    def __init__(self, directory: Path, ports: dict[str, int]) -> None:
        self.directory = directory
        self.ports = ports
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def reload(self, server: str) -> None:
        """Let a server read its configuration again."""
        self.running[server].send_signal(signal.SIGHUP)

    def begin_anew(self, server: str, backup: Path | None = None) -> None:
        """Lose a server with everything that it has stored, and start another on the same configuration, or a backup.

        Not in a thread of its own: the server ends with the thread that has started it.
        """
        store = self.directory / "store" / server
        self.running[server].kill()
        self.running[server].wait()
        shutil.rmtree(store)
        if backup is not None:
            shutil.copytree(backup, store)
        self.running[server] = _start(self.directory, server)
        _until_listening(("127.0.0.1", self.ports[server]))

    def config(self, server: str) -> Path:
        """Give a server's configuration."""
        return self.directory / "nats" / server / "nats-server.conf"

    def settings(self, server: str, key: str) -> ConnectionSettings:
        """Say how to reach a server with a key."""
        keys = self.directory / "nats" / "keys"
        return ConnectionSettings(
            servers=(f"nats://127.0.0.1:{self.ports[server]}",),
            auth=AuthSettings(nkey_seed_file=FilePath(keys / f"{key}.nk")),
            tls=TlsSettings(ca=FilePath(keys / "ca.pem"), handshake_first=True),
        )

    @asynccontextmanager
    async def visited(
        self, server: str, key: str, inbox: str = "_INBOX", deadline: float = CONNECT_DEADLINE
    ) -> AsyncIterator[Visitor]:
        """Connect to a server with a key; raise ConnectFailed."""
        denials: list[str] = []

        def note(state: LinkState) -> None:
            if state.event is LinkEvent.DENIED:
                denials.append(state.reason)

        settings = self.settings(server, key)
        client = await connect(settings, name="test", deadline=deadline, inbox_prefix=inbox, on_state=note)
        try:
            yield Visitor(client, denials)
        finally:
            await client.close()

    async def archived(self) -> int:
        """Count what the hub's ARCHIVE holds."""
        async with self.visited("hub", "aggregator") as hub:
            return int((await hub.api("STREAM.INFO.ARCHIVE"))["state"]["messages"])


def muster(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run the command beside a topology.toml."""
    return subprocess.run(
        [COMMAND, *arguments], cwd=directory, capture_output=True, text=True, check=False, timeout=180
    )


@contextmanager
def running_servers(
    directory: Path,
    names: Sequence[str],
    addresses: Iterable[tuple[str, int]],
    commands: Mapping[str, str] = MappingProxyType({}),
) -> "Iterator[dict[str, subprocess.Popen[bytes]]]":
    """Start servers on the configurations that are there, and wait until all listen; end them."""
    running = {name: _start(directory, name, commands.get(name, "")) for name in names}
    try:
        for address in addresses:
            _until_listening(address)
        yield running
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@contextmanager
def rendered_servers(
    directory: Path,
    further: str = "",
    away: Sequence[str] = (),
    max_store: str = "0",
    commands: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[Rendered]:
    """Render, with ``further`` tables, start the servers, lay out the streams; end the servers.

    ``away``: regions of ``further``, whose servers are not started. ``commands``: of servers of other versions.
    """
    ports = dict(zip(("leaf", "hub", "region", "site"), free_ports(4), strict=True))
    (directory / "topology.toml").write_text(
        TOPOLOGY.format(directory=directory, max_store=max_store, **ports) + further
    )
    done = muster(directory, "render", "--make-keys", "--make-certificates")
    assert done.returncode == 0, done.stderr
    named = {"hub": ports["hub"], "eu-west": ports["region"], "dub1": ports["site"], "leaf": ports["leaf"]}
    rendered = Rendered(directory, named)
    addresses = [("127.0.0.1", rendered.ports[server]) for server in SERVERS]
    with running_servers(directory, SERVERS, addresses, commands) as running:
        rendered.running = running
        lay_out(directory, away)
        yield rendered


def _start(directory: Path, server: str, command: str = "") -> "subprocess.Popen[bytes]":
    with (directory / f"{server}.log").open("ab") as log:
        return subprocess.Popen(
            [command or find_command(), "-c", str(directory / "nats" / server / "nats-server.conf")],
            stdout=log,
            stderr=log,
            preexec_fn=dies_with(os.getpid()),  # noqa: PLW1509 - one system call, nothing that could deadlock
        )


def _until_listening(address: tuple[str, int]) -> None:
    ends_at = time.monotonic() + START_DEADLINE
    while True:
        try:
            socket.create_connection(address, timeout=1).close()
        except OSError:
            assert time.monotonic() < ends_at, f"nobody listens on {address}"
            time.sleep(0.02)
        else:
            return


def assert_accepted(path: Path) -> None:
    """See to it that nats-server takes a configuration."""
    done = subprocess.run([find_command(), "-t", "-c", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def lay_out(directory: Path, away: Sequence[str] = ()) -> None:
    """Apply once the hub reaches the regions, but those that are ``away``."""
    ends_at = time.monotonic() + START_DEADLINE
    while set((planned := json.loads(muster(directory, "plan", "--json").stdout))["problems"]) != set(away):
        assert time.monotonic() < ends_at, planned["problems"]
    done = muster(directory, "apply")
    assert done.returncode == int(bool(away)), done.stdout + done.stderr


async def until_archived(rendered: Rendered, count: int) -> None:
    """Wait until the hub's ARCHIVE holds so many messages."""

    async def there() -> bool:
        return await rendered.archived() >= count

    await until(there, f"ARCHIVE holds {count}")


def encoded(body: object) -> bytes:
    """Write JSON."""
    return msgspec.json.encode(body)


def member(rendered: Rendered, name: str, region: str = "") -> AgentProcess:
    """Write the settings of dub1's agent, one of a pair, and give it; ``region`` is a URL, "" the server's."""
    config = rendered.directory / f"{name}.toml"
    config.write_text(
        AGENT.format(
            name=name, region=region or f"nats://127.0.0.1:{rendered.ports['eu-west']}", site=rendered.ports["dub1"]
        )
    )
    return AgentProcess(config)

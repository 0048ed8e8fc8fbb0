"""A host on which packages are installed, with a site's server and nodes on it; and how packages are built."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.support.machine import Machine, machine

ROOT = Path(__file__).resolve().parents[2]
BIN = ROOT / ".venv" / "bin"
VERSION = version("muster")
NEXT = f"{VERSION}.1"

SETTINGS = """
site = "dub1"
region = "eu-west"
upstream = { servers = ["nats://127.0.0.1:4222"] }
watermark = { interval = "1s" }

[[stream]]
name = "nodes"
source = { servers = ["nats://127.0.0.1:4222"], stream = "REGISTRATION", settle = "1s" }
sender = { json_path = "sender" }
policy = { sample_interval = "1m", stale_after = "25s", retire_after = "5m", blind_after = "3s" }
"""
SECOND_OF_ONE_HOST = """
[store]
path = "/var/lib/muster-agent/dub2.db"

[monitor]
listen = "127.0.0.1:8788"

[[stream]]"""
NATS_UNIT = """
[Service]
ExecStart=/usr/local/bin/nats-server -c /etc/nats.conf

[Install]
WantedBy=multi-user.target
"""
NATS_SETTINGS = (
    'listen: "127.0.0.1:4222"\njetstream { store_dir: "/var/lib/nats", domain: hub, sync_interval: always }\n'
)


def start_second(place: Machine) -> None:
    """Start a second agent of the host, as an instance of the unit's template that starts at boot, too."""
    second = SETTINGS.replace("dub1", "dub2").replace("[[stream]]", SECOND_OF_ONE_HOST)
    (place.root / "etc/muster-agent/dub2.toml").write_text(second)
    place.run("systemctl enable --now muster-agent@dub2")
    place.wait_for("muster-agent status --check --config /etc/muster-agent/dub2.toml")


def assert_second_is_gone(place: Machine) -> None:
    """Fail where the second agent runs without its code, or would be started at boot."""
    assert "inactive" in place.run("systemctl is-active muster-agent@dub2", code=None)
    assert place.run("find /etc/systemd/system -name 'muster-agent@*'") == ""


def dist(factory: pytest.TempPathFactory) -> Path:
    """Name where a module's packages are built: MUSTER_DIST, where what is tested is to be kept."""
    kept = os.environ.get("MUSTER_DIST")
    return Path(kept) if kept else factory.mktemp("dist")


def built(command: str, directory: Path, **environment: str) -> Path:
    """Build packages into ``directory`` by one of packaging's commands; give the (last) file."""
    script, *arguments = command.split()
    ended = subprocess.run(
        [ROOT / "packaging" / script, *arguments, directory],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return Path(ended.stdout.split()[-1])


def said_by(*command: str | Path) -> str:
    """Run a command that must succeed; give its output."""
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


PYTHONS = [
    path
    for version in ("3.12", "3.14")
    for path in (
        Path(f"/usr/bin/python{version}"),
        *Path.home().glob(f".pyenv/versions/{version}*/bin/python{version}"),
    )
    if path.exists()
]
needs_python = pytest.mark.skipif(not PYTHONS, reason="needs a Python 3.12 or 3.14 to put on the machine")

NODES = """
import asyncio, itertools, sys
from nats import connect

async def main():
    client = await connect("nats://127.0.0.1:4222")
    for number in itertools.count():
        for node in range(20):
            await client.publish(f"registration.n{node}", b'{"sender": "n%d"}' % node)
        await asyncio.sleep(0.5)

asyncio.run(main())
"""
ADVISORIES = """
import asyncio, json
from nats import connect

async def main():
    client = await connect("nats://127.0.0.1:4222")
    stream = client.jetstream(domain="hub", timeout=60)
    count = (await stream.stream_info("FLEET")).state.messages
    advisories = []
    for sequence in range(1, count + 1):
        message = await stream.get_msg("FLEET", seq=sequence)
        if ".advisory." in message.subject:
            body = json.loads(message.data)
            advisories.append([body["value"], body["kind"], body["ordinal"]])
    print(json.dumps(sorted(advisories)))

asyncio.run(main())
"""


class Host:
    """A machine with a nats-server that plays site, region and hub, and twenty nodes that register twice a second."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._nodes: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Switch it on, lay out the streams, let the nodes register."""
        self.machine.switch_on()
        self.machine.wait_for("echo > /dev/tcp/127.0.0.1/4222")
        topology = ROOT / "docs" / "by-hand" / "topology.toml"
        said_by(*self.machine.beside(BIN / "muster-aggregator", "apply", "--config", topology))
        self.let_nodes_register()

    def let_nodes_register(self) -> None:
        """Let twenty nodes register until the machine goes."""
        self._nodes = subprocess.Popen(self.machine.beside(BIN / "python", "-c", NODES))

    def end(self) -> None:
        """End the nodes."""
        if self._nodes is not None:
            self._nodes.kill()
            self._nodes.wait()

    def install(self, package: Path) -> None:
        """Install it, or up- or downgrade; rpm's database knows neither Python nor systemd here, as dnf's tests do."""
        shutil.copy(package, self.machine.root / "opt")
        tool = "dpkg --install" if package.suffix == ".deb" else "rpm --nodeps --upgrade --oldpackage"
        self.machine.run(f"{tool} /opt/{package.name}")

    def advisories(self) -> list[tuple[str, str, int]]:
        """Read what the region holds: sender, kind, ordinal."""
        text = said_by(*self.machine.beside(BIN / "python", "-c", ADVISORIES))
        return [(value, kind, ordinal) for value, kind, ordinal in json.loads(text)]


ALL_ARE_NEW = sorted(f"n{number}" for number in range(20))


def shown_python(python: Path) -> dict[Path, str]:
    """Say which directory of this host a machine must see to have this Python."""
    return {} if python.parent == Path("/usr/bin") else {python.parents[1]: "/opt/python"}


def put_python(place: Machine, python: Path) -> None:
    """Put what a machine sees as /opt/python where packages look for it; `ldconfig` on it finds its library."""
    if python.parent != Path("/usr/bin"):
        (place.root / "usr/bin" / python.name).symlink_to(f"/opt/python/bin/{python.name}")
        (place.root / "etc/ld.so.conf.d/python.conf").write_text("/opt/python/lib\n")


@contextmanager
def running_host(directory: Path, python: Path, shown: Mapping[Path, str] = MappingProxyType({})) -> Iterator[Host]:
    """Give a host that is on, has this Python, and no agent; it sees what else is ``shown``."""
    with machine(directory, {**shown_python(python), **shown}) as place:
        put_python(place, python)
        shutil.copy(BIN / "nats-server", place.root / "usr/local/bin/nats-server")
        (place.root / "etc/nats.conf").write_text(NATS_SETTINGS)
        unit = place.root / "etc/systemd/system/nats.service"
        unit.write_text(NATS_UNIT)
        wants = place.root / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / "nats.service").symlink_to("/etc/systemd/system/nats.service")
        host = Host(place)
        host.begin()
        place.run("ldconfig")
        try:
            yield host
        finally:
            host.end()


def started(host: Host, package: Path, settings: str = SETTINGS) -> Machine:
    """Install the agent, write its settings, start it, and wait until the region knows all nodes."""
    host.install(package)
    (host.machine.root / "etc/muster-agent/agent.toml").write_text(settings)
    host.machine.run("systemctl enable --now muster-agent")
    host.machine.wait_for("muster-agent status --check")
    ends_at = time.monotonic() + 180
    # An agent is well before the first node has registered.
    while (new := [value for value, kind, _ in host.advisories() if kind == "new"]) != ALL_ARE_NEW:
        assert time.monotonic() < ends_at, f"the region knows {new}"
    return host.machine

"""The packages, as whoever installs them meets them: on a machine that has nothing of Muster but the package."""

import json
import random
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from aggregator.config import LiveSettings
from aggregator.topology.desired.settings import RenderSettings
from edge_agent.config.agent import MonitorSettings
from tests.support.distributions import DISTRIBUTIONS, EL7, needs_dnf, resolves
from tests.support.faults import witness
from tests.support.machine import needs_machines
from tests.support.package_host import (
    ALL_ARE_NEW,
    BIN,
    NEXT,
    PYTHONS,
    ROOT,
    SETTINGS,
    VERSION,
    Host,
    assert_second_is_gone,
    built,
    dist,
    needs_python,
    running_host,
    said_by,
    shown_python,
    start_second,
    started,
)

needs_rpm = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("rpmbuild", "rpmlint", "strip")),
    reason="needs rpmbuild, rpmlint and strip (apt-get install rpm rpmlint binutils)",
)
pytestmark = [needs_rpm]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name where the files of the agent's package are laid out, once for all that is built."""
    return str(tmp_path_factory.mktemp("files") / "tree")


@pytest.fixture(scope="module")
def rpm(tmp_path_factory: pytest.TempPathFactory, tree: str) -> Path:
    """Give the RPM of the agent."""
    return built("build-rpm.sh agent", dist(tmp_path_factory), TREE=tree)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """Give a host that is on and has no agent."""
    with running_host(tmp_path, PYTHONS[0]) as host:
        yield host


def test_the_same_commit_gives_the_same_bytes(rpm: Path, tmp_path: Path) -> None:
    assert built("build-rpm.sh agent", tmp_path).read_bytes() == rpm.read_bytes()


def test_rpmlint_finds_nothing_that_is_not_explained(rpm: Path) -> None:
    report = said_by("rpmlint", "-c", ROOT / "rpm" / "rpmlint.toml", rpm)
    assert "0 errors, 0 warnings" in report, report


def test_it_is_small_and_its_digests_are_those_that_fips_allows(rpm: Path) -> None:
    assert rpm.stat().st_size < 4 << 20
    digests = said_by("rpm", "-Kv", rpm)
    assert "Header SHA256 digest: OK" in digests
    assert "Payload SHA256 digest: OK" in digests


def test_the_bill_of_materials_lists_each_bundled_library_with_its_licence(rpm: Path, tmp_path: Path) -> None:
    archive = subprocess.run(["rpm2cpio", rpm], stdout=subprocess.PIPE, check=True).stdout
    subprocess.run(["cpio", "-idm", "--quiet"], input=archive, cwd=tmp_path, check=True)
    bill = json.loads((tmp_path / "usr/share/doc/muster-agent/sbom.cdx.json").read_text())
    site = tmp_path / "usr/lib/muster-agent/site"
    assert {each.name.split("-")[0].lower() for each in site.glob("*.dist-info")} - {"muster"} == {
        component["name"].replace("-", "_").lower() for component in bill["components"]
    }
    for each in site.glob("*.dist-info"):
        assert list((each / "licenses").rglob("LICENSE*")), each
    tag = said_by("rpm", "-qp", "--queryformat", "%{LICENSE}", rpm)
    licences = {
        part
        for component in bill["components"]
        for licence in component["licenses"]
        for part in licence["expression"].replace(" OR ", " AND ").split(" AND ")
    }
    assert licences <= set(tag.split(" AND "))


def test_firewalld_is_offered_the_ports_of_the_defaults() -> None:
    ports = {
        path.name: set(re.findall(r'protocol="tcp" port="(\d+)"', path.read_text()))
        for path in (ROOT / "packaging").glob("*/*.xml")
    }
    assert ports == {
        "muster-agent.xml": {MonitorSettings().listen.rpartition(":")[2]},
        "muster-aggregator.xml": {LiveSettings().listen.rpartition(":")[2]},
        "muster-nats.xml": {"4222", str(RenderSettings().leaf_port)},
    }


@needs_dnf
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_dnf_finds_what_it_needs_on(name: str, rpm: Path, tmp_path: Path) -> None:
    found, said = resolves([rpm], tmp_path, DISTRIBUTIONS[name])
    assert found, said


@needs_dnf
def test_el7_is_refused(rpm: Path, tmp_path: Path) -> None:
    found, said = resolves([rpm], tmp_path, EL7)
    assert not found
    assert "python(abi)" in said


@needs_machines
@needs_python
def test_an_installed_agent_runs_is_restarted_when_it_hangs_and_outlives_a_reboot(host: Host, rpm: Path) -> None:
    place = host.machine
    host.install(rpm)
    assert "disabled" in place.run("systemctl is-enabled muster-agent", code=1)
    assert "root muster-agent 640" in place.run("stat --format '%U %G %a' /etc/muster-agent/agent.toml")
    said = place.run("muster-agent check-config", code=1)
    assert said.startswith("muster-agent: /etc/muster-agent/agent.toml: the site '' is not usable")
    assert said.count("\n") == 1
    place.run("rpm --erase muster-agent")

    started(host, rpm)
    assert 'Status: "' in place.run("systemctl status muster-agent")
    exposure = place.run("systemd-analyze security --threshold=15 muster-agent.service")
    assert "Overall exposure" in exposure
    place.wait_for("runuser -u muster-agent -- muster-agent doctor")
    first = place.run("systemctl show --property MainPID --value muster-agent").strip()
    place.run(f"kill -STOP {first}")
    place.wait_for(
        f"test $(systemctl show --property MainPID --value muster-agent) -gt 0 -a "
        f"$(systemctl show --property MainPID --value muster-agent) -ne {first}"
    )
    place.wait_for("muster-agent status --check")

    start_second(place)
    place.run("systemd-analyze security --threshold=15 muster-agent@dub2.service")
    place.run("systemctl is-active muster-agent")
    place.run("systemctl disable --now muster-agent@dub2")

    host.end()
    place.switch_off()
    place.switch_on()
    host.let_nodes_register()
    place.wait_for("muster-agent status --check")
    assert {kind for _, kind, _ in host.advisories()} == {"new"}
    start_second(place)
    place.run("rpm --erase muster-agent")
    assert_second_is_gone(place)


# What Python's hashlib on EL does where the kernel is in FIPS mode: OpenSSL is asked for everything, and refuses these.
FIPS = """
def _refused(string=b"", *, usedforsecurity=True):
    raise ValueError("[digital envelope routines] unsupported")
blake2b = blake2s = _refused
_openssl_md5 = md5
def md5(string=b"", *, usedforsecurity=True):
    return _refused() if usedforsecurity else _openssl_md5(string, usedforsecurity=False)
"""

# Before anything is opened for writing.
HARDENED = """
[Unit]
DefaultDependencies=no
Before=sysinit.target systemd-journal-flush.service systemd-tmpfiles-setup.service

[Service]
Type=oneshot
ExecStart=/bin/sh -c "mount --bind /var /var && mount -o remount,bind,ro / && mount -o remount,noexec /tmp"
"""


@needs_machines
@needs_python
def test_it_needs_no_more_of_a_host_than_a_hardened_one_gives(rpm: Path, tmp_path: Path) -> None:
    """A root that nobody writes to, no program in /tmp, no HOME, no PATH, and hashes by the rules of FIPS mode."""
    python = PYTHONS[0]
    lib = said_by(python, "-ISc", "import hashlib; print(hashlib.__file__)").strip()
    under_policy = tmp_path / "hashlib.py"
    under_policy.write_text(Path(lib).read_text() + FIPS)
    there = lib.replace(str(python.parents[1]), "/opt/python") if shown_python(python) else lib
    with running_host(tmp_path, python, {under_policy: there}) as host:
        place = host.machine
        assert "unsupported" in place.run(f"/usr/bin/{python.name} -Ic 'import hashlib; hashlib.blake2b()'", code=1)
        started(host, rpm)
        host.end()
        place.switch_off()
        unit = place.root / "etc/systemd/system/hardened.service"
        unit.write_text(HARDENED)
        wants = place.root / "etc/systemd/system/sysinit.target.wants"
        wants.mkdir(exist_ok=True)
        (wants / unit.name).symlink_to(f"/etc/systemd/system/{unit.name}")
        place.switch_on()
        host.let_nodes_register()
        place.run("touch /etc/muster-agent/agent.toml", code=1)
        place.run("cp /usr/bin/true /tmp && /tmp/true", code=126)
        place.wait_for("env -i /usr/bin/muster-agent status --check")
        as_agent = "setpriv --reuid muster-agent --regid muster-agent --init-groups env -i"
        # The time that the machine was off counts as unproven at first.
        place.wait_for(f"{as_agent} /usr/bin/muster-agent doctor | grep '^0 failed, '")
        assert [value for value, kind, _ in host.advisories() if kind == "new"] == ALL_ARE_NEW, "as after any reboot"


# Some of the witness's senders fall silent for so long that they are said to be stale, and some are forgotten.
WATCHED = SETTINGS.replace(
    re.search("^policy = .*$", SETTINGS, re.MULTILINE)[0],  # type: ignore[index]
    'policy = { sample_interval = "2s", stale_after = "5s", retire_after = "13s", blind_after = "2s",'
    ' force_path = "urgent" }',
)


class Witness:
    """The fault schedule's senders and judge beside the agent of a host, from entry to ``verdict``."""

    def __init__(self, host: Host) -> None:
        self._host = host
        root = host.machine.root
        paths = (root / "etc/muster-agent/agent.toml", root / "var/lib/muster-agent/agent.db")
        command = host.machine.beside(
            BIN / "python", "-m", witness.__name__, *paths, "4222", str(random.getrandbits(32))
        )
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._process.kill()
        self._process.communicate()

    def verdict(self) -> tuple[bool, str]:
        """Let the senders fall silent, stop the agent once all is said; tell whether all is well, and in words."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        said = ""
        while "all is said" not in said and (line := self._process.stdout.readline()):
            said += line
        self._host.machine.run("systemctl stop muster-agent")
        rest, _ = self._process.communicate("\n")
        return self._process.returncode == 0, said + rest


@needs_machines
@needs_python
def test_an_upgrade_keeps_settings_rights_enabled_state_and_position(
    host: Host, rpm: Path, tree: str, tmp_path: Path
) -> None:
    newer = built("build-rpm.sh agent", tmp_path / "newer", VERSION=NEXT, TREE=tree)
    place = started(host, rpm, WATCHED)
    with Witness(host) as watching:
        place.wait_for("muster-agent senders --json | grep -q node-")
        before = place.run("systemctl show --property MainPID --value muster-agent")
        host.install(newer)
        place.wait_for("muster-agent status --check")
        assert place.run("systemctl show --property MainPID --value muster-agent") != before
        assert place.run("rpm --query muster-agent").startswith(f"muster-agent-{NEXT}-")
        assert place.run("systemctl is-enabled muster-agent").strip() == "enabled"
        assert "root muster-agent 640" in place.run("stat --format '%U %G %a' /etc/muster-agent/agent.toml")
        assert (place.root / "etc/muster-agent/agent.toml").read_text() == WATCHED
        place.run("ls /etc/muster-agent/*.rpmsave", code=2)

        host.install(rpm)
        assert f"{VERSION} (commit " in place.run("muster-agent --version")
        place.wait_for("muster-agent status --check")
        assert place.run("systemctl is-enabled muster-agent").strip() == "enabled"
        host.end()
        is_clean, said = watching.verdict()
        assert is_clean, said
    place.run("journalctl --unit muster-agent | grep Traceback", code=1)
    place.run("python3 -c 'import sqlite3; sqlite3.connect(\"/var/lib/muster-agent/agent.db\")"
              ".execute(\"PRAGMA user_version=999\")'")  # fmt: skip
    said = place.run("runuser -u muster-agent -- muster-agent run", code=1)
    assert "version 999, this agent reads" in said, "a downgrade across a change of the store is refused"
    assert (place.root / "var/lib/muster-agent/agent.db").exists()


@needs_machines
@needs_python
def test_erasing_leaves_settings_and_state_and_a_new_installation_goes_on(host: Host, rpm: Path) -> None:
    place = started(host, rpm)
    place.run("rpm --erase muster-agent")
    assert not (place.root / "usr/lib/muster-agent").exists()
    assert "inactive" in place.run("systemctl is-active muster-agent", code=None)
    assert (place.root / "etc/muster-agent/agent.toml.rpmsave").read_text() == SETTINGS
    assert (place.root / "var/lib/muster-agent/agent.db").exists()

    host.install(rpm)
    place.run("mv /etc/muster-agent/agent.toml.rpmsave /etc/muster-agent/agent.toml")
    place.run("systemctl enable --now muster-agent")
    place.wait_for("muster-agent status --check")
    advisories = host.advisories()
    assert sorted(ordinal for *_, ordinal in advisories) == list(range(1, 21)), "nothing lost, nothing twice"

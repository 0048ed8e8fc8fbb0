"""The agent's package for Debian and Ubuntu, installed on a machine that has nothing of Muster but the package."""

import shutil
from pathlib import Path

import pytest

from tests.support.machine import needs_machines
from tests.support.package_host import (
    ALL_ARE_NEW,
    NEXT,
    SETTINGS,
    assert_second_is_gone,
    built,
    dist,
    running_host,
    said_by,
    start_second,
    started,
)

PYTHON = next((path for path in (Path("/usr/bin/python3.11"), Path("/usr/bin/python3.13")) if path.exists()), None)

pytestmark = pytest.mark.skipif(
    any(shutil.which(tool) is None for tool in ("dpkg-deb", "strip")), reason="needs dpkg-deb and strip (binutils)"
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name where the files of the package are laid out, once for all that is built."""
    return str(tmp_path_factory.mktemp("files") / "tree")


@pytest.fixture(scope="module")
def deb(tmp_path_factory: pytest.TempPathFactory, tree: str) -> Path:
    """Give the package of the agent."""
    return built("build-deb.sh", dist(tmp_path_factory), TREE=tree)


def test_it_is_small_and_asks_for_what_its_distributions_have(deb: Path, tree: str, tmp_path: Path) -> None:
    assert deb.stat().st_size < 4 << 20
    depends = said_by("dpkg-deb", "--field", deb, "Depends")
    assert depends == "python3.11 | python3.12 | python3.13, libc6 (>= 2.28), passwd, systemd\n"
    assert built("build-deb.sh", tmp_path, TREE=tree).read_bytes() == deb.read_bytes(), "the same bytes again"
    for version in (311, 312, 313):
        assert list(Path(tree).rglob(f"*.cpython-{version}-x86_64-linux-gnu.so")), version


@needs_machines
@pytest.mark.skipif(PYTHON is None, reason="needs Debian's Python")
def test_it_runs_is_upgraded_and_goes_on_after_it_was_removed(deb: Path, tree: str, tmp_path: Path) -> None:
    assert PYTHON is not None
    newer = built("build-deb.sh", tmp_path / "newer", VERSION=NEXT, TREE=tree)
    with running_host(tmp_path, PYTHON) as host:
        place = started(host, deb)
        settings = place.root / "etc/muster-agent/agent.toml"
        rights = "stat --format '%U %G %a' /etc/muster-agent /etc/muster-agent/agent.toml"
        assert place.run(rights) == "root muster-agent 750\nroot muster-agent 640\n"
        place.run("systemd-analyze security --threshold=15 muster-agent.service")
        place.wait_for("runuser -u muster-agent -- muster-agent doctor")
        assert place.run("dpkg --verify muster-agent").split() == ["??5??????", "c", "/etc/muster-agent/agent.toml"]

        before = place.run("systemctl show --property MainPID --value muster-agent")
        host.install(newer)
        place.wait_for("muster-agent status --check")
        assert place.run("systemctl show --property MainPID --value muster-agent") != before
        assert place.run("systemctl is-enabled muster-agent").strip() == "enabled"
        assert place.run(rights) == "root muster-agent 750\nroot muster-agent 640\n"
        assert settings.read_text() == SETTINGS

        place.run("dpkg --remove muster-agent")
        assert not (place.root / "usr/lib/muster-agent").exists()
        assert settings.read_text() == SETTINGS
        host.install(deb)
        assert "disabled" in place.run("systemctl is-enabled muster-agent", code=1)
        place.run("systemctl enable --now muster-agent")
        place.wait_for("muster-agent status --check")
        advisories = host.advisories()
        assert [value for value, kind, _ in advisories if kind == "new"] == ALL_ARE_NEW
        assert sorted(ordinal for *_, ordinal in advisories) == list(range(1, 21)), "nothing lost, nothing twice"
        start_second(place)
        place.run("dpkg --purge muster-agent")
        assert_second_is_gone(place)
        assert not settings.exists()
        assert (place.root / "var/lib/muster-agent/agent.db").exists()

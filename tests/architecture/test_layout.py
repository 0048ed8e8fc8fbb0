"""What the repository promises about its own shape."""

import re
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGES = ("edge_agent", "aggregator", "shared", "tests")
LOCKS = sorted((ROOT / "packaging").glob("requirements-*.txt"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
LONGEST_MODULE = 600


def wanted_by(extras: set[str]) -> list[Requirement]:
    """Give what pyproject.toml asks for: the base, and the extras with those that they name."""
    wanted: list[Requirement] = [Requirement(text) for text in PROJECT["project"]["dependencies"]]
    for extra in extras:
        for text in PROJECT["project"]["optional-dependencies"][extra]:
            requirement = Requirement(text)
            wanted += wanted_by(requirement.extras) if requirement.name == "muster" else [requirement]
    return wanted


def locked_versions(lock: Path) -> dict[str, set[str]]:
    versions: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE):
        versions.setdefault(name, set()).add(version)
    return versions


def test_no_module_is_longer_than_600_lines() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert {path: length for path, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_every_request_waits_for_its_link() -> None:
    """On a dead link nats-py's own keeps it, and sends it at the reconnect, when nobody waits for it any more."""
    asking = [
        str(path.relative_to(ROOT))
        for package in ("edge_agent", "aggregator", "shared")
        for path in (ROOT / package).rglob("*.py")
        if "client.request(" in path.read_text()
    ]
    assert asking == ["shared/nats/jetstream_api.py"]


@pytest.mark.parametrize("folder", ["packaging", "rpm"])
def test_folder_does_not_hide_the_package_of_its_name(folder: str) -> None:
    assert not (ROOT / folder / "__init__.py").exists()


def test_packaging_is_the_library() -> None:
    specification = find_spec("packaging")
    assert specification is not None
    assert "site-packages" in str(specification.origin)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_lock_pins_every_line_by_hash_and_names_no_address(lock: Path) -> None:
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^-", text, re.MULTILINE), "an option could name an address"
    entries = re.split(
        r"^(?=\S)", "\n".join(line for line in text.splitlines() if not line.startswith("#")), flags=re.MULTILINE
    )
    for entry in filter(str.strip, entries):
        assert re.match(r"[a-z0-9-]+==\S+( ; .*?)?( \\\n    --hash=sha256:[0-9a-f]{64})+$", entry.strip()), entry


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("agent", set()), ("aggregator", {"lakehouse"}), ("dev", {"dev"})],
    ids=["agent", "aggregator", "dev"],
)
def test_lock_holds_what_the_project_asks_for(lock: str, extras: set[str]) -> None:
    locked = locked_versions(ROOT / "packaging" / f"requirements-{lock}.txt")
    for requirement in wanted_by(extras):
        versions = locked.get(requirement.name.lower(), set())
        assert versions, f"{requirement} is in no lock: make lock"
        assert all(version in requirement.specifier for version in versions), (
            f"{requirement}, locked {versions}: make lock"
        )


def test_locks_agree_on_every_version() -> None:
    dev = locked_versions(ROOT / "packaging" / "requirements-dev.txt")
    for lock in ("agent", "aggregator"):
        locked = locked_versions(ROOT / "packaging" / f"requirements-{lock}.txt")
        assert locked.items() <= dev.items()

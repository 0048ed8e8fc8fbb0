"""The aggregator's packages, and the page that sets up a hub with them, done line by line on a fresh machine.

They take minutes to build and 1.3 GB to install, so this runs where MUSTER_PACKAGES is set, as `make rpm-test` sets it.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from aggregator.lakehouse.spark.caches import default_cache
from tests.support.distributions import DISTRIBUTIONS, EL7, needs_dnf, resolves
from tests.support.machine import Machine, machine, needs_machines
from tests.support.package_host import BIN, PYTHONS, ROOT, built, dist, put_python, said_by, shown_python

PYTHON = next((path for path in PYTHONS if path.name == "python3.12"), None)
PAGE = ROOT / "docs" / "howto" / "hub" / "install.md"

pytestmark = [
    pytest.mark.skipif("MUSTER_PACKAGES" not in os.environ, reason="MUSTER_PACKAGES is not set: make rpm-test sets it"),
    pytest.mark.skipif(
        PYTHON is None or any(shutil.which(tool) is None for tool in ("rpmbuild", "rpmlint", "strip", "java")),
        reason="needs a Python 3.12 to put on the machine, rpmbuild, rpmlint, strip and java",
    ),
]

SERVICES = {"muster-aggregator": 25, "muster-nats": 25, "muster-rollup": 25, "muster-maintain": 25}
"""How exposed each may be, in tenths."""

SPARK_DEADLINE = 1200.0


def commands() -> list[str]:
    """Read what the page does, line by line."""
    block = re.search(r"^```\n(dnf install .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Name where the files of both packages are laid out."""
    return tmp_path_factory.mktemp("files") / "tree"


@pytest.fixture(scope="module")
def rpms(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> list[Path]:
    """Give the RPM of the aggregator, and that of its Spark."""
    aggregator = built("build-rpm.sh aggregator", dist(tmp_path_factory), TREE=str(tree))
    return [aggregator, *aggregator.parent.glob("*-spark-*")]


def test_the_same_commit_gives_the_same_bytes(rpms: list[Path], tmp_path: Path) -> None:
    again = built("build-rpm.sh aggregator", tmp_path).parent
    for rpm in rpms:
        assert said_by("cmp", rpm, again / rpm.name) == ""


def test_rpmlint_finds_nothing_that_is_not_explained(rpms: list[Path]) -> None:
    command: list[str | Path] = ["rpmlint", "-c", ROOT / "rpm" / "rpmlint.toml", *rpms]
    report = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False).stdout
    assert "0 errors, 0 warnings" in report, report


def test_digests_are_those_that_fips_allows(rpms: list[Path]) -> None:
    for rpm in rpms:
        digests = said_by("rpm", "-Kv", rpm)
        assert "Header SHA256 digest: OK" in digests
        assert "Payload SHA256 digest: OK" in digests


def test_bills_of_materials_list_what_is_bundled_with_its_licence(rpms: list[Path], tree: Path) -> None:
    site, spark = (tree / "usr/lib/muster-aggregator" / name for name in ("site", "spark"))
    bills = {
        site: json.loads((tree / "usr/share/doc/muster-aggregator/sbom.cdx.json").read_text()),
        spark: json.loads((spark / "sbom.cdx.json").read_text()),
    }
    for rpm, (place, bill) in zip(rpms, bills.items(), strict=True):
        parts = [bill["metadata"]["component"], *bill["components"]]
        named = {part["name"].replace("-", "_").lower(): part for part in parts if "licenses" in part}
        assert {each.name.split("-")[0].lower() for each in place.glob("*.dist-info")} == set(named)
        assert len(parts) - len(named) == len(list(place.rglob("*.jar")))
        tag = set(said_by("rpm", "-qp", "--queryformat", "%{LICENSE}", rpm).split(" AND "))
        for part in named.values():
            for licence in part["licenses"]:
                assert set(re.split(" AND | OR ", licence["expression"].strip("()"))) <= tag, part
    assert len(list(spark.glob("pyspark/licenses/LICENSE-*"))) > 50


@needs_dnf
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_dnf_finds_what_they_need_on(name: str, rpms: list[Path], tmp_path: Path) -> None:
    found, said = resolves(rpms, tmp_path, DISTRIBUTIONS[name])
    assert found, said


@needs_dnf
def test_el7_is_refused(rpms: list[Path], tmp_path: Path) -> None:
    found, said = resolves(rpms, tmp_path, EL7)
    assert not found
    assert all(what in said for what in ("python(abi)", "java-17-headless")), said


def roll_up_and_maintain(place: Machine) -> None:
    """Let both do their work, a rollup once more after it was stopped in the middle of it."""
    order = "cd /etc/muster-aggregator && muster-aggregator policy set --region eu-west --stale-after"
    place.run(f"{order} 20m")
    place.run("systemctl start --no-block muster-rollup.service")
    place.wait_for("journalctl --unit muster-rollup.service --output cat | grep deriving", SPARK_DEADLINE)
    place.run("systemctl stop muster-rollup.service")
    assert "Result=success" in place.run("systemctl show --property Result muster-rollup")
    place.run(f"{order} 30m")
    for unit in ("muster-rollup", "muster-maintain"):
        # No run leaves a process behind, for which systemd would wait.
        drop_in = place.root / f"etc/systemd/system/{unit}.service.d/impatient.conf"
        drop_in.parent.mkdir()
        drop_in.write_text("[Service]\nTimeoutStopSec=100ms\n")
        place.run("systemctl daemon-reload")
        place.run(f"systemctl start --no-block {unit}.service")
        place.wait_for(f"systemctl show --property ActiveState {unit} | grep -E 'inactive|failed'", SPARK_DEADLINE)
        assert "Result=success" in place.run(f"systemctl show --property Result {unit}"), unit
    said = place.run("journalctl --unit muster-rollup.service --output cat")
    assert "stopped between two commits" in said, said
    assert "read 1 = written 1 + duplicates 0 + quarantined 0" in said, said
    assert "tables stand at ARCHIVE 2" in said, said


@needs_machines
def test_the_page_sets_up_a_hub_and_its_first_rollup(rpms: list[Path], tmp_path: Path) -> None:
    assert PYTHON is not None
    assert len(commands()) <= 10
    jars = default_cache() / "jars"
    shown = {**shown_python(PYTHON), jars: "/opt/jars", **{rpm: f"/opt/{rpm.name}" for rpm in rpms}}
    with machine(tmp_path, shown) as place:
        put_python(place, PYTHON)
        shutil.copy(BIN / "nats-server", place.root / "usr/local/bin/nats-server")
        (place.root / "etc/hosts").write_text("127.0.0.1 localhost hub.example nats.eu-west.example dub1.example\n")
        place.switch_on()
        place.run("ldconfig")
        install, write, *rest = commands()
        assert "dnf install ./muster-aggregator-" in install
        assert write.startswith("vi ")
        place.run("rpm --nodeps --install /opt/muster-aggregator-*.rpm")
        # What a person would write: nothing, since the examples' names lead here; and where the jars are.
        settings = place.root / "etc/muster-aggregator/aggregator.toml"
        settings.write_text(settings.read_text() + 'jars = "/opt/jars"\n')
        for unit in (*(f"{name}.service" for name in SERVICES if name not in ("muster-rollup", "muster-maintain")),
                     "muster-rollup.timer", "muster-maintain.timer"):  # fmt: skip
            assert "disabled" in place.run(f"systemctl is-enabled {unit}", code=1), unit
        for name, most in SERVICES.items():
            place.run(f"systemd-analyze security --threshold={most} {name}.service")
        for command in rest:
            # Regions and sites are not there yet, and the page says so.
            place.run(f"cd /etc/muster-aggregator && {command}", code=1 if command == "muster-aggregator apply" else 0)
            if command.endswith("--now muster-nats"):
                place.wait_for("echo > /dev/tcp/127.0.0.1/4222")
        assert "root muster-nats 640" in place.run("stat --format '%U %G %a' /etc/nats/server-key.pem")
        assert "root root 600" in place.run("stat --format '%U %G %a' /etc/muster-aggregator/nats/keys/aggregator.nk")
        place.run("systemctl is-active muster-nats muster-aggregator muster-rollup.timer muster-maintain.timer")
        place.wait_for("python3 -c 'from urllib.request import urlopen; urlopen(\"http://127.0.0.1:8480/readyz\")'")
        streams = place.run("cd /etc/muster-aggregator && muster-aggregator report", code=None)
        assert all(name in streams for name in ("ARCHIVE", "REPORT", "MUSTER_POLICY")), streams

        roll_up_and_maintain(place)
        place.run(
            "runuser -u muster-aggregator -- muster-aggregator tables --config /etc/muster-aggregator/aggregator.toml"
        )

        place.run(f"rpm --nodeps --upgrade --force /opt/{rpms[0].name}")
        place.run("systemctl is-enabled muster-nats muster-rollup.timer")
        assert 'jars = "/opt/jars"' in settings.read_text()
        place.run("rpm --erase muster-aggregator-spark muster-aggregator")
        assert "inactive" in place.run("systemctl is-active muster-nats", code=None)
        assert place.run("find /etc/systemd/system -name 'muster-*' -type l") == ""
        assert (place.root / "var/lib/muster-aggregator/tables/catalog.db").exists()
        assert not (place.root / "usr/lib/muster-aggregator").exists()

"""The aggregator's package: the page that sets up a hub, done line by line on a fresh machine.

It builds and installs 300 MB, so it runs where MUSTER_PACKAGES is set, as `make rpm-test` sets it.
"""

import os
import re
import shutil
from pathlib import Path

import pytest

from aggregator.lakehouse.spark.caches import default_cache
from tests.support.machine import machine, needs_machines
from tests.support.package_host import BIN, PYTHONS, ROOT, built, put_python, shown_python

PYTHON = next((path for path in PYTHONS if path.name == "python3.12"), None)
PAGE = ROOT / "docs" / "howto" / "hub" / "install.md"
SITE_PACKAGES = next((BIN.parent / "lib").glob("python3*")) / "site-packages"

pytestmark = [
    needs_machines,
    pytest.mark.skipif("MUSTER_PACKAGES" not in os.environ, reason="MUSTER_PACKAGES is not set: make rpm-test sets it"),
    pytest.mark.skipif(
        PYTHON is None or any(shutil.which(tool) is None for tool in ("rpmbuild", "strip", "java")),
        reason="needs a Python 3.12 to put on the machine, rpmbuild, strip and java",
    ),
]

SERVICES = {"muster-aggregator": 25, "muster-nats": 25, "muster-rollup": 25, "muster-maintain": 25}
"""How exposed each may be, in tenths."""


def commands() -> list[str]:
    """Read what the page does, line by line."""
    block = re.search(r"^```\n(dnf install .*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    return block[1].splitlines()


def test_the_page_sets_up_a_hub_and_its_first_rollup(tmp_path: Path) -> None:
    assert PYTHON is not None
    assert len(commands()) <= 10
    rpm = built("build-rpm.sh aggregator", tmp_path / "rpm", WITHOUT_SPARK="1")
    lib, jars = "/usr/lib/muster-aggregator", default_cache() / "jars"
    # The second package is these two directories; as large as they are, they are shown rather than installed.
    spark = {SITE_PACKAGES / name: f"{lib}/spark/{name}" for name in ("pyspark", "py4j")}
    shown = {**shown_python(PYTHON), **spark, jars: "/opt/jars", rpm: "/opt/aggregator.rpm"}
    with machine(tmp_path, shown) as place:
        put_python(place, PYTHON)
        shutil.copy(BIN / "nats-server", place.root / "usr/local/bin/nats-server")
        (place.root / "etc/hosts").write_text("127.0.0.1 localhost hub.example nats.eu-west.example dub1.example\n")
        place.switch_on()
        place.run("ldconfig")
        install, write, *rest = commands()
        assert "dnf install ./muster-aggregator-" in install
        assert write.startswith("vi ")
        place.run("rpm --nodeps --install /opt/aggregator.rpm")
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

        place.run("cd /etc/muster-aggregator && muster-aggregator policy set --region eu-west --stale-after 20m")
        place.run("systemctl start muster-rollup.service")
        said = place.run("journalctl --unit muster-rollup.service --output cat")
        assert "read 1 = written 1 + duplicates 0 + quarantined 0" in said, said
        place.run("systemctl start muster-maintain.service")
        place.run(
            "runuser -u muster-aggregator -- muster-aggregator tables --config /etc/muster-aggregator/aggregator.toml"
        )

        place.run("rpm --nodeps --upgrade --force /opt/aggregator.rpm")
        place.run("systemctl is-enabled muster-nats muster-rollup.timer")
        assert 'jars = "/opt/jars"' in settings.read_text()
        place.run("rpm --erase muster-aggregator")
        assert (place.root / "var/lib/muster-aggregator/tables/catalog.db").exists()
        assert not (place.root / "usr/lib/muster-aggregator/site").exists()

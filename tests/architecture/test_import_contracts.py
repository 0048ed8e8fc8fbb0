"""The contracts of pyproject.toml hold, and each of them would notice what it forbids."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("edge_agent", "aggregator", "shared")
LINT_IMPORTS = Path(sys.executable).parent / "lint-imports"


def checked(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [str(LINT_IMPORTS), "--no-logo", "--no-cache", *options]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def copied_project(tmp_path: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_contract_holds() -> None:
    answer = checked(ROOT)
    assert answer.returncode == 0, answer.stdout


@pytest.mark.parametrize(
    ("contract", "package", "statement"),
    [
        ("one-way", "shared", "import edge_agent.core.policy"),
        ("one-way", "shared", "import aggregator.lakehouse"),
        ("one-way", "edge_agent", "import aggregator.lakehouse"),
        ("one-way", "aggregator", "import edge_agent.core.policy"),
        ("pure-core", "edge_agent/core", "import time"),
        ("pure-core", "edge_agent/core", "from asyncio import sleep"),
        ("pure-core", "edge_agent/core", "import shared.nats.connection"),
        ("pure-core", "edge_agent/core", "import edge_agent.store.sqlite_store"),
        ("loops-know-protocols", "edge_agent/ingest/loop.py", "import edge_agent.source.reader"),
        ("loops-know-protocols", "edge_agent/delivery/uploader.py", "import nats"),
        ("agent-stays-small", "edge_agent/core", "import numpy"),
        ("agent-stays-small", "shared", "import pyarrow"),
        ("loops-know-protocols", "edge_agent/ingest/loop.py", "import edge_agent.store.sqlite_store"),
        ("agent-stations", "edge_agent/store", "import edge_agent.ingest.loop"),
        ("agent-stations", "edge_agent/source", "import edge_agent.store.port"),
        ("parts-of-the-aggregator", "aggregator/topology", "import aggregator.lakehouse.spark.jars"),
        ("parts-of-the-aggregator", "aggregator/lakehouse", "import aggregator.topology.desired.model"),
        ("parts-of-the-aggregator", "aggregator/topology", "import aggregator.demo.stage"),
        ("topology-stations", "aggregator/topology/desired", "import aggregator.topology.observed.state"),
        (
            "derivation-steps",
            "aggregator/lakehouse/derive/coverage",
            "import aggregator.lakehouse.derive.availability.accounting",
        ),
        ("live-stations", "aggregator/live/fold", "import aggregator.live.store"),
        ("pure-fold", "aggregator/live/fold", "import time"),
        (
            "transformations-read-nothing",
            "aggregator/lakehouse/derive/intervals/episodes.py",
            "from pathlib import Path",
        ),
        (
            "transformations-read-nothing",
            "aggregator/lakehouse/derive/availability/window_accounts.py",
            "import aggregator.lakehouse.warehouse.commits",
        ),
        ("spark-in-one-place", "aggregator", "import pyspark"),
        ("spark-in-one-place", "shared", "from py4j.java_gateway import JavaGateway"),
    ],
)
def test_a_forbidden_import_breaks_its_contract(
    copied_project: Path, contract: str, package: str, statement: str
) -> None:
    place = copied_project / package
    module = place if place.suffix else place / "intruder.py"
    with module.open("a") as source:
        source.write(f"\n{statement}\n")

    answer = checked(copied_project, "--contract", contract)

    assert answer.returncode != 0
    assert "1 broken" in answer.stdout, answer.stdout + answer.stderr

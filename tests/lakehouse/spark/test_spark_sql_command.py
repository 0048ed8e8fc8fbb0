"""The command line that spark-sql gets: what a driver tells its executors must lead them to it. No Spark runs here."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from aggregator.lakehouse.commands.spark_sql import spark_sql
from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from tests.support.lakehouse.small_lakehouse import SmallLakehouse


@pytest.fixture(scope="module")
def lakehouse(tmp_path_factory: pytest.TempPathFactory) -> SmallLakehouse:
    lakehouse = SmallLakehouse(tmp_path_factory.mktemp("lake"))
    lakehouse.append(SENDER_INTERVALS, [{"sender_id": "a"}])
    return lakehouse


def printed(lakehouse: SmallLakehouse, directory: Path, master: str) -> str:
    """Ask for the command line that goes with a master."""
    config = directory / "aggregator.toml"
    config.write_text(
        '[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\n'
        f'path = "{lakehouse.warehouse}"\nspark_master = "{master}"\n'
    )
    answer = CliRunner().invoke(spark_sql, ["--config", str(config), "--print"])
    assert answer.exit_code == 0, answer.stderr
    assert f"--conf spark.master={master}" in answer.stdout.replace("'", "")
    assert answer.stdout.startswith("JAVA_HOME=/")
    return answer.stdout


def test_a_driver_whose_executors_are_elsewhere_is_not_told_that_it_is_at_127_0_0_1(
    lakehouse: SmallLakehouse, tmp_path: Path
) -> None:
    # Whether a master answers is looked at before.
    with socket.create_server(("127.0.0.1", 0)) as master:
        line = printed(lakehouse, tmp_path, f"spark://127.0.0.1:{master.getsockname()[1]}")
    assert not any(told in line for told in ("SPARK_LOCAL_IP", "spark.driver.host", "spark.driver.bindAddress"))


def test_a_driver_without_executors_elsewhere_is_at_127_0_0_1(lakehouse: SmallLakehouse, tmp_path: Path) -> None:
    line = printed(lakehouse, tmp_path, "local[2]")
    assert "SPARK_LOCAL_IP=127.0.0.1" in line
    assert "--conf spark.driver.host=127.0.0.1" in line

"""A server that cannot start says why in one line. Spark itself is not reached here."""

import subprocess
import sys
from pathlib import Path

import pytest

from aggregator.lakehouse.tables.schemas import SENDER_INTERVALS
from tests.support.free_ports import free_ports
from tests.support.small_lakehouse import SmallLakehouse


@pytest.fixture
def lakehouse(tmp_path: Path) -> SmallLakehouse:
    lakehouse = SmallLakehouse(tmp_path / "lake")
    lakehouse.append(SENDER_INTERVALS, [{"sender_id": "a"}])
    return lakehouse


def serve(lakehouse: SmallLakehouse, spark: str = "") -> "subprocess.CompletedProcess[str]":
    """Run the server until it ends by itself."""
    config = lakehouse.warehouse.parent / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "lake"\n[lakehouse.spark]\n{spark}'
    )
    (port,) = free_ports(1)
    options = ["--config", str(config), "--only", "connect", "--connect-port", str(port)]
    command = [sys.executable, "-c", "from aggregator.cli import main; main()", "serve-sql", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_a_log_that_may_not_be_written_is_named_with_the_option_that_helps(
    lakehouse: SmallLakehouse, nobodys_directory: Path
) -> None:
    log = lakehouse.warehouse / "serve-sql.log"
    log.symlink_to(nobodys_directory / "serve-sql.log")
    ended = serve(lakehouse)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (1, "", 1), ended.stderr
    assert ended.stderr.startswith(f"muster-aggregator: {log} cannot be written: ")
    assert ended.stderr.endswith("; name another file with --log\n")


def test_a_java_that_does_not_start_is_one_line_that_names_the_servers_own_log(lakehouse: SmallLakehouse) -> None:
    log = lakehouse.warehouse / "serve-sql.log"
    ended = serve(lakehouse, '"spark.driver.memory" = "1k"\n')
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert ended.stderr.startswith(
        f"muster-aggregator: Java ended before Spark had begun: {log} (after another start, "
    )

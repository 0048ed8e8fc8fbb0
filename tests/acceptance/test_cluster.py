"""The same rollup on a cluster: a standalone master and two workers, which are processes of their own."""

import subprocess
import sys
from pathlib import Path

from aggregator.lakehouse.query import open_tables
from shared.instants import DAY, HOUR
from tests.support.hub import Block, Hub
from tests.support.quick_spark import QUICK_JAVA, spark_block
from tests.support.small_rollup import START
from tests.support.spark_cluster import cluster

SMALL = {
    # Compiling code for three rows would take most of the test's time.
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.codegen.wholeStage": "false",
    # Instead of fewer spark.sql.shuffle.partitions: nobody need set those on a cluster.
    "spark.sql.adaptive.coalescePartitions.initialPartitionNum": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK_JAVA,
}

WITH_MANY_ROWS = """
from aggregator.cli import main
from aggregator.lakehouse import effort

effort.FEW_ROWS = 0
main()
"""
"""The command, to which three rows are as many as any."""


def test_a_rollup_on_two_workers_writes_the_same_tables(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.start()
    site = Block("eu-west", "dub1")
    hub.publish([site.new("n1", START + HOUR), site.stale("n1", START + 2 * HOUR), site.watermark(START, START + DAY)])
    config = tmp_path / "aggregator.toml"
    config.write_text(f'[hub]\nservers = ["{hub.server.url}"]\n[lakehouse]\npath = "tables"\n{spark_block(SMALL)}')
    with cluster(tmp_path, 2) as spark:
        rollup = ["rollup", "--once", "--config", str(config), "--master", spark.url]
        command = [sys.executable, "-c", WITH_MANY_ROWS, *rollup]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "read 3 = written 3 + duplicates 0 + quarantined 0" in ran.stdout
        assert spark.all_took_part()
    hub.stop()
    with open_tables(tmp_path / "tables") as tables:
        assert tables.rows("SELECT sender_id, count(*) FROM outages GROUP BY sender_id") == [("n1", 1)]

"""The same rollup on a cluster: a standalone master and two workers, which are processes of their own."""

import subprocess
import sys
from pathlib import Path

from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.spark.caches import default_cache
from aggregator.lakehouse.spark.jars import iceberg_jars
from shared.instants import DAY, HOUR
from tests.support.documents.documents import examples
from tests.support.lakehouse.hub import Block, Hub
from tests.support.lakehouse.quick_spark import QUICK_JAVA, spark_block
from tests.support.lakehouse.small_rollup import START
from tests.support.lakehouse.spark_cluster import cluster, environment

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

LOSING_EXECUTORS = """
import os
from pathlib import Path

from aggregator.cli import main
from aggregator.lakehouse.derive.derivation import Derivation
from aggregator.lakehouse.spark import effort

effort.FEW_ROWS = 0
write = Derivation._write


def and_lose_executors(derivation, rows, table, *others, **named):
    write(derivation, rows, table, *others, **named)
    if table.name == "site_coverage_daily":
        lost = [int(pid) for worker in {workers} for each in Path("/proc", str(worker)).glob("task/*/children")
                for pid in each.read_text().split()]
        assert lost
        for pid in lost:
            os.kill(pid, 9)


Derivation._write = and_lose_executors
main()
"""
"""The command, to which three rows are as many as any, and whose executors are killed in the middle of a derivation."""

ROOT = Path(__file__).parents[2]


def by_hand(master: str) -> str:
    """Give the shell's lines with which a document calls spark-submit, for what is installed here."""
    (lines,) = (
        each for each in examples(ROOT / "docs" / "howto" / "hub" / "cluster.md", "") if "spark-submit --master" in each
    )
    for there, here in (
        ("~/.cache/muster/jars", iceberg_jars(default_cache(), None, print)[0].parent),
        ("/opt/muster/bin/python", sys.executable),
        ("/opt/muster/lib/python3.11/site-packages", ROOT),
        ("spark://spark.example.net:7077", master),
    ):
        assert there in lines
        lines = lines.replace(there, str(here))
    return lines


def test_rollups_on_workers_that_lose_their_executors_write_the_same_tables_whoever_calls_spark_submit(
    tmp_path: Path,
) -> None:
    site = Block("eu-west", "dub1")
    said = [site.new("n1", START + HOUR), site.stale("n1", START + 2 * HOUR), site.watermark(START, START + DAY)]
    config = tmp_path / "aggregator.toml"
    with Hub(tmp_path / "hub") as hub, cluster(tmp_path, 2) as spark:
        hub.publish(said)
        tables = f'[lakehouse]\npath = "tables"\n{spark_block(SMALL)}'
        config.write_text(f'[hub]\nservers = ["{hub.server.url}"]\n{tables}')
        rollup = ["rollup", "--once", "--config", str(config), "--master", spark.url]
        command = [sys.executable, "-c", LOSING_EXECUTORS.format(workers=spark.pids), *rollup]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
        assert ran.returncode == 0, ran.stderr
        assert "read 3 = written 3 + duplicates 0 + quarantined 0" in ran.stdout
        assert spark.all_took_part()
        assert spark.executors_started() > 2
        hub.publish([site.recovered("n1", START + DAY + HOUR), site.watermark(START, START + DAY + 2 * HOUR)])
        ran = subprocess.run(
            ["bash", "-euc", by_hand(spark.url)],
            cwd=tmp_path,
            env=environment() | {"JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert "read 2 = written 2 + duplicates 0 + quarantined 0" in ran.stdout
        assert spark.drivers_served() == 2
    with open_tables(tmp_path / "tables") as opened:
        assert opened.rows("SELECT sender_id, count(*) FROM outages GROUP BY sender_id") == [("n1", 1)]
        states = opened.rows("SELECT sender_id, state FROM sender_intervals ORDER BY started_at")
        assert states == [("n1", "up"), ("n1", "down"), ("n1", "up")]

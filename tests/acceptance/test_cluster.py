"""The same rollup on a cluster: a standalone master and two workers, which are processes of their own."""

import asyncio
import json
from pathlib import Path

from aggregator.lakehouse.query import open_tables
from shared.instants import DAY, HOUR
from tests.support.aggregator_command import muster
from tests.support.hub import Block, Hub
from tests.support.small_rollup import START
from tests.support.spark_cluster import cluster

SMALL = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def test_a_rollup_on_two_workers_writes_the_same_tables(tmp_path: Path) -> None:
    hub = Hub(tmp_path / "hub")
    hub.start()
    site = Block("eu-west", "dub1")
    hub.publish([site.new("n1", START + HOUR), site.stale("n1", START + 2 * HOUR), site.watermark(START, START + DAY)])
    config = tmp_path / "aggregator.toml"
    further = "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in SMALL.items())
    config.write_text(
        f'[hub]\nservers = ["{hub.server.url}"]\n[lakehouse]\npath = "tables"\n[lakehouse.spark]\n{further}'
    )
    with cluster(tmp_path, 2) as spark:
        ran = asyncio.run(muster("rollup", "--config", config, "--master", spark.url))
        assert ran.returncode == 0, ran.stderr
        assert "read 3 = written 3 + duplicates 0 + quarantined 0" in ran.stdout
        assert spark.executors() == [1, 1]
    hub.stop()
    with open_tables(tmp_path / "tables") as tables:
        assert tables.rows("SELECT sender_id, count(*) FROM outages GROUP BY sender_id") == [("n1", 1)]

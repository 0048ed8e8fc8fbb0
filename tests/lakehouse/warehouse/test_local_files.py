"""Hadoop makes local files by itself, with the permissions that it always gave them."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse.spark.session import make_files_quickly
from aggregator.lakehouse.warehouse.jvm import java_class


def test_a_local_file_has_hadoops_permissions_and_nothing_beside_it(spark: SparkSession, tmp_path: Path) -> None:
    hadoop = spark._jsc.hadoopConfiguration()
    make_files_quickly(spark)
    local = java_class(spark, "org.apache.hadoop.fs.FileSystem").getLocal(hadoop)
    assert local.getClass().getName() == "muster.LocalFiles"
    path = java_class(spark, "org.apache.hadoop.fs.Path")(f"file:{tmp_path}/day=2026-01-01/part")
    # What a table is written through is found by its path, and is the same one.
    assert path.getFileSystem(hadoop).equals(local)
    local.create(path, False).close()
    made = [tmp_path / "day=2026-01-01", tmp_path / "day=2026-01-01" / "part"]
    assert sorted(tmp_path.rglob("*")) == made
    assert [f"{each.stat().st_mode & 0o777:o}" for each in made] == ["755", "644"]
    permission = java_class(spark, "org.apache.hadoop.fs.permission.FsPermission")("600")
    local.setPermission(path, permission)
    assert f"{made[1].stat().st_mode & 0o777:o}" == "600"
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o2775)
    local.mkdirs(java_class(spark, "org.apache.hadoop.fs.Path")(f"file:{shared}/day=2026-01-01"))
    assert f"{(shared / 'day=2026-01-01').stat().st_mode & 0o7777:o}" == "2755", "as chmod leaves it"


@pytest.mark.parametrize(
    ("given", "modes"), [("", {0o750, 0o640}), ('"spark.hadoop.fs.permissions.umask-mode" = "002"', {0o775, 0o664})]
)
def test_files_and_directories_of_tables_have_the_umask_of_the_process_or_the_settings(
    tmp_path: Path, given: str, modes: set[int]
) -> None:
    config, warehouse = tmp_path / "aggregator.toml", tmp_path / "lake"
    config.write_text(
        f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = {json.dumps(str(warehouse))}\n'
        f'spark_master = "local[1]"\n[lakehouse.spark]\n{given}\n'
    )
    program = "from aggregator.cli import main; main()"
    command = [sys.executable, "-c", program, "maintain", "--config", str(config)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o027, timeout=600)
    assert ran.returncode == 0, ran.stderr
    found = {stat.S_IMODE(each.stat().st_mode) for each in (warehouse / "muster").rglob("*")}
    assert found == modes

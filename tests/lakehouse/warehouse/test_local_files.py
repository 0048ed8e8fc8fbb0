"""Hadoop makes local files by itself, with the permissions that it always gave them."""

from pathlib import Path

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

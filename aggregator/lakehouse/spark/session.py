"""Start Spark so that it writes Iceberg tables into their catalog, by default on this machine and in one SQLite file.

Settings and traps were tried out for exactly the versions in ``pyproject.toml``. What Spark and its JVM have to say
goes to a file beside the tables: a person at the terminal sees our lines only.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path
from typing import Any

import msgspec
from py4j.java_gateway import java_import
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from aggregator.catalog_settings import FILE_BESIDE_THE_TABLES, CatalogSettings
from aggregator.lakehouse.spark.process import leave_its_end_to_python, say_nothing_of_its_end, tell_failed_calls_once
from aggregator.lakehouse.warehouse.catalog_settings import CATALOG, spark_catalog, spark_secrets
from aggregator.lakehouse.warehouse.jvm import java_class, make_active

_NAME, _CHOSEN = "muster.LocalFiles", "fs.file.impl"
_SOURCE = """
package muster;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.LinkOption;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

public class LocalFiles extends LocalFileSystem {
  public LocalFiles() {
    super(new Raw());
  }

  static class Raw extends RawLocalFileSystem {
    public void setPermission(Path path, FsPermission wanted) throws IOException {
      java.nio.file.Path file = pathToFile(path).toPath();
      // As chmod does: a directory that hands on its group goes on with it.
      int mode = ((Integer) Files.getAttribute(file, "unix:mode", new LinkOption[0])).intValue();
      Integer changed = Integer.valueOf(mode & 07000 | wanted.toShort() & 0777);
      Files.setAttribute(file, "unix:mode", changed, new LinkOption[0]);
    }
  }
}
"""


def make_files_quickly(spark: SparkSession) -> None:
    """Write local files of this JVM so, and without Hadoop's ``.crc`` beside each: Parquet has checksums of its own.

    Hadoop keeps one file system of a kind for the whole JVM. Where ours cannot be compiled, or an operator has
    chosen one, that stays.
    """
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001 - Python has no name for it
    file_systems = java_class(spark, "org.apache.hadoop.fs.FileSystem")
    local = file_systems.getLocal(hadoop)
    if local.getClass().getName() != _NAME and hadoop.get(_CHOSEN) is None:
        _take_place_of(local, spark, hadoop)
    # Whichever it is now.
    file_systems.getLocal(hadoop).setWriteChecksum(False)


def _take_place_of(local: Any, spark: SparkSession, hadoop: Any) -> None:
    """Put ours in the place of ``local``, where it can be compiled."""
    # TypeError: there is no such class.
    with suppress(Py4JError, TypeError):
        compiler = java_class(spark, "org.codehaus.janino.SimpleCompiler")()
        compiler.cook(_SOURCE)
        configuration = java_class(spark, "org.apache.hadoop.conf.Configuration")(hadoop)
        configuration.setClassLoader(compiler.getClassLoader())
        configuration.set(_CHOSEN, _NAME)
        # Whoever has it already may go on with it: closing takes it out of Hadoop's list, and nothing else.
        local.close()
        java_class(spark, "org.apache.hadoop.fs.FileSystem").getLocal(configuration)


_UMASK = "spark.hadoop.fs.permissions.umask-mode"
"""Spark's setting for what nobody but the owner, or nobody else, may do with new files; of three octal digits."""
_JAVA = (
    "-XX:+UseParallelGC",
    # A short run spent a third of its processor time on machine code that pays in long ones only: six times later.
    "-XX:Tier4InvocationThreshold=30000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=90000",
    "-XX:Tier4BackEdgeThreshold=240000",
)


class SessionSettings(msgspec.Struct, frozen=True):
    """What a session needs to know. ``warehouse`` is the directory of the tables and of ``catalog.db`` by default.

    ``read_only``: the catalog refuses what would change a table. ``log`` is for what Spark and its JVM have to say;
    None: ``spark.log`` in the warehouse.
    """

    warehouse: Path
    java_home: Path
    jars: tuple[Path, ...]
    master: str = "local[*]"
    driver_memory: str = "2g"
    extra: Mapping[str, str] = {}
    catalog: CatalogSettings = FILE_BESIDE_THE_TABLES
    read_only: bool = False
    log: Path | None = None


def start(settings: SessionSettings) -> SparkSession:
    """Start Spark, or another session in the JVM that this process has already.

    Spark's own words go to ``spark.log`` in the warehouse; those of the JVM
    before are in ``spark.log.1``.
    """
    settings.warehouse.mkdir(parents=True, exist_ok=True)
    properties = {**spark_properties(settings), **settings.extra}
    secrets = spark_secrets(settings.catalog)
    # Not the active session: that is one of the JVM's thread, which changes behind Python's back.
    if SparkContext._active_spark_context is None:  # noqa: SLF001 - there is no public question
        _prepare_environment(settings)
        conf = {"spark.app.name": "muster", "spark.master": settings.master, **properties, **secrets}
        with errors_into(settings.log or settings.warehouse / "spark.log"):
            # What a JVM starts with stands on its command line, which everybody may read: no secrets there.
            public = SparkConf(loadDefaults=False).setAll(list(properties.items()))
            SparkContext._ensure_initialized(conf=public)  # noqa: SLF001 - there is no public way
            tell_failed_calls_once()
            leave_its_end_to_python()
            # In the main thread, Spark would take Ctrl-C to itself.
            with ThreadPoolExecutor(1) as elsewhere:
                elsewhere.submit(SparkContext.getOrCreate, SparkConf().setAll(list(conf.items()))).result()
            spark = SparkSession.builder.config(map=dict(conf)).getOrCreate()
            say_nothing_of_its_end(spark.sparkContext._accumulatorServer)  # noqa: SLF001 - there is no public way
    else:
        # A session loads its catalog once: another warehouse needs another session.
        spark = SparkSession.builder.getOrCreate().newSession()
        for key, value in (properties | secrets).items():
            if spark.conf.isModifiable(key) or key.startswith(f"spark.sql.catalog.{CATALOG}"):
                spark.conf.set(key, value)
        # A data source is registered with the new session, but looked for in the active one.
        make_active(spark)
    _name_what_pyspark_looks_up(spark)
    make_files_quickly(spark)
    return spark


def spark_properties(settings: SessionSettings) -> dict[str, str]:
    """Give every property that differs from Spark's default, for our session and for servers that share the catalog."""
    local = settings.master.startswith("local")
    jars = [str(jar) for jar in settings.jars]
    properties = {
        **spark_catalog(settings.warehouse, settings.catalog, read_only=settings.read_only),
        "spark.sql.defaultCatalog": CATALOG,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.driver.extraClassPath": ":".join(jars),
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join(("-Duser.timezone=UTC -Dderby.system.home=/nonexistent", *_JAVA)),
        "spark.log.level": "ERROR",
        # Hadoop's own default is 022, whatever this process was given.
        _UMASK: f"{_umask():03o}",
        # What is read ahead and what is committed meanwhile share the cores (``bronze/chunks.py``).
        "spark.scheduler.mode": "FAIR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.adaptive.enabled": "true",
        # Java does not compile methods of more than 8000 bytes; Spark would generate them all the same.
        "spark.sql.codegen.hugeMethodLimit": "8000",
        # A rollup generates some hundred classes; with Spark's 100 the next one finds none of them, compiled or not.
        "spark.sql.codegen.cache.maxEntries": "2000",
        # Else pyspark asks the JVM for the line of each column's making, some 1,600 times in a rollup.
        "spark.python.sql.dataFrameDebugging.enabled": "false",
        # Python's batches come as Arrow already; the session makes no DataFrame out of pandas.
        "spark.sql.execution.arrow.pyspark.enabled": "true",
    }
    if local:
        cores = os.cpu_count() or 1
        properties |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(min(max(2 * cores, 4), 64)),
            # A few rows may be a few hundred files: what takes time is the files, and one core would write them all.
            "spark.sql.adaptive.coalescePartitions.minPartitionSize": "16k",
            # Sites by the thousand, each with a list, are no reason to sort all rows; all cores' lists fit in memory.
            "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": str(max(100_000 // cores, 1_000)),
        }
        if "spark.sql.shuffle.partitions" not in settings.extra:
            # What is large is cut so small that it is sorted in memory; what is small is put together again.
            pieces = str(min(max(16 * cores, 32), 256))
            properties["spark.sql.adaptive.coalescePartitions.initialPartitionNum"] = pieces
    else:
        # A local driver finds the jars where they are; executors elsewhere must be sent them. Our Python code they find
        # where it is here: the same installation, at the same place.
        properties |= {"spark.jars": ",".join(jars), "spark.executorEnv.PYTHONPATH": _code_directory()}
    return properties


def spark_environment(settings: SessionSettings) -> dict[str, str]:
    """Give what every Spark of ours is told in its environment, before it reads any property.

    Which of this machine's addresses a driver has, it finds out by itself; where no executor is elsewhere, it need not.
    """
    environment = {"JAVA_HOME": str(settings.java_home)}
    if settings.master.startswith("local"):
        environment["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environment


def _prepare_environment(settings: SessionSettings) -> None:
    """Set what the JVM and Python's workers inherit: which Java, which Python and which code, and the umask.

    Hadoop goes by its setting for files alone: directories, and files that Python writes, go by the process's umask.
    """
    umask = settings.extra.get(_UMASK, "")
    if umask.isdecimal():
        os.umask(int(umask, 8))
    code = _code_directory()
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ |= spark_environment(settings) | {
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join([code, *(path for path in paths if path and path != code)]),
    }


def _umask() -> int:
    """Return the umask of this process, without a moment in which it is another one."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(status.partition("\nUmask:")[2].split()[0], 8)


def _code_directory() -> str:
    return str(Path(__file__).resolve().parents[3])


def _name_what_pyspark_looks_up(spark: SparkSession) -> None:
    """Import by name what columns are made with: behind ``import package.*``, each use is a search in all jars."""
    for name in ("org.apache.spark.api.python.PythonUtils", "org.apache.spark.sql.api.python.PythonSQLUtils"):
        java_import(spark._jvm, name)  # noqa: SLF001 - Python has no name for it


@contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Have what is started meanwhile write its standard error into ``log``: a JVM warns before it reads any setting.

    What is there is kept beside it: a supervisor starts anew what has ended, long before anybody asks why.
    """
    if log.is_file() and log.stat().st_size:
        log.replace(log.with_name(f"{log.name}.1"))
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 2)
        # Messages of Python's own, such as the answer to Ctrl-C, are for the terminal still.
        with open(kept, "w", buffering=1, errors="backslashreplace", closefd=False) as shown, redirect_stderr(shown):
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

"""Have Hadoop make local files without a process for each.

Without its native library, which no jar has, Hadoop runs ``chmod`` for every file and every directory that it makes:
17 ms of the 21 that a data file in a partition of its own took, and a rollup makes such a file for each day and
bucket of sites that it touches. Ours sets the same permissions itself. Spark has the compiler that it takes.
"""

from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from aggregator.lakehouse.warehouse.jvm import java_class

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

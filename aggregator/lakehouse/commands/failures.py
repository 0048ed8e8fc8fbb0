"""Name the failures that a person can mend: each carries one line that says what, where and what to do."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from pyspark.errors import PySparkException

from aggregator.archive.reader import ReadFailed
from aggregator.lakehouse.archive.reading_plan import Refused
from aggregator.lakehouse.bronze.writer import MiscountError
from aggregator.lakehouse.derive.availability.accounting import AccountingError
from aggregator.lakehouse.imports.mapping import ImportRefused
from aggregator.lakehouse.spark.jars import JarsUnavailable
from aggregator.lakehouse.spark.java import JavaUnavailable
from aggregator.lakehouse.spark.master import MasterUnreachable
from aggregator.lakehouse.spark.process import GONE, did_not_start, how_it_ended
from aggregator.lakehouse.spark.sql_server import ServingFailed
from aggregator.lakehouse.spark.stop_signal import Stopped
from aggregator.lakehouse.warehouse.catalog_file import REMEDY
from aggregator.lakehouse.warehouse.catalog_settings import SecretUnreadable
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from aggregator.lakehouse.warehouse.lock import GAVE_UP
from aggregator.lakehouse.warehouse.provision import TableDiffers
from shared.nats.connection import ConnectFailed

EXPECTED = (
    AccountingError,
    ConnectFailed,
    ImportRefused,
    JarsUnavailable,
    JavaUnavailable,
    MasterUnreachable,
    MiscountError,
    ReadFailed,
    Refused,
    SecretUnreadable,
    ServingFailed,
    TableDiffers,
    TablesUnreadable,
)
_IN_A_WORKER = re.compile(r"^[\w.]+\.(?:ReadFailed|ConnectFailed): (.+)$", re.MULTILINE)
_OF_A_DISK = re.compile(
    r"No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
    r"|SQLITE_(?:FULL|IOERR|READONLY|CANTOPEN)\w*"
)
_OF_A_FILE = re.compile(r"SQLITE_(?:CORRUPT|NOTADB)\w*")
_NOT_OURS = re.compile(
    r"(?:Permission denied|Operation not permitted): '(.+?)'|FileNotFoundException: (.+) \(Permission denied\)"
    r"|AccessDeniedException: (\S+)|Mkdirs failed to create (?:file:)?(\S+)"
)
"""Which file or directory Python, Java and Hadoop may not read or write. Hadoop says nothing of why."""
_OF_A_STORE = re.compile(r"software\.amazon\.awssdk\.[\w.]+Exception: (.+)")
_OF_A_CATALOG = re.compile(
    r"PSQLException: ((?:FATAL: |Connection to |The connection attempt failed|This connection has been closed"
    r"|An I/O error occurred while sending).*)"
    r"|(?:java\.net\.|RESTException: .*?)(ConnectException: .+|HttpHostConnectException: .+)"
)
_OF_ANOTHER_JOB = re.compile(r"org\.apache\.iceberg\.exceptions\.(?:ValidationException|CommitFailedException): ")


class AnotherAtWork(click.ClickException):
    """Another job holds the tables: nothing is wrong, and later it will go. The code is EX_TEMPFAIL of sysexits.h."""

    exit_code = 75


class CommandInterrupted(click.ClickException):
    """Ctrl-C ended the job between two commits. The code is the one of shells."""

    exit_code = 128 + signal.SIGINT


class Terminated(click.ClickException):
    """SIGTERM ended the job between two commits. The code is the one of shells."""

    exit_code = 128 + signal.SIGTERM


def explained(error: Exception, log: Path | None = None) -> str | None:
    """Find the line of a failed worker, disk, store or catalog in Spark's pages or the system's words.

    Else that of Java's end, whose words are in ``log``, None: in ``spark.log``; None where there is neither.
    """
    pages = str(error)
    in_a_worker = _IN_A_WORKER.search(pages)
    if in_a_worker is not None:
        return in_a_worker[1]
    of_a_store = _OF_A_STORE.search(pages)
    if of_a_store is not None:
        return (
            f"the object store fails ({of_a_store[1].strip()}): mend it or the way to it ([lakehouse.catalog]), and run"
            " again; what was committed is whole"
        )
    of_a_catalog = _OF_A_CATALOG.search(pages)
    if of_a_catalog is not None:
        return (
            f"the catalog's server fails ({(of_a_catalog[1] or of_a_catalog[2]).strip()}): mend it or the way to it"
            " ([lakehouse.catalog]), and run again; what was committed is whole"
        )
    if _OF_ANOTHER_JOB.search(pages) is not None:
        return f"another job has written these tables meanwhile: {GAVE_UP}"
    return _of_files(pages) or _of_java(error, log)


@contextmanager
def in_one_line(log: Path | None = None) -> Iterator[None]:
    """Raise what a person can mend as click.ClickException; ``log`` as in ``explained``."""
    try:
        yield
    except AlreadyRunning as error:
        raise AnotherAtWork(str(error)) from error
    except Stopped as error:
        ended = CommandInterrupted if error.number == signal.SIGINT else Terminated
        raise ended(str(error)) from error
    except EXPECTED as error:
        raise click.ClickException(str(error)) from error
    except (PySparkException, OSError, *GONE) as error:
        line = explained(error, log)
        if line is None:
            raise
        raise click.ClickException(line) from error


def _of_files(pages: str) -> str | None:
    if _OF_A_FILE.search(pages):
        return f"catalog.db in the tables' directory ([lakehouse] path) is damaged: {REMEDY}"
    of_a_disk = _OF_A_DISK.search(pages)
    if of_a_disk is not None:
        return (
            f"writing failed ({of_a_disk[0]}): mend the disk of the tables ([lakehouse] path) or of Spark's temporary"
            " files (spark.local.dir), and run again; what was committed is whole"
        )
    not_ours = _NOT_OURS.search(pages)
    if not_ours is not None:
        return (
            f"{next(filter(None, not_ours.groups()))} may not be read or written: run as the user whose tables these"
            " are, or let this one write all that is in their directory ([lakehouse] path); what was committed is whole"
        )
    return None


def _of_java(error: Exception, log: Path | None) -> str | None:
    place = "spark.log in the tables' directory" if log is None else str(log)
    before = "spark.log.1" if log is None else f"{log.name}.1"
    end = how_it_ended(error)
    if end is not None:
        return (
            f"Java, in which Spark runs, has ended ({end}): its last words are in {place}"
            f" (after another start, in {before}), and the kernel's log says where memory was short; run again, what"
            " was committed is whole"
        )
    if did_not_start(error):
        return (
            f"Java ended before Spark had begun: {place} (after another start, {before})"
            " says why, as where there is less memory than spark.driver.memory in [lakehouse.spark]; mend that, and run"
            " again"
        )
    return None

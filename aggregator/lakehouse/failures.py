"""Name the failures that a person can mend: each carries one line that says what, where and what to do."""

import re

from pyspark.errors import PySparkException

from aggregator.lakehouse.accounting_check import AccountingError
from aggregator.lakehouse.bronze import MiscountError
from aggregator.lakehouse.imports.mapping import ImportRefused
from aggregator.lakehouse.jars import JarsUnavailable
from aggregator.lakehouse.java import JavaUnavailable
from aggregator.lakehouse.job_lock import AlreadyRunning
from aggregator.lakehouse.reading_plan import Refused
from aggregator.lakehouse.stream_reader import ReadFailed
from shared.nats_connection import ConnectFailed

EXPECTED = (
    AccountingError,
    AlreadyRunning,
    ConnectFailed,
    ImportRefused,
    JarsUnavailable,
    JavaUnavailable,
    MiscountError,
    ReadFailed,
    Refused,
)
_IN_A_WORKER = re.compile(r"^[\w.]+\.(?:ReadFailed|ConnectFailed): (.+)$", re.MULTILINE)


def explained(error: PySparkException) -> str | None:
    """Find the one line of a failure that happened in a worker, in the pages that Spark makes of it."""
    found = _IN_A_WORKER.search(str(error))
    return found[1] if found else None

"""Roll up again and again in one Spark, and outlive what passes: cut links, dead servers, full disks, other jobs.

Spark is started when there is something to do for the first time. Where nothing is new, it is left alone.

What does not pass ends the service: sums that do not add up, a Spark that fails for a reason that is not known to pass,
and a JVM that has ended, or does not start. Its supervisor starts it anew.
"""

import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from aggregator.config import AggregatorSettings
from aggregator.lakehouse import job
from aggregator.lakehouse.catalog_access import SecretUnreadable
from aggregator.lakehouse.failures import explained
from aggregator.lakehouse.jars import JarsUnavailable
from aggregator.lakehouse.java import JavaUnavailable
from aggregator.lakehouse.java_process import did_not_start, how_it_ended
from aggregator.lakehouse.job_lock import AlreadyRunning
from aggregator.lakehouse.query_errors import TablesUnreadable
from aggregator.lakehouse.reading_plan import Refused
from aggregator.lakehouse.spark_master import MasterUnreachable
from aggregator.lakehouse.stopping import CUT_SHORT, Stopped, StopSignal
from aggregator.lakehouse.stream_reader import ReadFailed
from shared.nats_connection import ConnectFailed

_PASSING = (
    AlreadyRunning,
    ConnectFailed,
    JarsUnavailable,
    JavaUnavailable,
    MasterUnreachable,
    ReadFailed,
    Refused,
    SecretUnreadable,
    TablesUnreadable,
)
"""What passes by itself, and what an operator mends meanwhile."""

Tell = Callable[[job.RollupResult], None]
Complain = Callable[[str], None]


def roll_up_every(
    settings: AggregatorSettings, interval: float, stop: StopSignal, tell: Tell, complain: Complain
) -> None:
    """Roll up every ``interval`` seconds, at once where a run took longer, until asked to stop.

    Each run is told or complained of, with one line. Raise what does not pass.
    """
    spark: SparkSession | None = None
    while not stop.is_asked():
        next_at = time.monotonic() + interval
        try:
            result = job.find_nothing_new(settings, stop.check)
            if result is None:
                if spark is None:
                    spark = job.start_session(settings, stop.check)
                result = job.roll_up_in(spark, settings, job.RollupRequest(), stop.check, stop.check)
            tell(result)
        except Stopped:
            return
        except (*_PASSING, *CUT_SHORT, OSError) as error:
            if stop.is_asked() and isinstance(error, CUT_SHORT):
                return
            line = str(error) if isinstance(error, _PASSING) else _line_of_what_passes(error)
            if line is None:
                raise
            complain(line)
        stop.wait(next_at - time.monotonic())


def _line_of_what_passes(error: Exception) -> str | None:
    return None if did_not_start(error) or how_it_ended(error) else explained(error)

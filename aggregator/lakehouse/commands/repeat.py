"""Roll up again and again in one Spark, and outlive what passes: cut links, dead servers, full disks, other jobs.

Spark is started when there is something to do for the first time. Where nothing is new, it is left alone.

What does not pass ends the service: sums that do not add up, a Spark that fails for a reason that is not known to pass,
and a JVM that has ended, or does not start. Its supervisor starts it anew.
"""

import time
from collections.abc import Callable

from pyspark.sql import SparkSession

from aggregator.archive.reader import ReadFailed
from aggregator.config import AggregatorSettings
from aggregator.lakehouse import rollup
from aggregator.lakehouse.archive.reading_plan import Refused
from aggregator.lakehouse.commands.failures import explained
from aggregator.lakehouse.spark.jars import JarsUnavailable
from aggregator.lakehouse.spark.java import JavaUnavailable
from aggregator.lakehouse.spark.master import MasterUnreachable
from aggregator.lakehouse.spark.process import did_not_start, how_it_ended
from aggregator.lakehouse.spark.stop_signal import CUT_SHORT, Stopped, StopSignal
from aggregator.lakehouse.warehouse.catalog_settings import SecretUnreadable
from aggregator.lakehouse.warehouse.errors import AlreadyRunning, TablesUnreadable
from shared.nats.connection import ConnectFailed

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

Tell = Callable[[rollup.RollupResult], None]
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
            result = rollup.find_nothing_new(settings, stop.check)
            if result is None:
                if spark is None:
                    spark = rollup.start_session(settings, stop.check)
                result = rollup.roll_up_in(spark, settings, rollup.RollupRequest(), stop.check, stop.check)
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

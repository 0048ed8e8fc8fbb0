"""Settings of a Spark that computes little: what its JVM saves in long runs costs a test more than it gives."""

import json
from collections.abc import Mapping

QUICK_JAVA = "-Duser.timezone=UTC -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Without the second compiler: half a rollup's time went into machine code that pays in long runs only."""

SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    # The first compiler alone has room for one rollup: later ones would throw out what they need, and make it again.
    "spark.driver.extraJavaOptions": f"{QUICK_JAVA} -XX:ReservedCodeCacheSize=240m",
}


def spark_block(settings: Mapping[str, str] = SPARK) -> str:
    """Write ``settings`` as a block of an aggregator's settings file."""
    return "\n".join(
        ["[lakehouse.spark]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()), ""]
    )

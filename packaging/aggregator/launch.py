"""Start the aggregator from its own tree: nothing of the host's other Python packages is seen."""

import os
import sys

TREES = ["/usr/lib/muster-aggregator/site", "/usr/lib/muster-aggregator/spark"]

sys.argv[0] = "muster-aggregator"
sys.path[:0] = TREES
# Spark starts processes of its own, which find the same.
os.environ["PYTHONPATH"] = os.pathsep.join(TREES)

from aggregator.cli import main  # noqa: E402 - it is found there

main()

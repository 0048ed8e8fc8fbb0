"""Which worker takes which tests, and in what order: Spark and whole fleets take all they get, most others wait.

A worker takes a file whole, and half of all files that need Spark. (pytest-xdist's own groups are written behind a
test's id, which pytest 9.2 does not let it do any more.)
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

TESTS = Path(__file__).parents[1]
BUSY_FOLDERS = ("acceptance", "lakehouse")
LONGEST = (
    "test_exactly_once",
    "test_imports",
    "test_incremental",
    "test_stopping",
    "test_sql_server",
    "test_maintain",
    "test_loop",
    "test_cluster",
    "test_demo",
    "test_fault_schedule",
    "test_two_agents",
    "test_pair_faults",
)
"""The longest come first."""
SPARKS = 2
"""So many workers start a Spark of their own: a start costs as much as several tests."""
_ASKS_FOR_SPARK = re.compile(r"\b(SparkSession|Lakehouse)\b")


class WholeFiles(LoadScopeScheduling):  # type: ignore[misc]
    """Hand out files, and all that one Spark serves as if it were one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return _sparks().get(path.rpartition("/")[2], path)


def in_order(files: Iterable[Path]) -> list[Path]:
    """Give test files as they are best begun: those that need Spark, then the busy ones, each with some that wait.

    Spark's go first, for a worker that has one long test takes its next file early, and nobody else could have that.
    """
    found = list(files)
    with_spark = [path for path in found if path.name in _sparks()]
    busy = [path for path in found if path.parent.name in BUSY_FOLDERS and path not in with_spark]
    for each in (with_spark, busy):
        each.sort(key=_length)
    rest = [path for path in found if path not in busy and path not in with_spark]
    waiting, each_takes = iter(rest), -(-len(rest) // max(len(busy), 1))
    return [*with_spark, *(path for one in busy for path in (one, *islice(waiting, each_takes))), *waiting]


@cache
def _sparks() -> dict[str, str]:
    """Name the Spark that serves a file."""
    files = [path for path in (TESTS / "lakehouse").glob("test_*.py") if _ASKS_FOR_SPARK.search(path.read_text())]
    files.sort(key=lambda path: (_length(path), path.name))
    return {path.name: f"spark {number % SPARKS}" for number, path in enumerate(files)}


def _length(path: Path) -> int:
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)

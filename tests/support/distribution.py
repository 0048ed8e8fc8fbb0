"""Which worker takes which tests, and in what order: Spark and whole fleets take all they get, most others wait.

A worker takes half of all files that need Spark, any other file whole, and of a file that waits, and whose tests share
nothing, each test by itself: no long file is left over at the end. (pytest-xdist's own groups are written behind a
test's id, which pytest 9.2 does not let it do any more.)
"""

import re
from collections.abc import Iterable
from functools import cache
from itertools import chain, zip_longest
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
BUSY_FOLDERS = ("acceptance", "lakehouse")
WAITING_FOLDERS = ("integration", "scenarios")
LONGEST = (
    "test_imports",
    "test_exactly_once",
    "test_cluster",
    "test_conditions",
    "test_grid5000",
    "test_fault_schedule",
    "test_incremental",
    "test_demo",
    "test_times_to_come",
    "test_rollup",
    "test_losses",
    "test_maintain",
    "test_stopping",
    "test_two_agents",
    "test_maintenance",
    "test_contests",
    "test_pair",
    "test_layout",
    "test_silent_region",
    "test_truth_clocks",
    "test_missing_advisories",
    "test_reader_key",
    "test_restored_archive",
    "test_copied",
    "test_agreement",
    "test_check",
    "test_run",
    "test_catalog_file",
    "test_bootstrap",
    "test_pair_faults",
)
"""The longest come first, as they took on two cores: from six minutes down to half a minute."""
SPARKS = 2
"""So many workers start a Spark of their own: a start costs as much as several tests."""
_ASKS_FOR_SPARK = re.compile(r"\b(SparkSession|Lakehouse)\b")
_SHARES = re.compile(r"scope=\"(module|session)\"")


class WholeFiles(LoadScopeScheduling):  # type: ignore[misc]
    """Hand out files, all that one Spark serves as if it were one, and the tests of some files one by one."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return nodeid if _is_divided(path) else _sparks().get(ROOT / path, path)


def in_order(files: Iterable[Path]) -> list[Path]:
    """Give test files as they are best begun: those that need Spark, then busy ones and ones that wait by turns.

    Spark's go first, for a worker that has one long test takes its next file early, and nobody else could have that.
    The others come last: they are short.
    """
    found = sorted(files, key=_length)
    with_spark = [path for path in found if path in _sparks()]
    busy = [path for path in found if _folder(path) in BUSY_FOLDERS and path not in with_spark]
    waiting = [path for path in found if _folder(path) in WAITING_FOLDERS]
    by_turns = [path for path in chain(*zip_longest(waiting, busy)) if path is not None]
    return [*with_spark, *by_turns, *(path for path in found if path not in {*with_spark, *by_turns})]


@cache
def _sparks() -> dict[Path, str]:
    """Name the Spark that serves a file."""
    files = [path for path in (TESTS / "lakehouse").rglob("test_*.py") if _ASKS_FOR_SPARK.search(path.read_text())]
    files.sort(key=lambda path: (_length(path), path.name))
    return {path: f"spark {number % SPARKS}" for number, path in enumerate(files)}


@cache
def _is_divided(path: str) -> bool:
    return _folder(ROOT / path) in WAITING_FOLDERS and not _SHARES.search((ROOT / path).read_text())


def _folder(path: Path) -> str:
    """Name the folder of ``tests`` that a file is in; "" for a file elsewhere."""
    return path.relative_to(TESTS).parts[0] if path.is_relative_to(TESTS) else ""


def _length(path: Path) -> int:
    return LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST)

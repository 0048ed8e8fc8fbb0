"""What holds for every test: failures of Hypothesis can be played again, and machines may be slow."""

import signal
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import settings

# The seed of a run stands in its first lines (pytest-randomly), the example that failed in its last.
settings.register_profile("muster", deadline=None, print_blob=True)
settings.load_profile("muster")

# A shell starts what it runs in the background with SIGINT ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Spark and whole fleets take all the processor they get; most others wait. The longest come first.
BUSY_FOLDERS = ("acceptance", "lakehouse")
LONGEST = (
    "test_imports",
    "test_exactly_once",
    "test_sql_server",
    "test_incremental",
    "test_stopping",
    "test_maintain",
    "test_loop",
    "test_cluster",
    "test_demo",
    "test_fault_schedule",
    "test_two_agents",
    "test_pair_faults",
)
SPARKS = 2
"""So many workers start a Spark of their own: a start costs as much as several tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread the busy files among the others, after pytest-randomly has shuffled them: workers do both at a time.

    A worker takes a file whole, and half of all files that need Spark: these begin first, for a worker that has one
    long test takes its next file early, and nobody else could have that. pytest-xdist reads the groups after this.
    """
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    busy = [path for path in files if path.parent.name in BUSY_FOLDERS]
    busy.sort(key=lambda path: LONGEST.index(path.stem) if path.stem in LONGEST else len(LONGEST))
    with_spark = [path for path in busy if any("spark" in getattr(item, "fixturenames", ()) for item in files[path])]
    busy = [path for path in busy if path not in with_spark]
    waiting = iter([path for path in files if path not in busy and path not in with_spark])
    each = -(-(len(files) - len(busy) - len(with_spark)) // max(len(busy), 1))
    order = [*with_spark, *(path for one in busy for path in (one, *islice(waiting, each))), *waiting]
    items[:] = [item for path in order for item in files[path]]
    for path, tests in files.items():
        group = f"spark-{with_spark.index(path) % SPARKS}" if path in with_spark else path.stem
        for item in tests:
            item.add_marker(pytest.mark.xdist_group(group))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a schedule of faults be played again, or be made longer."""
    faults = parser.getgroup("schedule of faults", "tests/acceptance/test_fault_schedule.py")
    faults.addoption("--seed", type=int, default=None, help="play this schedule; default: one that was never played")
    faults.addoption("--faults", type=int, default=200, help="how many faults; default: %(default)s")

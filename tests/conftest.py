"""What holds for every test: failures of Hypothesis can be played again, and machines may be slow."""

import asyncio
import inspect
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from shared.tasks import cancel_all

# What a helper asserts tells its values too.
pytest.register_assert_rewrite("tests.support")

from tests.support.distribution import WholeFiles, in_order  # noqa: E402

# What a run leaves for the second run of the tests that failed.
pytest_plugins = ["tests.support.reruns"]

# The seed of a run stands in its first lines (pytest-randomly), the example that failed in its last.
settings.register_profile("muster", deadline=None, print_blob=True)
settings.load_profile("muster")

# A shell starts what it runs in the background with SIGINT ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
async def tasks_end() -> AsyncIterator[None]:
    """End what a test, or a fixture of it, left running: the loop waits for that, but cancels it once only."""
    yield
    await cancel_all(asyncio.all_tasks() - {asyncio.current_task()})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have every test's tasks end. Begin with what takes longest, after pytest-randomly has shuffled it."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.fixturenames.insert(0, tasks_end.__name__)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    items[:] = [item for path in in_order(files) for item in files[path]]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> WholeFiles:
    """Let each worker take whole files."""
    return WholeFiles(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the schedule of faults and of the scenarios."""
    faults = parser.getgroup("schedule of faults", "tests/acceptance/test_fault_schedule.py")
    faults.addoption("--seed", type=int, default=None, help="play this schedule; default: one that was never played")
    faults.addoption("--faults", type=int, default=120, help="how many faults; default: %(default)s")
    scenarios = parser.getgroup("scenarios", "tests/scenarios")
    scenarios.addoption("--stay", action="store_true", help="keep a scenario's servers at its end, until Ctrl-C")

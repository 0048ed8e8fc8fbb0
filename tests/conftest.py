"""What holds for every test: failures of Hypothesis can be played again, and machines may be slow."""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The seed of a run stands in its first lines (pytest-randomly), the example that failed in its last.
settings.register_profile("muster", deadline=None, print_blob=True)
settings.load_profile("muster")

# A shell starts what it runs in the background with SIGINT ignored, and programs under test would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Folders whose tests take longest: workers that begin with them end together.
SLOW = ("acceptance", "lakehouse")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow folders first, after pytest-randomly has shuffled what is in them."""
    tests = Path(__file__).parent
    items.sort(key=lambda item: item.path.relative_to(tests).parts[0] not in SLOW)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a schedule of faults be played again, or be made longer."""
    faults = parser.getgroup("schedule of faults", "tests/acceptance/test_fault_schedule.py")
    faults.addoption("--seed", type=int, default=None, help="play this schedule; default: one that was never played")
    faults.addoption("--faults", type=int, default=200, help="how many faults; default: %(default)s")

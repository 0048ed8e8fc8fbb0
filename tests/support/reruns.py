"""Second run of the few tests that failed in a whole run, which tells a flaky test from a broken one.

As a pytest plugin (``tests/conftest.py``) it adds ``--outcome FILE``, where a run leaves the outcome of each test. As a
program it reads that file, runs each test that failed again in a process of its own, and ends with 0 if all of them
pass: then the machine was busy, or a test is flaky (``tests/flaky.md``). A run that was interrupted, found no tests or
failed in another way than by failed tests is never repeated.
"""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import msgspec
import pytest

MOST_RERUNS = 5
"""More failures than these are a broken change or a broken machine."""

TestOutcome = Literal["passed", "failed", "skipped", "xfailed"]


class Outcome(msgspec.Struct):
    """Content of the ``--outcome`` file of one pytest process."""

    exit_status: int
    is_complete: bool
    """False if tests that were collected did not run, as with ``-x`` or without a worker to run them."""
    tests: dict[str, TestOutcome]
    """By node id. The id of a file that could not be collected counts as a failed test."""

    def select(self, outcome: TestOutcome) -> list[str]:
        """Return the ids of the tests with this outcome."""
        return [name for name, each in self.tests.items() if each == outcome]


class OutcomeRecorder:
    """Collector of the reports of one run; under pytest-xdist it lives in the controller alone."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, TestOutcome] = {}
        self._collected: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Keep the ids of the tests that this process is to run: none under pytest-xdist."""
        self._collected.update(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Keep the ids of the tests that the workers are to run."""
        self._collected.update(ids)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the worst outcome of a test's setup, call and teardown; a crash of a worker is a failed report."""
        if report.failed or self._tests.get(report.nodeid) == "failed":
            self._tests[report.nodeid] = "failed"
        elif report.skipped:
            self._tests[report.nodeid] = "xfailed" if hasattr(report, "wasxfail") else "skipped"
        elif report.when == "call":
            self._tests[report.nodeid] = "passed"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Count a file that could not be collected as a failed test."""
        if report.failed:
            self._tests[report.nodeid] = "failed"

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the outcome of the run."""
        is_complete = self._collected <= self._tests.keys()
        self._file.write_bytes(msgspec.json.encode(Outcome(int(exitstatus), is_complete, self._tests)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--outcome``."""
    parser.addoption("--outcome", type=Path, help="leave the outcome of each test here, for tests.support.reruns")


def pytest_configure(config: pytest.Config) -> None:
    """Record the outcome of the run if ``--outcome`` asks for it."""
    file = config.getoption("outcome")
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(OutcomeRecorder(file))


def read_outcome(file: Path) -> Outcome | None:
    """Return the outcome in ``file``; None if the run ended before it wrote one."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Outcome)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def is_repeatable(outcome: Outcome | None) -> bool:
    """Return True if a run failed by a few failed tests alone, and ran all others."""
    return (
        outcome is not None
        and outcome.exit_status == pytest.ExitCode.TESTS_FAILED
        and outcome.is_complete
        and 0 < len(outcome.select("failed")) <= MOST_RERUNS
    )


def passes_alone(name: str) -> bool:
    """Run one test in a process of its own. A test that is skipped or is not found does not pass."""
    with TemporaryDirectory() as directory:
        file = Path(directory) / "outcome"
        subprocess.run([sys.executable, "-m", "pytest", "--outcome", file, name], check=False)
        outcome = read_outcome(file)
    return outcome is not None and outcome.exit_status == pytest.ExitCode.OK and bool(outcome.select("passed"))


def closing_line(outcome: Outcome, seconds: float) -> str:
    """Return a line in the form of pytest's closing line, for a run whose failed tests passed later.

    >>> tests = {"a": "passed", "b": "failed", "c": "skipped"}
    >>> closing_line(Outcome(1, True, tests), 61)
    '2 passed, 1 skipped, 1 rerun in 61.00s'
    """
    rerun = len(outcome.select("failed"))
    counts = {
        "passed": len(outcome.select("passed")) + rerun,
        "skipped": len(outcome.select("skipped")),
        "xfailed": len(outcome.select("xfailed")),
        "rerun": rerun,
    }
    return ", ".join(f"{count} {word}" for word, count in counts.items() if count) + f" in {seconds:.2f}s"


def main(file: Path, began_at: float) -> int:
    """Run the tests that failed again; return 0 if each of them passes."""
    outcome = read_outcome(file)
    if outcome is None or not is_repeatable(outcome):
        return 1
    failed = outcome.select("failed")
    for name in failed:
        print(f"run again, alone: {name}", flush=True)
        if not passes_alone(name):
            print(f"failed again: {name}", flush=True)
            return 1
    for name in failed:
        print(f"flaky: {name}")
    print(closing_line(outcome, time.time() - began_at))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))

"""Whatever fails, whenever, in whatever order: nothing is lost, nothing comes twice, nothing is wrong."""

import faulthandler
import random
import sys
from pathlib import Path

import pytest

from tests.support.fault_run import run_faults

# How long a test may take before pytest ends the run is set for schedules of the default length.
PATIENCE = 600.0
SECONDS_PER_FAULT = 3.0


async def test_a_schedule_of_faults_loses_nothing_says_nothing_twice_and_nothing_wrong(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, count = pytestconfig.getoption("--seed"), pytestconfig.getoption("--faults")
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(max(PATIENCE, count * SECONDS_PER_FAULT), exit=True, file=sys.__stderr__)

    def say(line: str) -> None:
        with capsys.disabled():
            print(line)

    say("")
    run = await run_faults(tmp_path, seed, count, say)
    report = "\n".join(run.report())
    say(report)
    assert run.verdict.is_clean, report

"""Play a schedule of faults in a test: say what is done while it is done, and end a run that hangs with its stacks."""

import faulthandler
import sys
from pathlib import Path

import pytest

from tests.support.faults.run import FaultRun, run_faults

# How long a test may take before pytest ends the run is set for schedules of the default length.
PATIENCE = 3000.0
SECONDS_PER_FAULT = 3.0


async def assert_clean(
    directory: Path, seed: int, count: int, capsys: pytest.CaptureFixture[str], *, pair: bool = False
) -> FaultRun:
    """Play ``count`` faults of ``seed``; nothing may be lost, duplicated or wrong."""
    assert sys.__stderr__ is not None
    faulthandler.dump_traceback_later(max(PATIENCE, count * SECONDS_PER_FAULT), exit=True, file=sys.__stderr__)

    def say(line: str) -> None:
        with capsys.disabled():
            print(line)

    say("")
    run = await run_faults(directory, seed, count, say, pair=pair)
    report = "\n".join(run.report())
    say(report)
    assert run.verdict.is_clean, report
    return run

"""Whatever fails while two agents serve a site: nothing is lost, nothing comes twice, nothing is contradicted."""

import random
from pathlib import Path

import pytest

from tests.support.faults.in_test import assert_clean
from tests.support.faults.run import CERTAIN_TAKEOVERS

SHARE = 6
"""One fault of a schedule for each of these is also played to a pair."""


async def test_a_schedule_of_faults_played_to_a_pair_is_one_history_without_a_hole(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, count = pytestconfig.getoption("--seed"), pytestconfig.getoption("--faults")
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    run = await assert_clean(tmp_path, seed, max(count // SHARE, 1), capsys, pair=True)
    assert run.verdict.counts["takeovers"] >= CERTAIN_TAKEOVERS, "\n".join(run.report())

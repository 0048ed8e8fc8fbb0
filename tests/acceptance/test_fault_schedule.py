"""Whatever fails, whenever, in whatever order: nothing is lost, nothing comes twice, nothing is wrong."""

import random
from pathlib import Path

import pytest

from tests.support.faults.in_test import assert_clean


async def test_a_schedule_of_faults_loses_nothing_says_nothing_twice_and_nothing_wrong(
    tmp_path: Path, pytestconfig: pytest.Config, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, count = pytestconfig.getoption("--seed"), pytestconfig.getoption("--faults")
    if seed is None:
        seed = random.SystemRandom().randrange(1_000_000)
    await assert_clean(tmp_path, seed, count, capsys)

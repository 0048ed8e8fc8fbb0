"""A narrator for each scenario, which begins with the first lines of its module."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.command_line.terminal import width
from tests.scenarios.narrator import Narrator


@pytest.fixture
def narrator(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Narrator]:
    narrator = Narrator(width=width(), stays=request.config.getoption("--stay"))
    for paragraph in (request.module.__doc__ or "").strip().split("\n\n"):
        narrator.chapter(" ".join(paragraph.split()))
    yield narrator
    narrator.chapter(f"{narrator.step_count} steps as described; {tmp_path} keeps settings, stores and maps")

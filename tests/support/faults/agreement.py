"""Have the live service read what reaches the region while faults go on, and hold the tables against what it says."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.command_process import running
from tests.support.faults.stage import FLEET, FaultStage
from tests.support.topology.aggregator_command import muster

PAUSE = 1.0


@contextmanager
def live_service(stage: FaultStage) -> Iterator[Path]:
    """Run it on the region's own stream meanwhile; give its settings."""
    directory = stage.directory / "hub"
    directory.mkdir()
    config = directory / "aggregator.toml"
    config.write_text(
        f'[hub]\nservers = ["{stage.region.url}"]\n'
        f'[lakehouse]\npath = "lake"\nreport_stream = "{FLEET}"\narchive_stream = "{FLEET}"\n'
        '[live]\nlisten = "127.0.0.1:0"\n'
    )
    with running(directory, "serve", "--config", str(config)) as process:
        process.wait_for("serving http://")
        yield config


async def agreement(config: Path) -> tuple[str, bool]:
    """Roll up, and compare where the tables stand then; give what ``verify`` says, and whether nothing differs."""
    rolled_up = await muster("rollup", "--config", config)
    if rolled_up.returncode:
        return f"rollup: {rolled_up.stderr}", False
    while True:
        told = await muster("verify", "--config", config)
        if "behind the tables" not in told.stderr:
            return told.stdout or told.stderr, told.returncode == 0
        await asyncio.sleep(PAUSE)

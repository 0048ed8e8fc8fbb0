"""Run ``muster-aggregator`` as a person would."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


async def muster(
    *arguments: str | Path, module: str = "", environment: Mapping[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the command beside the servers and links of this process; ``module`` runs it, where that is not itself."""
    program = ["-m", module] if module else ["-c", "from aggregator.cli import main; main()"]
    command, surroundings = [sys.executable, *program, *arguments], {**os.environ, **(environment or {})}
    return await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=1200, check=False, env=surroundings
    )


async def ran(*arguments: str | Path) -> str:
    answer = await muster(*arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


async def refused(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    answer = await muster(*arguments)
    assert answer.returncode == 1, answer.stdout
    assert "Traceback" not in answer.stderr
    return answer

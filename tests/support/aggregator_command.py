"""Run ``muster-aggregator`` as a person would."""

import asyncio
import subprocess
import sys
from pathlib import Path


async def muster(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run the command beside the servers and links of this process."""
    program = "from aggregator.cli import main; main()"
    command = [sys.executable, "-c", program, *arguments]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=600, check=False)


async def ran(*arguments: str | Path) -> str:
    answer = await muster(*arguments)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


async def refused(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    answer = await muster(*arguments)
    assert answer.returncode == 1, answer.stdout
    assert "Traceback" not in answer.stderr
    return answer

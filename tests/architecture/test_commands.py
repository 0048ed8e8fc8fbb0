"""The two commands are there, and starting one does not load what only some of its work needs."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
HEAVY = ("duckdb", "numpy", "pandas", "py4j", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy")


@pytest.mark.parametrize("entry_point", COMMANDS.values(), ids=COMMANDS.keys())
def test_command_starts_without_the_lakehouse_in_memory(entry_point: str) -> None:
    module, function = entry_point.split(":")
    program = f"import sys, {module}; assert callable({module}.{function}); print(*sys.modules)"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode == 0, answer.stderr
    assert set(HEAVY) & set(answer.stdout.split()) == set()


def test_commands_have_the_names_that_the_documentation_uses() -> None:
    assert set(COMMANDS) == {"muster-agent", "muster-aggregator"}

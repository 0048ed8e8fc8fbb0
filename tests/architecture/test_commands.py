"""The two commands are there, and starting one does not load what only some of its work needs."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
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


@pytest.mark.parametrize("entry_point", ["edge_agent.cli:cli", "aggregator.cli:cli"])
def test_help_lists_every_command_by_a_whole_sentence(entry_point: str) -> None:
    module, group = entry_point.split(":")
    cut_off = [
        text for text in helps(getattr(import_module(module), group)) if re.search(r"\w\.\.\.$", text, re.MULTILINE)
    ]
    assert cut_off == []


def helps(command: click.Command) -> Iterator[str]:
    """Give what the groups below a command, and itself if it is one, say of their commands."""
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=command.name)
        formatter = click.HelpFormatter(width=80)
        command.format_commands(context, formatter)
        yield formatter.getvalue()
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from helps(found)

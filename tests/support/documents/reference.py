"""Write docs/reference/ out of the code: ``make docs``, after a change of what the pages describe.

A test fails until that was done.
"""

from collections.abc import Callable
from pathlib import Path

from aggregator.cli import cli as aggregator_cli
from edge_agent.cli import cli as agent_cli
from tests.support.documents.command_reference import command_reference
from tests.support.documents.condition_reference import condition_reference
from tests.support.documents.hub_condition_reference import hub_condition_reference
from tests.support.documents.metric_reference import metric_reference
from tests.support.documents.settings_reference import FILES, settings_reference
from tests.support.documents.table_reference import table_reference
from tests.support.documents.version_reference import version_reference

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "reference"

PAGES: dict[str, Callable[[], str]] = {
    "tables.md": table_reference,
    "conditions.md": condition_reference,
    "hub_conditions.md": hub_condition_reference,
    "metrics.md": metric_reference,
    "versions.md": version_reference,
    "muster-agent.md": lambda: command_reference(agent_cli, "muster-agent"),
    "muster-aggregator.md": lambda: command_reference(aggregator_cli, "muster-aggregator"),
    **{file.page: lambda file=file: settings_reference(file) for file in FILES},  # type: ignore[misc]
}


def write() -> None:
    """Write every page."""
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write()

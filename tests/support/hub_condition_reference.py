"""Write docs/reference/hub_conditions.md out of the catalogue: ``check`` and the manual have one text.

Run as ``make docs`` after a change of the catalogue; a test fails until that was done.
"""

from collections.abc import Iterator
from pathlib import Path

from aggregator.topology.report.findings import CATALOGUE, Kind

PATH = Path(__file__).resolve().parents[2] / "docs" / "reference" / "hub_conditions.md"

_INTRODUCTION = """\
# What `check` finds

Written from `aggregator/topology/report/findings.py` by `make docs`.
Whatever `muster-aggregator check` finds wrong is one of these; `--json` has the name, with the remedy. What warns
from where on: [operators.md](../operators.md#check).
"""


def hub_condition_reference() -> str:
    """Give the whole document."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for kind in CATALOGUE.values():
        yield from _section(kind)


def _section(kind: Kind) -> Iterator[str]:
    severities = " or ".join(severity.name.lower() for severity in kind.severities)
    yield f"## `{kind.name}`\n"
    yield f"{kind.meaning} ({severities})\n"
    yield f"*What to do:* {kind.remedy}.\n"


if __name__ == "__main__":
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(hub_condition_reference(), encoding="utf-8")

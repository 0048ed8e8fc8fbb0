"""Describe what ``check`` can find, out of the catalogue: ``check`` and the manual have one text."""

from collections.abc import Iterator

from aggregator.topology.report.findings import CheckKind

_INTRODUCTION = """\
# What `check` finds

Written from `aggregator/topology/report/findings.py` by `make docs`.
Whatever `muster-aggregator check` finds wrong is one of these; `--json` has the name, with the remedy. What warns
from where on:
[How do I monitor the hub?](../howto/hub/check.md).
"""


def hub_condition_reference() -> str:
    """Give the whole document."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for kind in CheckKind:
        yield from _section(kind)


def _section(kind: CheckKind) -> Iterator[str]:
    severities = " or ".join(severity.name.lower() for severity in kind.severities)
    yield f"## `{kind.stable_name}`\n"
    yield f"{kind.meaning} ({severities})\n"
    yield f"*What to do:* {kind.remedy}.\n"

"""Describe what can be wrong with an agent, out of the catalogue: agent and manual have one text."""

from collections.abc import Iterator

from edge_agent.observability.conditions import CATALOGUE, Kind, Severity

_INTRODUCTION = """\
# Conditions of an agent

Written from `edge_agent/observability/conditions.py` by `make docs`.
Whatever is wrong with an agent is one of these, under the same name in `muster-agent status` (also `--json` and
`--check`), in `doctor`, on `/readyz`, in the metric
`muster_agent_condition{condition="...",severity="...",stream="..."}`, which is 1 while it holds and absent else, and
in the log (`condition=...`), which has one line when it begins and one when it is over.

While there is an **error** the agent is not useful: `/readyz` answers 503, `status --check` ends with 1 (2 where no
agent runs). A **warning** makes `status --check` end with 1; `/readyz` stays 200.
"""
_PARTS = ((Severity.ERROR, "Errors"), (Severity.WARNING, "Warnings"))


def condition_reference() -> str:
    """Give the whole document."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    for severity, title in _PARTS:
        yield f"## {title}\n"
        for kind in CATALOGUE.values():
            if kind.severity is severity:
                yield from _section(kind)


def _section(kind: Kind) -> Iterator[str]:
    yield f"### `{kind.name}`\n"
    yield f"{kind.meaning}\n"
    yield f"*What to do:* {kind.remedy}.\n"

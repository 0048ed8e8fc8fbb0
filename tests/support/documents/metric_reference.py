"""Describe the agent's metrics, out of the code that gives them."""

import tomllib
from collections.abc import Iterator

from edge_agent.ingest.port import Progress
from edge_agent.observability.conditions import Condition, Severity
from edge_agent.observability.health import PartStatus
from edge_agent.observability.metrics import COUNTED, Metric, Numbers, metrics_of
from edge_agent.observability.status_board import AgentStatus, PairPhase, PairStatus
from edge_agent.observability.status_report import LaneReport
from edge_agent.runtime.process import Usage
from tests.support.documents.settings_reference import NOTES

_INTRODUCTION = """\
# The agent's metrics

What `/metrics` of an agent shows, in Prometheus' text format. Written from the code by `make docs`. What to alert on:
[Monitor an agent](../howto/agent/monitor.md).

Every metric has the labels `region` and `site` besides; `stream` is the block's name. All causes that there can be are
there from the start, at 0. `process_cpu_seconds_total`, `process_resident_memory_bytes` and
`process_start_time_seconds` are those of every Prometheus client.
"""
# Everything that a metric can depend on is there: a block that samples, both links, a pair, what waits.
_NUMBERS = Numbers(
    at=2,
    agent=AgentStatus("dub1-a", "eu-west", "dub1", "0.1.0", "6f1c", 42, 1, 1, 1),
    parts={name: PartStatus("connected", "", 1) for name in ("source of nodes", "stream nodes", "upstream")},
    progress={"nodes": Progress(0, 1, 0, 1, {"heard": 1, "stale": 1}, "sample", 1)},
    counters={"nodes": {}},
    lanes={"advisories": LaneReport(0, 0)},
    reconnects={},
    acknowledged=0,
    refused=0,
    commits=0,
    failed_commits=0,
    commit_seconds=0.0,
    usage=Usage(0, 0.0),
    conditions=(Condition("link_down", Severity.ERROR, "source of nodes", "nodes", "", ""),),
    pair=PairStatus("dub1-a", "dub1-b", PairPhase.LEADING, other_heard_at=1),
)


def metric_reference() -> str:
    """Give the whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield _INTRODUCTION
    yield "| metric | kind | labels | meaning |\n| --- | --- | --- | --- |"
    for metric in sorted(metrics_of(_NUMBERS), key=lambda metric: metric.name):
        yield f"| `{metric.name}` | {metric.kind} | {_labels(metric)} | {metric.help} |"
    yield "\n## What is counted, by cause\n"
    yield "`muster-agent status` shows the same counters, by the first column.\n"
    yield "| line of `status` | metric | cause | meaning |\n| --- | --- | --- | --- |"
    notes = cause_notes()
    for what, counted in sorted(COUNTED.items()):
        for cause in dict.fromkeys(counted.causes):
            yield f"| `{what}` | `{counted.metric}` | `{cause}` | {notes.get(what, {}).get(cause, '')} |"
    yield ""


def cause_notes() -> dict[str, dict[str, str]]:
    """Give what is to be said of a cause beside its name: by what is counted, then by cause."""
    notes: dict[str, dict[str, str]] = tomllib.loads(NOTES.read_text(encoding="utf-8"))["causes"]
    return notes


def _labels(metric: Metric) -> str:
    names = dict.fromkeys(name for sample in metric.samples for name in sample.labels)
    return ", ".join(f"`{name}`" for name in names)

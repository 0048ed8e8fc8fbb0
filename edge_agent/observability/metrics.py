"""Name the agent's metrics. Base units, by Prometheus' conventions; every sample bears region and site.

Counters of a block are one metric for each thing counted, by its cause. All causes that there can be are shown from the
start, at 0: a rate over a counter that appears with its first event would miss that event.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from edge_agent.core.decisions import BlindCause, Counters
from edge_agent.core.observation import ProofCause, RejectReason
from edge_agent.core.records import SizeLimit
from edge_agent.ingest.port import Progress
from edge_agent.observability.conditions import Condition, errors
from edge_agent.observability.health import LOOKED_LATELY, PartStatus, block_of
from edge_agent.observability.status_board import UPSTREAM, AgentStatus, PairPhase, PairStatus
from edge_agent.observability.status_report import LaneReport
from edge_agent.policy.orders import TOO_OLD
from edge_agent.runtime.process import Usage
from edge_agent.store.port import LaneDepth
from shared.identifiers import AdvisoryKind
from shared.instants import SECOND
from shared.subjects import RecordType
from shared.tolerant_json import Deviation
from shared.wire import ForwardReason

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "summary"]


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One value; ``suffix`` is ``_sum`` or ``_count`` of a summary."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Metric(msgspec.Struct, frozen=True):
    """One metric with its help text and its samples."""

    name: str
    kind: Kind
    help: str
    samples: Iterable[Sample]


def expose(metrics: Iterable[Metric], common: Mapping[str, str]) -> str:
    """Write metrics in Prometheus' text format 0.0.4, with ``common`` labels on every sample.

    Those without a sample are left out.
    """
    return "".join(f"{line}\n" for metric in metrics for line in _lines(metric, common))


def _lines(metric: Metric, common: Mapping[str, str]) -> Iterator[str]:
    samples = list(metric.samples)
    if not samples:
        return
    yield f"# HELP {metric.name} {_escape(metric.help)}"
    yield f"# TYPE {metric.name} {metric.kind}"
    for sample in samples:
        labels = ",".join(f'{name}="{_quote(value)}"' for name, value in {**common, **sample.labels}.items())
        yield f"{metric.name}{sample.suffix}{{{labels}}} {_number(sample.value)}"


def _number(value: float) -> str:
    """Write whole numbers without a fraction, others so that they read back the same."""
    return str(int(value)) if value == int(value) else repr(value)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quote(text: str) -> str:
    return _escape(text).replace('"', '\\"')


class BlockCounter(msgspec.Struct, frozen=True):
    """One thing that blocks count: its metric, the label of its causes, the possible causes, and its help text."""

    metric: str
    label: str
    causes: tuple[str, ...]
    help: str


# The causes of sampling, then those of the modes copy and relay.
_REJECTED = (*RejectReason, "subject_not_usable", "no_origin", "origin_disagrees")
_WITHHELD = ("max_age", RejectReason.TOO_MANY_SENDERS)
_SKIPPED = ("sampled", "repeated", "probe", "other_record", *RecordType)

COUNTED = {
    "valid": BlockCounter(
        "muster_agent_valid_total", "what", ("registrations",), "Messages read that were what their block expects."
    ),
    "tolerated": BlockCounter(
        "muster_agent_tolerated_total",
        "cause",
        tuple(Deviation),
        "Valid messages whose bodies are not JSON, though enough of it to be read.",
    ),
    "rejected": BlockCounter(
        "muster_agent_rejected_total", "cause", _REJECTED, "Messages that were not what their block expects."
    ),
    "forwarded": BlockCounter(
        "muster_agent_forwarded_total", "reason", tuple(ForwardReason), "Messages chosen to go on to the region."
    ),
    "withheld": BlockCounter(
        "muster_agent_withheld_total", "cause", _WITHHELD, "Messages that were not forwarded though they were due."
    ),
    "skipped": BlockCounter(
        "muster_agent_skipped_total", "cause", _SKIPPED, "Messages that a relay or a copy does not pass on."
    ),
    "probes": BlockCounter(
        "muster_agent_probes_total",
        "sender",
        tuple(ProofCause),
        "Messages read that are nobody's: probes, heartbeats, and markers of what was deleted.",
    ),
    "advisories": BlockCounter(
        "muster_agent_advisories_total", "kind", tuple(AdvisoryKind), "Advisories issued about senders."
    ),
    "blind": BlockCounter(
        "muster_agent_blind_spans_total", "cause", tuple(BlindCause), "Spans of time in which nobody saw the stream."
    ),
    "clamped": BlockCounter(
        "muster_agent_clamped_total",
        "cause",
        ("stored_earlier", "stored_ahead"),
        "Messages stored before an instant already complete, or by a clock that is ahead.",
    ),
    "policy": BlockCounter(
        "muster_agent_policy_total",
        "what",
        ("thresholds", "forward", "retire", "maintenance", "cancel", "unknown_sender", TOO_OLD),
        "Orders of the hub's policy that were taken; unknown_sender: those that name nobody known.",
    ),
    "compacted": BlockCounter(
        "muster_agent_compacted_total", "cause", ("newer_sample",), "Unsent registrations that a newer one replaced."
    ),
    "dropped": BlockCounter(
        "muster_agent_dropped_total",
        "cause",
        ("outbox_full", "too_large", "set_apart_full", "operator"),
        "Records given up before they reached the region.",
    ),
    "set_apart": BlockCounter(
        "muster_agent_set_apart_total",
        "limit",
        tuple(SizeLimit),
        "Copies and advisories that the region refused as too large, each once.",
    ),
}


class Numbers(msgspec.Struct, frozen=True):
    """Everything that metrics are made of, as it is at ``at`` by the agent's clock."""

    at: int
    agent: AgentStatus
    parts: Mapping[str, PartStatus]
    progress: Mapping[str, Progress]
    counters: Mapping[str, Counters]
    lanes: Mapping[str, LaneReport]
    reconnects: Mapping[str, int]
    acknowledged: int
    refused: int
    commits: int
    failed_commits: int
    commit_seconds: float
    usage: Usage
    conditions: Sequence[Condition] = ()
    pair: PairStatus | None = None
    set_apart: LaneDepth = LaneDepth()


def metrics_of(numbers: Numbers) -> Iterator[Metric]:
    yield from _agent(numbers)
    yield from _links(numbers)
    if numbers.pair is not None:
        yield from _pair(numbers.pair, numbers.at)
    yield from _reading(numbers.progress)
    yield from _counters(numbers.counters)
    yield from _outbox(numbers)


def _agent(numbers: Numbers) -> Iterator[Metric]:
    agent, usage = numbers.agent, numbers.usage
    named = {"agent": agent.agent, "version": agent.version, "boot_id": agent.boot_id}
    yield Metric("muster_agent_info", "gauge", "Which agent this is; always 1.", [Sample(named, 1)])
    is_useful = not errors(numbers.conditions)
    yield _one("muster_agent_useful", "gauge", "1 while /readyz answers 200.", is_useful)
    held = dict.fromkeys((each.name, str(each.severity), each.stream) for each in numbers.conditions)
    text = "1 for each condition that holds, by its name in the manual; none where all is well."
    holding = [Sample(dict(zip(("condition", "severity", "stream"), each, strict=True)), 1) for each in held]
    yield Metric("muster_agent_condition", "gauge", text, holding)
    started = agent.started_at / SECOND
    yield _one("process_start_time_seconds", "gauge", "When the process started, Unix time.", started)
    yield _one("process_resident_memory_bytes", "gauge", "Resident memory.", usage.resident_bytes)
    yield _one(
        "process_cpu_seconds_total", "counter", "Processor time used, in user and system mode.", usage.cpu_seconds
    )
    duration = [
        Sample({}, numbers.commit_seconds, "_sum"),
        Sample({}, numbers.commits + numbers.failed_commits, "_count"),
    ]
    name = "muster_agent_store_commit_duration_seconds"
    yield Metric(name, "summary", "How long transactions of the store took.", duration)
    text = "Transactions of the store that failed, as on a full disk."
    yield _one("muster_agent_store_commit_failures_total", "counter", text, numbers.failed_commits)


def _links(numbers: Numbers) -> Iterator[Metric]:
    links = {name: part for name, part in numbers.parts.items() if name == UPSTREAM or name.startswith("source of ")}
    up = [Sample(_link(name), part.is_working) for name, part in links.items()]
    yield Metric("muster_agent_link_up", "gauge", "1 while connected, and nothing is refused.", up)
    again = [Sample(_link(name), numbers.reconnects.get(name, 0)) for name in links]
    yield Metric("muster_agent_reconnects_total", "counter", "How often a link that was lost came back.", again)
    reading = [
        Sample({"stream": block_of(name)}, part.is_working)
        for name, part in numbers.parts.items()
        if name.startswith("stream ")
    ]
    yield Metric("muster_agent_stream_reading", "gauge", "1 while the stream is being read.", reading)
    text = "Records that the region has acknowledged."
    yield _one("muster_agent_publishes_acknowledged_total", "counter", text, numbers.acknowledged)
    text = "Publishes that the region has refused."
    yield _one("muster_agent_publishes_failed_total", "counter", text, numbers.refused)


def _pair(pair: PairStatus, at: int) -> Iterator[Metric]:
    members = {"member": pair.member, "other": pair.other}
    leads = [Sample(members, pair.phase == PairPhase.LEADING)]
    yield Metric("muster_agent_pair_leading", "gauge", "1 while this member of the pair leads.", leads)
    stands_by = [Sample(members, pair.phase == PairPhase.STANDING_BY)]
    yield Metric("muster_agent_pair_standing_by", "gauge", "1 while this member stands by, in step.", stands_by)
    text = "How often this member has taken over since it started."
    yield _one("muster_agent_pair_takeovers_total", "counter", text, pair.takeovers)
    if pair.other_heard_at:
        text = "How long ago the other member was heard."
        yield _one("muster_agent_pair_other_heard_age_seconds", "gauge", text, (at - pair.other_heard_at) / SECOND)


def _reading(progress: Mapping[str, Progress]) -> Iterator[Metric]:
    def each(name: str, text: str, value: Mapping[str, float]) -> Metric:
        return Metric(name, "gauge", text, [Sample({"stream": block}, number) for block, number in value.items()])

    seen = {block: reached for block, reached in progress.items() if reached.observed_through}
    behind = {block: reached.behind / SECOND for block, reached in seen.items()}
    yield each(
        "muster_agent_lag_messages",
        "Messages that the stream holds and that were not read; none where that cannot be asked.",
        {block: reached.pending for block, reached in progress.items() if reached.pending_ago <= LOOKED_LATELY},
    )
    yield each("muster_agent_observed_through_age_seconds", "How far observed_through lies behind the server.", behind)
    yield each(
        "muster_agent_observed_through_timestamp_seconds",
        "The instant up to which everything stored was read and decided, Unix time of the site's server.",
        {block: reached.observed_through / SECOND for block, reached in seen.items()},
    )
    senders = [
        Sample({"stream": block, "state": state}, count)
        for block, reached in progress.items()
        if reached.mode == "sample"
        for state, count in reached.senders.items()
    ]
    yield Metric("muster_agent_senders", "gauge", "Senders by state; retired ones are forgotten.", senders)


def _counters(counters: Mapping[str, Counters]) -> Iterator[Metric]:
    unforeseen = sorted({what for block in counters.values() for what in block} - COUNTED.keys())
    known = COUNTED | {
        what: BlockCounter(f"muster_agent_{what}_total", "cause", (), f"{what}, by cause.") for what in unforeseen
    }
    for what, counted in known.items():
        samples = [
            Sample({"stream": block, counted.label: cause}, count)
            for block, whole in counters.items()
            for cause, count in {**dict.fromkeys(counted.causes, 0), **whole.get(what, {})}.items()
        ]
        yield Metric(counted.metric, "counter", counted.help, samples)


def _outbox(numbers: Numbers) -> Iterator[Metric]:
    lanes = numbers.lanes
    rows = [Sample({"lane": lane}, waiting.rows) for lane, waiting in lanes.items()]
    yield Metric("muster_agent_outbox_rows", "gauge", "Records that wait for the region's acknowledgement.", rows)
    sizes = [Sample({"lane": lane}, waiting.size) for lane, waiting in lanes.items()]
    yield Metric("muster_agent_outbox_bytes", "gauge", "What waits for the region's acknowledgement.", sizes)
    ages = [
        Sample({"lane": lane}, max(numbers.at - waiting.oldest_at, 0) / SECOND if waiting.rows else 0)
        for lane, waiting in lanes.items()
        if waiting.oldest_at or not waiting.rows
    ]
    text = "Age of what the oldest waiting record speaks of; 0 where nothing waits."
    yield Metric("muster_agent_outbox_oldest_age_seconds", "gauge", text, ages)
    text = "Copies and advisories that wait for the region to take larger messages."
    yield _one("muster_agent_set_apart_rows", "gauge", text, numbers.set_apart.rows)
    yield _one("muster_agent_set_apart_bytes", "gauge", "What they take, in bytes.", numbers.set_apart.size)
    yield _one("muster_agent_outbox_limit_bytes", "gauge", "store.max_outbox.", numbers.agent.max_outbox)


def _link(part: str) -> dict[str, str]:
    return {"link": UPSTREAM, "stream": ""} if part == UPSTREAM else {"link": "source", "stream": block_of(part)}


def _one(name: str, kind: Kind, text: str, value: float) -> Metric:
    return Metric(name, kind, text, [Sample({}, value)])

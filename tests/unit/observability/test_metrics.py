"""Metrics keep to Prometheus' format and conventions, and leave out nothing that a block can count."""

import ast
from pathlib import Path

import msgspec
import pytest

from edge_agent.core.decisions import BlindCause
from edge_agent.core.observation import ProofCause, RejectReason
from edge_agent.ingest.port import Progress
from edge_agent.observability.conditions import LINK_DOWN, SET_APART
from edge_agent.observability.health import PartStatus
from edge_agent.observability.metrics import COUNTED, Metric, Numbers, Sample, expose, metrics_of
from edge_agent.observability.status_board import AgentStatus, PairPhase, PairStatus
from edge_agent.observability.status_report import LaneReport
from edge_agent.runtime.process import Usage, usage
from shared.identifiers import AdvisoryKind
from shared.instants import HOUR, MINUTE, SECOND
from shared.tolerant_json import Deviation
from shared.wire import ForwardReason
from tests.support.observability.exposition import parsed

NOW = 1_769_817_600 * SECOND
CORE = Path(__file__).parents[3] / "edge_agent" / "core"
OWN = {"region": "eu-west", "site": "dub1"}

NUMBERS = Numbers(
    at=NOW,
    agent=AgentStatus("dub1-a", "eu-west", "dub1", "0.1.0", "6f1c", 42, NOW - HOUR, NOW, 2 << 30),
    parts={
        "source of nodes": PartStatus("connected", "", NOW),
        "stream nodes": PartStatus("source unavailable", "stream not found", NOW),
        "upstream": PartStatus("not connected", "no answer", NOW),
    },
    progress={"nodes": Progress(7, NOW, 0, NOW - MINUTE, {"heard": 5, "stale": 2}, "sample", 3 * MINUTE)},
    counters={"nodes": {"valid": {"registrations": 70}, "rejected": {"no_sender": 3}}, "events": {}},
    lanes={"advisories": LaneReport(3, 900, NOW - 90 * SECOND), "registrations": LaneReport(0, 0)},
    reconnects={"upstream": 4},
    acknowledged=11,
    refused=2,
    commits=8,
    failed_commits=1,
    commit_seconds=0.25,
    usage=Usage(40 << 20, 1.5),
    conditions=[
        LINK_DOWN.of("source of nodes", "not connected: no answer", stream="nodes"),
        SET_APART.of("stream nodes", "1 copy", stream="nodes"),
        SET_APART.of("stream nodes", "1 advisory", stream="nodes"),
    ],
)
COUNTED_CAUSES = {(what, cause) for what, counted in COUNTED.items() for cause in counted.causes}


def samples(numbers: Numbers = NUMBERS) -> dict[str, float]:
    text = expose(metrics_of(numbers), OWN)
    found = {}
    for (name, labels), value in parsed(text).items():
        assert OWN.items() <= dict(labels).items()
        rest = {label: known for label, known in labels if label not in OWN}
        found[" ".join([name.removeprefix("muster_agent_"), *map("=".join, rest.items())])] = value
    return found


def test_everything_that_is_measured_is_shown_in_base_units() -> None:
    assert (
        samples().items()
        >= {
            "info agent=dub1-a version=0.1.0 boot_id=6f1c": 1,
            "useful": 0,
            "condition condition=link_down severity=error stream=nodes": 1,
            "condition condition=set_apart severity=warning stream=nodes": 1,
            "process_start_time_seconds": (NOW - HOUR) / SECOND,
            "process_resident_memory_bytes": 40 << 20,
            "process_cpu_seconds_total": 1.5,
            "store_commit_duration_seconds_sum": 0.25,
            "store_commit_duration_seconds_count": 9,
            "store_commit_failures_total": 1,
            "link_up link=upstream stream=": 0,
            "link_up link=source stream=nodes": 1,
            "reconnects_total link=upstream stream=": 4,
            "stream_reading stream=nodes": 0,
            "publishes_acknowledged_total": 11,
            "publishes_failed_total": 2,
            "lag_messages stream=nodes": 7,
            "observed_through_age_seconds stream=nodes": 60,
            "observed_through_timestamp_seconds stream=nodes": NOW / SECOND - 60,
            "senders stream=nodes state=heard": 5,
            "senders stream=nodes state=stale": 2,
            "valid_total stream=nodes what=registrations": 70,
            "rejected_total stream=nodes cause=no_sender": 3,
            "outbox_rows lane=advisories": 3,
            "outbox_bytes lane=advisories": 900,
            "outbox_oldest_age_seconds lane=advisories": 90,
            "outbox_oldest_age_seconds lane=registrations": 0,
            "outbox_limit_bytes": 2 << 30,
        }.items()
    )


@pytest.mark.parametrize(("what", "cause"), sorted(COUNTED_CAUSES))
def test_every_counter_of_a_block_is_there_from_the_start(what: str, cause: str) -> None:
    counted = COUNTED[what]
    name = counted.metric.removeprefix("muster_agent_")
    assert f"{name} stream=events {counted.label}={cause}" in samples()


def test_every_cause_that_the_core_knows_is_foreseen() -> None:
    foreseen = COUNTED_CAUSES
    for what, causes in {
        "rejected": RejectReason,
        "forwarded": ForwardReason,
        "advisories": AdvisoryKind,
        "blind": BlindCause,
        "probes": ProofCause,
        "tolerated": Deviation,
    }.items():
        assert {(what, str(cause)) for cause in causes} <= foreseen


def test_everything_that_the_code_counts_is_foreseen() -> None:
    counted = set()
    for path in [*CORE.glob("*.py"), CORE.parent / "store" / "outbox_change.py"]:
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("_count", "count", "skip")
            ):
                counted |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    assert {"rejected", "dropped", "compacted", "blind", "clamped", "probes", "advisories"} <= counted
    known = COUNTED.keys() | {cause for _, cause in COUNTED_CAUSES}
    assert counted - {""} - known == set()


def test_counter_that_nobody_foresaw_is_shown_all_the_same() -> None:
    numbers = Numbers(
        **{name: getattr(NUMBERS, name) for name in NUMBERS.__struct_fields__ if name != "counters"},
        counters={"nodes": {"surprised": {"much": 3}}},
    )
    assert samples(numbers)["surprised_total stream=nodes cause=much"] == 3


def test_label_may_hold_anything() -> None:
    odd = 'a "b"\\c\nd'
    text = expose([Metric("a_total", "counter", "Counts.", [Sample({"b": odd}, 1)])], {})
    assert text == '# HELP a_total Counts.\n# TYPE a_total counter\na_total{b="a \\"b\\"\\\\c\\nd"} 1\n'


def test_process_is_measured() -> None:
    measured = usage()
    assert 1 << 20 < measured.resident_bytes < 1 << 40
    assert measured.cpu_seconds > 0


def test_who_leads_a_pair_and_who_was_heard_is_measured() -> None:
    pair = PairStatus("dub1-a", "dub1-b", PairPhase.LEADING, NOW, PairPhase.STANDING_BY, NOW - 2 * SECOND, 3)
    found = samples(msgspec.structs.replace(NUMBERS, pair=pair))
    assert {name: value for name, value in found.items() if name.startswith("pair")} == {
        "pair_leading member=dub1-a other=dub1-b": 1,
        "pair_standing_by member=dub1-a other=dub1-b": 0,
        "pair_takeovers_total": 3,
        "pair_other_heard_age_seconds": 2,
    }
    assert not any(name.startswith("pair") for name in samples())

"""What somebody sets by hand and breaks what a stream promises is named everywhere; what does no harm is left alone."""

from typing import Any

import pytest

from aggregator.topology.desired.model import Config, DesiredStream
from aggregator.topology.desired.streams import desired
from aggregator.topology.plan.changes import plan
from aggregator.topology.plan.text import format_plan
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import HubFacts
from aggregator.topology.report.findings import CheckStatus
from aggregator.topology.report.tables import report
from aggregator.topology.report.text import format_report
from tests.support.topology.topologies import HUB_PLACE, as_applied, topology

TEXT = """
    [policy]
    [[site]]
    name = "dub1"
    region = "eu-west"
    [site.server]
    servers = ["nats://dub1:4222"]
    [[stream]]
    name = "FREE"
    subjects = ["free.>"]
"""
FLEET, COPIES, AT_SITE = "FLEET", ("ARCHIVE", "REPORT", "MUSTER_POLICY"), "REGISTRATION"
HUBS = (FLEET, *COPIES)
TRANSFORM = {"subject_transform": {"src": "fleet.>", "dest": "hidden.>"}}
MENDED: list[tuple[tuple[str, ...], Config, CheckStatus]] = [
    ((FLEET, "ARCHIVE", "REPORT"), TRANSFORM, CheckStatus.CRITICAL),
    (("MUSTER_POLICY",), {"subject_transform": {"src": "muster.*.>", "dest": "m.>"}}, CheckStatus.CRITICAL),
    ((*HUBS, AT_SITE), {"republish": {"src": ">", "dest": "fleet.eu-west.{{wildcard(1)}}.>"}}, CheckStatus.CRITICAL),
    (HUBS, {"republish": {"src": "x", "dest": "muster.policy.eu-west.region"}}, CheckStatus.CRITICAL),
    ((FLEET,), {"no_ack": True}, CheckStatus.CRITICAL),
    (("ARCHIVE", "REPORT"), {"max_msg_size": 900_000}, CheckStatus.CRITICAL),
    (HUBS, {"max_msgs_per_subject": 5}, CheckStatus.CRITICAL),
    (HUBS, {"allow_rollup_hdrs": True}, CheckStatus.WARNING),
    (HUBS, {"subject_delete_marker_ttl": 10**9}, CheckStatus.WARNING),
    (HUBS, {"max_consumers": 1}, CheckStatus.WARNING),
    (("ARCHIVE",), {"duplicate_window": 60 * 10**9}, CheckStatus.CRITICAL),
    (HUBS, {"consumer_limits": {"inactive_threshold": 10**9}}, CheckStatus.WARNING),
    (HUBS, {"consumer_limits": {"max_ack_pending": 5}}, CheckStatus.WARNING),
]
NAMED: list[tuple[tuple[str, ...], Config]] = [
    ((FLEET,), {"max_msg_size": 1000}),
    ((AT_SITE,), {"subject_transform": {"src": ">", "dest": "elsewhere.>"}}),
    (HUBS, {"allow_msg_ttl": True}),
    (COPIES, {"max_msgs": 1000}),
]
HARMLESS: list[tuple[tuple[str, ...], Config]] = [
    ((FLEET,), {"subject_transform": {"src": "other.>", "dest": "hidden.>"}}),
    (HUBS, {"republish": {"src": ">", "dest": "copy.fleet.>"}}),
    (("ARCHIVE", "REPORT"), {"no_ack": True}),
    (("ARCHIVE",), {"duplicate_window": 120 * 10**9}),
    (HUBS, {"max_msg_size": 1 << 20}),
    ((FLEET,), {"max_msgs": 1000}),
    (HUBS, {"description": "ours", "deny_purge": True, "metadata": {"owner": "ops"}}),
    (HUBS, {"consumer_limits": {"max_ack_pending": 5000}}),
    ((AT_SITE,), {"max_msgs_per_subject": 1, "no_ack": True, "allow_rollup_hdrs": True, "sources": [{"name": "RAW"}]}),
    (("FREE",), {**TRANSFORM, "no_ack": True, "republish": {"src": ">", "dest": "fleet.>"}}),
]


def each_of(*kinds: Any) -> list[Any]:
    return [(name, *rest) for names, *rest in (each for kind in kinds for each in kind) for name in names]


def said(name: str, config: Config) -> tuple[list[tuple[CheckStatus, str]], str, str, dict[str, Any]]:
    """Give what check, plan and report say of it, and what apply would set."""
    settings = topology(TEXT)
    wanted = desired(settings)
    own = next(each for each in wanted if isinstance(each, DesiredStream) and each.name == name)
    found = as_applied(wanted)
    key = own.place, own.name
    found.streams[key].config.update(config)
    todo = plan(wanted, found)
    assert not {change.stream for change in todo.changes} - {name}
    updates = {field: change.config.get(field) for change in todo.changes for field in config}
    findings = check(settings, wanted, found, HubFacts(), Limits())
    told = [(each.severity, each.text) for each in findings if each.place == str(own.place)]
    told = [each for each in told if each[1].startswith(f"{name} ") and "hear" not in each[1]]
    told = [each for each in told if "does not copy" not in each[1]]
    return told, format_plan(todo), format_report(report(wanted, found)), updates


@pytest.mark.parametrize(("name", "config", "severity"), each_of(MENDED))
def test_what_breaks_a_promise_is_told_and_mended(name: str, config: Config, severity: CheckStatus) -> None:
    told, _, shown, updates = said(name, config)
    ((found_severity, text),) = told
    assert found_severity is severity
    assert text.endswith(": apply mends it")
    assert text.removesuffix(": apply mends it") in shown
    assert [value in (None, False, -1) for value in updates.values()] == [True]


@pytest.mark.parametrize(("name", "config"), each_of(NAMED))
def test_what_may_be_meant_so_is_told_and_left_to_people(name: str, config: Config) -> None:
    told, planned, shown, updates = said(name, config)
    ((severity, text),) = told
    assert (severity, updates) == (CheckStatus.WARNING, {})
    assert "apply mends it" not in text
    assert (f": {text}" in planned, f": {text}" in shown) == (True, True)


@pytest.mark.parametrize(("name", "config"), each_of(HARMLESS))
def test_what_does_no_harm_is_left_alone(name: str, config: Config) -> None:
    told, planned, _, _ = said(name, config)
    assert (told, planned) == ([], "nothing to do")


def test_a_source_that_nobody_wants_is_told() -> None:
    strange = {"name": "STRANGE"}
    told, planned, shown, _ = said("MUSTER_POLICY", {"sources": [strange]})
    ((severity, text),) = told
    assert (severity, text) == (
        CheckStatus.WARNING,
        "MUSTER_POLICY takes STRANGE of this domain besides, which is not its own",
    )
    assert (text in planned, text in shown) == (True, True)
    sources = as_applied(desired(topology(TEXT))).streams[HUB_PLACE, "ARCHIVE"].config["sources"]
    told, planned, _, _ = said("ARCHIVE", {"sources": [*sources, strange]})
    assert told == [(CheckStatus.WARNING, "ARCHIVE takes STRANGE of this domain besides: apply mends it")]
    assert "takes nothing more from STRANGE" in planned


def test_a_copy_that_renames_is_told_and_left_to_people() -> None:
    """To a server a source with another transform is another one; a mirror cannot be changed."""
    renamed = {"subject_transforms": [{"src": "muster.>", "dest": "m.>"}]}
    sources = as_applied(desired(topology(TEXT))).streams[HUB_PLACE, "ARCHIVE"].config["sources"]
    for name, config in (
        ("ARCHIVE", {"sources": [*sources[:-1], sources[-1] | renamed]}),
        ("REPORT", {"mirror": {"name": "ARCHIVE"} | renamed}),
    ):
        told, planned, shown, updates = said(name, config)
        ((severity, text),) = told
        assert (severity, updates) == (CheckStatus.CRITICAL, {})
        assert "under other subjects (muster.> as m.>), where nobody looks for it" in text
        assert (text in planned, text in shown) == (True, True)


def test_a_sealed_stream_is_critical() -> None:
    told, planned, shown, updates = said("FREE", {"sealed": True, "deny_delete": True, "discard": "new"})
    ((severity, text),) = told
    assert (severity, updates) == (CheckStatus.CRITICAL, {})
    assert (text in planned, text in shown, text.startswith("FREE is sealed: ")) == (True, True, True)


def test_a_copy_takes_larger_messages_before_its_origin_lets_them_come() -> None:
    wanted = desired(topology(TEXT))
    found = as_applied(wanted)
    for name in ("ARCHIVE", "REPORT"):
        found.streams[HUB_PLACE, name].config["max_msg_size"] = 1
    assert [change.stream for change in plan(wanted, found).changes] == ["REPORT", "ARCHIVE"]

"""The plan is the ordered difference of what should be to what was found."""

from pathlib import Path

import pytest

from aggregator.topology.desired.confinement import confined_to
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import ApiFailure, External, Replication, StreamState
from aggregator.topology.plan.changes import Action, Change, Plan, plan
from aggregator.topology.plan.differences import FieldChange
from aggregator.topology.plan.text import format_plan, plan_as_json
from aggregator.topology.report.tables import report
from aggregator.topology.report.text import format_report
from shared.instants import parse_instant
from shared.settings import parse_settings
from tests.support.topology.topologies import (
    DAY,
    EU,
    HUB_PLACE,
    TWO_REGIONS,
    US,
    as_applied,
    nothing,
    topology,
    with_state,
)


def only_change(todo: Plan, of: str = "") -> Change:
    (change,) = (change for change in todo.changes if not of or change.stream == of)
    return change


# The difference


def test_from_nothing_everything_is_created_origins_first() -> None:
    todo = plan(desired(topology()), nothing())
    assert {change.action for change in todo.changes} == {Action.CREATE}
    assert [(str(change.place), change.stream, change.consumer) for change in todo.changes] == [
        ("eu-west", "FLEET", ""),
        ("eu-west", "FLEET", "muster-archive"),
        ("us-east", "FLEET", ""),
        ("us-east", "FLEET", "muster-archive"),
        ("hub", "ARCHIVE", ""),
        ("hub", "REPORT", ""),
    ]
    assert "subjects" not in todo.changes[4].config
    assert not todo.destructive
    assert not todo.problems


@pytest.mark.parametrize("text", ["", '[archive]\nsourcing = "plain"\n'])
def test_after_apply_there_is_nothing_to_do(text: str) -> None:
    wanted = desired(topology(text))
    assert plan(wanted, as_applied(wanted)) == Plan((), {})


def test_an_update_carries_back_what_it_does_not_manage() -> None:
    found = as_applied(desired(topology()))
    todo = plan(desired(topology('[archive]\nmax_age = "500d"\n')), found)
    change = only_change(todo)
    assert (change.action, change.stream, change.destroys) == (Action.UPDATE, "ARCHIVE", "")
    assert change.fields == (FieldChange("max_age", 400 * DAY, 500 * DAY),)
    assert change.config == found.streams[HUB_PLACE, "ARCHIVE"].config | {"max_age": 500 * DAY}
    assert change.config["placement"] == {"tags": ["operator's"]}


def test_a_consumer_that_went_with_its_stream_is_made_again_from_the_start() -> None:
    wanted = desired(topology())
    found = as_applied(wanted)
    del found.consumers[EU, "FLEET", "muster-archive"]
    aside, made, back = plan(wanted, found).changes
    assert (made.action, made.place, made.consumer) == (Action.CREATE, EU, "muster-archive")
    assert made.config["deliver_policy"] == "all"
    # A source that did not notice would take what its new origin counts anew for what it has.
    archive = found.streams[HUB_PLACE, "ARCHIVE"].config
    assert [change.config for change in (aside, back)] == [archive | {"sources": archive["sources"][1:]}, archive]
    assert not aside.destroys


@pytest.mark.parametrize("text", ["", '[archive]\nstorage = "memory"\n'], ids=["gone", "replaced"])
def test_the_consumers_of_an_archive_that_is_made_again_start_with_everything(text: str) -> None:
    found = as_applied(desired(topology()))
    if not text:
        del found.streams[HUB_PLACE, "ARCHIVE"]
    todo = plan(desired(topology(text)), found)
    assert [(change.action, change.place, change.consumer) for change in todo.changes] == [
        (Action.REPLACE, EU, "muster-archive"),
        (Action.REPLACE, US, "muster-archive"),
        (Action.REPLACE if text else Action.CREATE, HUB_PLACE, ""),
    ]
    assert {change.config["deliver_policy"] for change in todo.changes[:2]} == {"all"}


@pytest.mark.parametrize("text", ["", '[archive]\nstorage = "memory"\n'], ids=["gone", "replaced"])
def test_a_mirror_of_a_stream_that_is_made_again_is_made_again_unless_it_is_empty(text: str) -> None:
    found = as_applied(desired(topology()))
    if not text:
        del found.streams[HUB_PLACE, "ARCHIVE"]
    with_state(found, HUB_PLACE, "REPORT", StreamState(messages=2, last_seq=3))
    change = only_change(plan(desired(topology(text)), found), of="REPORT")
    assert (change.action, change.destroys) == (Action.REPLACE, "deletes its 2 messages")
    with_state(found, HUB_PLACE, "REPORT", StreamState())
    assert "REPORT" not in {change.stream for change in plan(desired(topology(text)), found).changes}


def test_an_archive_that_is_replaced_while_a_region_is_away_loses_what_that_had_sent() -> None:
    found = as_applied(desired(topology()))
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=7))
    found.unreachable[US] = "nobody answers"
    change = only_change(plan(desired(topology('[archive]\nstorage = "memory"\n')), found), of="ARCHIVE")
    assert change.destroys == ("deletes its 7 messages, also what us-east will not send again: wait until it answers")


def test_the_consumers_of_an_archive_that_does_not_answer_are_left_alone() -> None:
    found = as_applied(desired(topology()))
    del found.streams[HUB_PLACE, "ARCHIVE"]
    found.unreachable[HUB_PLACE] = "nobody answers"
    assert plan(desired(topology()), found).changes == ()


@pytest.mark.parametrize("text", ["", '[archive]\nsourcing = "plain"\n'])
@pytest.mark.parametrize("is_found", [True, False])
def test_a_consumer_whose_copy_cannot_be_told_now_is_neither_made_nor_removed(text: str, is_found: bool) -> None:
    """The next plan would find it there, and not set its source aside any more; or it would be cut off."""
    found = as_applied(desired(topology()))
    found.unreachable[HUB_PLACE] = "REPORT is not available: no answer"
    del found.consumers[EU, "FLEET", "muster-archive"]
    if not is_found:
        del found.streams[HUB_PLACE, "ARCHIVE"]
    todo = plan(desired(topology(text)), found)
    assert (todo.changes, todo.left) == ((), ())
    assert "stays: once it is back" not in format_plan(todo)


def test_becoming_durable_starts_behind_what_was_taken() -> None:
    found = as_applied(desired(topology('[archive]\nsourcing = "plain"\n')))
    source = Replication("FLEET", External(EU.api), active=5, seq=41)
    with_state(found, EU, "FLEET", StreamState(last_seq=41))
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=41), source)
    todo = plan(desired(topology()), found)
    consumers = [change for change in todo.changes if change.consumer]
    assert [(change.config["deliver_policy"], change.config.get("opt_start_seq")) for change in consumers] == [
        ("by_start_sequence", 42),
        ("all", None),
    ]
    assert todo.changes[-1].fields[0].field == "source FLEET of $JS.eu-west.API"


def test_becoming_plain_starts_behind_what_was_taken_and_drops_the_consumers_last() -> None:
    found = as_applied(desired(topology()))
    source = Replication("FLEET", External(EU.api), active=5, seq=41)
    with_state(found, EU, "FLEET", StreamState(last_seq=41))
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=41), source)
    todo = plan(desired(topology('[archive]\nsourcing = "plain"\n')), found)
    assert [change.action for change in todo.changes] == [Action.UPDATE, Action.DELETE, Action.DELETE]
    assert todo.changes[0].config["sources"] == [
        {
            "name": "FLEET",
            "external": {"api": f"$JS.{region}.API"},
            "subject_transforms": confined_to(region),
            "opt_start_seq": start,
        }
        for region, start in (("eu-west", 42), ("us-east", 1))
    ]


def test_becoming_durable_again_before_any_message_came_still_starts_behind_what_was_taken() -> None:
    wanted = desired(topology('[archive]\nsourcing = "plain"\n'))
    sources = [{"name": "FLEET", "external": {"api": EU.api}, "opt_start_seq": 42}]
    found = as_applied(wanted, ARCHIVE={"sources": sources})
    with_state(found, EU, "FLEET", StreamState(last_seq=41))
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=41), Replication("FLEET", External(EU.api)))
    todo = plan(desired(topology()), found)
    assert todo.changes[0].config["opt_start_seq"] == 42
    assert "opt_start_seq" not in todo.changes[-1].config["sources"][0]


@pytest.mark.parametrize(
    ("text", "name", "state", "loss"),
    [
        ('[archive]\nstorage = "memory"\n', "ARCHIVE", StreamState(messages=7), "deletes its 7 messages"),
        ('[archive]\nstorage = "memory"\n', "ARCHIVE", StreamState(), ""),
        (
            '[archive]\nmax_age = "20d"\n',
            "ARCHIVE",
            StreamState(messages=1, first_ts=parse_instant("2026-01-10T00:00:00Z")),
            "deletes messages older than the new max_age",
        ),
        (
            '[archive]\nmax_age = "20d"\n',
            "ARCHIVE",
            StreamState(messages=1, first_ts=parse_instant("2026-01-12T00:00:00Z")),
            "",
        ),
        (
            '[archive]\nmax_bytes = "1MB"\n',
            "ARCHIVE",
            StreamState(bytes=2 << 20),
            "deletes messages beyond the new max",
        ),
        ('[archive]\nmax_bytes = "4MB"\n', "ARCHIVE", StreamState(bytes=2 << 20), ""),
    ],
)
def test_a_change_that_loses_messages_says_so(text: str, name: str, state: StreamState, loss: str) -> None:
    found = as_applied(desired(topology()))
    with_state(found, HUB_PLACE, name, state)
    change = only_change(plan(desired(topology(text)), found), of="ARCHIVE")
    assert change.destroys.startswith(loss)
    assert bool(change.destroys) is bool(loss)


def test_a_source_that_is_taken_away_and_a_subject_that_goes_are_destructive() -> None:
    found = as_applied(desired(topology()), FLEET={"subjects": ["fleet.>", "fleet.eu-west.>"]})
    one_region = TWO_REGIONS.replace('[[region]]\n    name = "us-east"', "")
    todo = plan(desired(parse_settings(one_region, TopologySettings, Path("t"))), found)
    assert [change.destroys for change in todo.changes] == [
        "refuses messages on fleet.>",
        "takes nothing more from FLEET of $JS.us-east.API",
        "",
    ]
    left = todo.changes[-1]
    assert (left.action, left.place, left.stream, left.consumer) == (Action.DELETE, US, "FLEET", "muster-archive")


def test_a_place_that_does_not_answer_is_left_alone_and_the_rest_is_planned() -> None:
    found = nothing(HUB_PLACE, US)
    found.unreachable[EU] = "nobody answers"
    todo = plan(desired(topology()), found)
    assert EU not in {change.place for change in todo.changes}
    assert len(todo.changes) == 4
    assert todo.problems == {EU: "nobody answers"}


def test_servers_too_old_for_durable_sourcing_are_sourced_plainly_until_they_are_not() -> None:
    found = nothing()
    found.levels[EU] = 3
    todo = plan(desired(topology()), found)
    assert [(change.place, change.consumer) for change in todo.changes if change.consumer] == [(US, "muster-archive")]
    sources = only_change(todo, of="ARCHIVE").config["sources"]
    assert [bool(source.get("consumer")) for source in sources] == [False, True]
    found = as_applied(desired(topology('[archive]\nsourcing = "plain"\n')))
    found.levels[HUB_PLACE] = 3
    assert plan(desired(topology()), found).changes == ()
    found.levels[HUB_PLACE] = 4
    said = (
        "source FLEET of $JS.eu-west.API: plain, all below fleet.eu-west -> durable through muster-archive, all below"
    )
    assert said in format_plan(plan(desired(topology()), found))


def test_a_source_whose_origin_is_away_stays_what_it_is() -> None:
    for text in ("", '[archive]\nsourcing = "plain"\n'):
        found = as_applied(desired(topology(text)))
        del found.levels[EU]
        found.unreachable[EU] = "nobody answers"
        assert "ARCHIVE" not in {change.stream for change in plan(desired(topology(text)), found).changes}
        todo = plan(desired(topology()), found)
        assert {change.place for change in todo.changes if change.consumer} == ({US} if text else set())


# On paper


def test_a_plan_reads_well() -> None:
    found = as_applied(desired(topology()))
    with_state(found, EU, "FLEET", StreamState(messages=1200))
    found.unreachable[US] = "nobody answers"
    text = '[fleet]\nstorage = "memory"\n[archive]\nmax_age = "0s"\nmax_bytes = "1GiB"\n'
    assert format_plan(plan(desired(topology(text)), found)).splitlines() == [
        "hub",
        "  ~ update stream ARCHIVE",
        "      FLEET of $JS.eu-west.API: through the old consumer -> set aside",
        "eu-west",
        "  ! replace stream FLEET, which deletes its 1,200 messages",
        "      storage: file -> memory",
        "  ! replace consumer muster-archive on FLEET",
        "      starts: where it was -> with everything",
        "hub",
        "  ~ update stream ARCHIVE",
        "      max_age: 400d -> for ever",
        "      max_bytes: unlimited -> 1 GiB",
        "us-east: nobody answers",
        "2 to update, 2 to replace; 1 of them destructive: apply asks for --force",
    ]


def test_an_empty_plan_says_so() -> None:
    wanted = desired(topology())
    assert format_plan(plan(wanted, as_applied(wanted))) == "nothing to do"


def test_a_plan_as_json_keeps_jetstreams_values() -> None:
    found = as_applied(desired(topology()))
    todo = plan(desired(topology('[report]\nmax_age = "1d"\n')), found)
    assert plan_as_json(todo) == {
        "changes": [
            {
                "action": "update",
                "place": "hub",
                "domain": "hub",
                "stream": "REPORT",
                "consumer": "",
                "fields": [{"field": "max_age", "from": 60 * DAY, "to": DAY}],
                "destroys": "",
                "remark": "",
            }
        ],
        "problems": {},
        "refused": [],
        "warnings": [],
        "sealed": [],
        "left": [],
    }


def test_a_report_compares_what_a_copy_took_with_what_its_origin_has() -> None:
    wanted = desired(topology())
    found = as_applied(wanted)
    with_state(found, EU, "FLEET", StreamState(messages=50, last_seq=50))
    taken = Replication("FLEET", External(EU.api), active=2_000_000_000, seq=47)
    lost = Replication("FLEET", External(US.api), error=ApiFailure("stream not found"))
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=47, bytes=5_000, last_seq=47), taken, lost)
    del found.streams[US, "FLEET"]
    shown = report(wanted, found)
    assert [
        (row.kind, row.source, row.taken, row.origin_last, row.behind, row.healthy) for row in shown.replication
    ] == [
        ("durable source", "FLEET", 47, 50, 3, True),
        ("durable source", "FLEET", 0, None, None, False),
    ]
    assert not shown.complete
    assert format_report(shown).splitlines()[-2:] == [
        "us-east: FLEET is missing: apply creates it",
        "hub: ARCHIVE does not hear from FLEET ($JS.us-east.API): stream not found",
    ]


def test_a_mirror_beyond_its_origin_is_made_again() -> None:
    """The origin was made anew, or restored: the mirror waits at its own last sequence, without error or lag."""
    wanted = desired(topology())
    found = as_applied(wanted)
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=3, last_seq=3))
    with_state(found, HUB_PLACE, "REPORT", StreamState(messages=5, last_seq=5))
    change = only_change(plan(wanted, found))
    assert (change.action, change.stream, change.destroys) == (Action.REPLACE, "REPORT", "deletes its 5 messages")
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=3, last_seq=5))
    assert not plan(wanted, found).changes


def test_a_stream_that_is_replaced_gets_its_consumers_again() -> None:
    found = as_applied(desired(topology()))
    todo = plan(desired(topology('[fleet]\nstorage = "memory"\n')), found)
    assert [(change.action, change.place, change.stream, change.consumer) for change in todo.changes] == [
        (Action.UPDATE, HUB_PLACE, "ARCHIVE", ""),
        (Action.REPLACE, EU, "FLEET", ""),
        (Action.REPLACE, EU, "FLEET", "muster-archive"),
        (Action.REPLACE, US, "FLEET", ""),
        (Action.REPLACE, US, "FLEET", "muster-archive"),
        (Action.UPDATE, HUB_PLACE, "ARCHIVE", ""),
    ]


@pytest.mark.parametrize("name", ["ORIGIN", "COPY", "ARCHIVE"])
def test_nothing_is_planned_for_a_sealed_stream_nor_for_what_it_copies_through(name: str) -> None:
    """The server would answer OK and change nothing; sealing sets what else is wanted otherwise."""
    text = '[[stream]]\nname = "ORIGIN"\nsubjects = ["o"]\n[[stream]]\nname = "COPY"\nmirror.name = "ORIGIN"\n'
    wanted = desired(topology(text))
    is_sealed = {"sealed": True, "discard": "new", "deny_delete": True, "deny_purge": True}
    found = as_applied(wanted, **{name: is_sealed})
    for stream in ("ORIGIN", "COPY"):
        with_state(found, HUB_PLACE, stream, StreamState(messages=3, last_seq=3))
    del found.consumers[EU, "FLEET", "muster-archive"]
    todo = plan(wanted, found)
    assert {change.stream for change in todo.changes} == (set() if name == "ARCHIVE" else {"FLEET", "ARCHIVE"})
    assert todo.sealed == ((HUB_PLACE, name),)
    assert f"hub: {name} is sealed: it takes neither messages nor changes" in format_plan(todo)


def test_what_the_server_refuses_beside_a_change_is_changed_with_it() -> None:
    found = as_applied(desired(topology()), FLEET={"discard": "new", "discard_new_per_subject": True})
    todo = plan(desired(topology()), found)
    assert [(change.stream, change.config["discard_new_per_subject"]) for change in todo.changes] == [
        ("FLEET", False),
        ("FLEET", False),
    ]

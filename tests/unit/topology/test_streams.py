"""Streams that are laid out freely: what they become, what their sources are to the server, and what is refused."""

from typing import Any

import pytest

from aggregator.topology.desired.model import HUB, DesiredStream, Place
from aggregator.topology.desired.settings import TopologySettings
from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import Replication, StreamState
from aggregator.topology.plan.changes import Action, plan
from aggregator.topology.plan.text import format_plan
from aggregator.topology.report.tables import report
from shared.settings import SettingsError
from tests.support.topology.topologies import EU, HUB_PLACE, applied, changes, nothing, topology, with_state

ORDERS = '[[stream]]\nname = "ORDERS"\nsubjects = ["ORDERS.*"]\n'
GATHER = '[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "ORDERS"\n'
COPY = '[[stream]]\nname = "COPY"\n[stream.mirror]\nname = "ORDERS"\n'
ORDERS_KEY = HUB_PLACE, "ORDERS"


def stream(text: str, name: str) -> DesiredStream:
    return next(each for each in desired(topology(text)) if isinstance(each, DesiredStream) and each.name == name)


def test_a_stream_becomes_jetstreams_own_words() -> None:
    text = """
        [[stream]]
        name = "EVENTS"
        place = "eu-west"
        subjects = ["events.>"]
        storage = "memory"
        replicas = 3
        retention = "workqueue"
        discard = "new"
        max_age = "1h"
        max_messages = 100
        max_messages_per_subject = 5
        max_message_size = "1KiB"
        duplicate_window = "1m"
        deny_delete = true
        allow_rollup = true
        description = "for people"
        placement = { cluster = "c1", tags = ["rg:1"] }
    """
    assert stream(text, "EVENTS") == DesiredStream(
        EU,
        "EVENTS",
        {
            "name": "EVENTS",
            "storage": "memory",
            "num_replicas": 3,
            "max_age": 3600 * 10**9,
            "max_bytes": -1,
            "discard": "new",
            "compression": "none",
            "duplicate_window": 60 * 10**9,
            "subjects": ["events.>"],
            "retention": "workqueue",
            "max_msgs": 100,
            "max_msgs_per_subject": 5,
            "max_msg_size": 1024,
            "allow_direct": True,
            "allow_atomic": False,
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "deny_purge": False,
            "description": "for people",
            "sources": [],
            "mirror": None,
            "placement": {"cluster": "c1", "tags": ["rg:1"]},
        },
    )


def test_what_is_copied_says_where_it_starts_what_it_takes_and_from_where() -> None:
    text = """
        [[stream]]
        name = "ALL"
        [[stream.source]]
        name = "ORDERS"
        start_sequence = 7
        filter_subject = "ORDERS.new"
        [[stream.source]]
        name = "ORDERS"
        domain = "eu-west"
        start_time = 2026-01-31T01:00:00.500+01:00
        transforms = [{ source = "ORDERS.new", destination = "eu.new" }, { source = "ORDERS.old" }]
        [[stream.source]]
        name = "RETURNS"
        domain = "hub"
    """
    assert stream(text, "ALL").config["sources"] == [
        {
            "name": "ORDERS",
            "external": None,
            "opt_start_seq": 7,
            "opt_start_time": None,
            "filter_subject": "ORDERS.new",
            "subject_transforms": None,
            "consumer": None,
        },
        {
            "name": "ORDERS",
            "external": {"api": "$JS.eu-west.API"},
            "opt_start_seq": None,
            "opt_start_time": "2026-01-31T00:00:00.5Z",
            "filter_subject": None,
            "subject_transforms": [
                {"src": "ORDERS.new", "dest": "eu.new"},
                {"src": "ORDERS.old", "dest": ""},
            ],
            "consumer": None,
        },
        {
            "name": "RETURNS",
            "external": None,
            "opt_start_seq": None,
            "opt_start_time": None,
            "filter_subject": None,
            "subject_transforms": None,
            "consumer": None,
        },
    ]


def test_without_a_region_there_is_no_fleet() -> None:
    bare = TopologySettings(hub=topology().hub)
    assert desired(bare) == ()


def test_what_is_copied_is_made_before_its_copies() -> None:
    names = [each.name for each in desired(topology(COPY + GATHER + ORDERS)) if isinstance(each, DesiredStream)]
    assert names[-3:] == ["ORDERS", "COPY", "ALL"]
    circle = GATHER + '[[stream]]\nname = "ORDERS"\n[[stream.source]]\nname = "ALL"\n'
    assert [each.name for each in desired(topology(circle)) if isinstance(each, DesiredStream)][-2:] == [
        "ALL",
        "ORDERS",
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('[[stream]]\nname = "X"\n', "stream 'X' takes nothing: give it subjects, a source or a mirror"),
        (ORDERS + 'place = "mars"\n', "stream 'ORDERS' is placed at 'mars': neither 'hub', nor a region, nor a site"),
        (ORDERS + ORDERS, "stream 'hub/ORDERS' stands here more than once"),
        (ORDERS.replace("ORDERS", "ARCHIVE", 1), "stream 'hub/ARCHIVE' stands here more than once"),
        (GATHER + '[[stream.source]]\nname = "ORDERS"\n', "source '/ORDERS' stands here more than once"),
        (COPY + '[[stream.source]]\nname = "ORDERS"\n', "mirror and source exclude each other"),
        (ORDERS + '[stream.mirror]\nname = "O"\n', "a mirror listens to no subjects"),
        (ORDERS + "mirror_direct = true\n", "mirror_direct needs a mirror"),
        (COPY.replace("[stream.", "allow_atomic = true\n[stream."), "a mirror takes no batches"),
        (ORDERS + "allow_rollup = true\ndeny_purge = true\n", "allow_rollup and deny_purge exclude each other"),
        (ORDERS + 'max_age = "50ms"\n', "max_age is at least 100ms, or 0s"),
        (ORDERS + 'duplicate_window = "50ms"\n', "duplicate_window is at least 100ms, or 0s"),
        (ORDERS + 'max_message_size = "2GiB"\n', "max_message_size is below 2GiB, or 0"),
        (ORDERS.replace("S.*", "S.>.x"), "no stream can listen to 'ORDERS.>.x'"),
        (ORDERS.replace("ORDERS.*", ">"), "no stream can listen to '>'"),
        (ORDERS.replace('"]', '", "ORDERS.new"]'), "subjects 'ORDERS.*' and 'ORDERS.new' overlap"),
        *(
            (ORDERS + place + '[[stream.source]]\nname = "ORDERS"\n' + domain, "stream 'ORDERS' would copy itself")
            for place, domain in (
                ("", ""),
                ("", 'domain = "hub"\n'),
                ('place = "eu-west"\n', 'domain = "eu-west"\n'),
                ('domain = "spoke"\n', 'domain = "spoke"\n'),
            )
        ),
        (
            GATHER + 'filter_subject = "a"\ntransforms = [{ source = "b" }]\n',
            "filter_subject and transforms exclude each other: a transform takes only what matches its source",
        ),
        (
            COPY + "start_sequence = 3\nstart_time = 2026-01-31T00:00:00Z\n",
            "start_sequence and start_time exclude each other",
        ),
        (COPY + "start_time = 2026-01-31T00:00:00\n", "stream[0].mirror.start_time: expected"),
    ],
)
def test_streams_that_cannot_be_meant_are_refused(text: str, line: str) -> None:
    with pytest.raises(SettingsError) as caught:
        topology(text)
    assert line in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        ORDERS + GATHER + COPY,
        ORDERS + GATHER + 'filter_subject = "ORDERS.new"\nstart_sequence = 3\n' + COPY,
        ORDERS + GATHER + 'transforms = [{ source = "ORDERS.new", destination = "new" }]\n',
        ORDERS + COPY + "start_time = 2026-01-31T00:00:00.250Z\n",
        ORDERS + COPY.replace('"COPY"', '"ORDERS"\nplace = "eu-west"') + 'domain = "hub"\n',
    ],
)
def test_after_apply_there_is_nothing_to_do_with_free_streams_either(text: str) -> None:
    assert changes(text, applied(text)) == ()


def test_a_source_with_another_filter_is_another_one_to_the_server_and_that_is_said() -> None:
    plain = GATHER + 'sourcing = "plain"\n'
    found = applied(ORDERS + plain)
    (change,) = changes(ORDERS + plain + 'filter_subject = "ORDERS.new"\n', found)
    assert change.action is Action.UPDATE
    assert change.destroys == "takes nothing more from ORDERS of this domain"
    assert [field.field for field in change.fields] == [
        "source ORDERS of this domain (ORDERS.new)",
        "source ORDERS of this domain",
    ]
    assert change.config["sources"] == [{"name": "ORDERS", "filter_subject": "ORDERS.new"}]


def test_an_origin_that_is_neither_there_nor_made_is_told() -> None:
    said = "there is no WORK at eu-west: it takes nothing from there until there is"
    todo = plan(desired(topology(FROM_WORK)), applied(""))
    assert [each.remark for each in todo.changes] == [said]
    assert f"stream ALL\n      {said}\n" in format_plan(todo)
    away = applied("")
    away.unreachable[EU] = "nobody answers"
    assert not any("there is no WORK" in each.remark for each in changes(FROM_WORK, away))
    assert not any(each.remark for each in changes(ORDERS + COPY, applied("")))


def test_a_mirror_that_goes_its_own_way_is_kept_and_one_that_changes_is_made_anew() -> None:
    found = applied(ORDERS + COPY)
    with_state(found, HUB_PLACE, "COPY", StreamState(messages=3))
    (change,) = changes(ORDERS + '[[stream]]\nname = "COPY"\nsubjects = ["copy"]\n', found)
    assert (change.action, change.destroys) == (
        Action.UPDATE,
        "takes nothing more from ORDERS and goes its own way, for good",
    )
    assert "mirror" not in change.config
    (change,) = changes(ORDERS + COPY + "start_sequence = 2\n", found)
    assert (change.action, change.destroys) == (Action.REPLACE, "deletes its 3 messages")


@pytest.mark.parametrize(
    ("line", "before", "state", "action", "loss"),
    [
        (
            "max_messages = 5",
            {},
            StreamState(messages=6),
            Action.UPDATE,
            "deletes messages beyond the new",
        ),
        ("max_messages = 5", {}, StreamState(messages=5), Action.UPDATE, ""),
        ("max_messages_per_subject = 1", {}, StreamState(messages=1), Action.UPDATE, "deletes messages of subjects"),
        ("max_messages_per_subject = 9", {"max_msgs_per_subject": 3}, StreamState(messages=1), Action.UPDATE, ""),
        ("", {"deny_delete": True}, StreamState(messages=1), Action.REPLACE, "deletes its 1 messages"),
        ("deny_delete = true", {}, StreamState(messages=1), Action.UPDATE, ""),
    ],
)
def test_limits_that_lose_messages_say_so(
    line: str, before: dict[str, Any], state: StreamState, action: Action, loss: str
) -> None:
    found = applied(ORDERS, ORDERS=before)
    with_state(found, HUB_PLACE, "ORDERS", state)
    (change,) = changes(ORDERS + line, found)
    assert change.action is action
    assert change.destroys.startswith(loss)
    assert bool(change.destroys) is bool(loss)


WORK = '[[stream]]\nname = "WORK"\nplace = "eu-west"\nsubjects = ["work"]\nretention = "workqueue"\n'
FROM_WORK = '[[stream]]\nname = "ALL"\n[[stream.source]]\nname = "WORK"\ndomain = "eu-west"\n'


def test_copies_that_nats_does_not_keep_its_word_on_are_refused_with_the_reason() -> None:
    text = WORK + FROM_WORK
    (line,) = plan(desired(topology(text)), nothing()).refused
    assert line == (
        "hub: ALL shall copy WORK of eu-west, a workqueue behind a leaf link: while the link is down others may take"
        " and remove what the copy then lacks: give it retention limits, or say allow = true where it is copied"
    )
    interest = (ORDERS + COPY).replace('"ORDERS.*"]\n', '"ORDERS.*"]\nretention = "interest"\n')
    (line,) = plan(desired(topology(interest)), nothing()).refused
    assert "COPY shall copy ORDERS of hub, whose retention is interest" in line
    assert "; 1 refused: apply changes nothing" in format_plan(plan(desired(topology(text)), nothing()))


@pytest.mark.parametrize(
    "text",
    [
        WORK + FROM_WORK + "allow = true\n",
        (WORK + FROM_WORK).replace('place = "eu-west"\n', "").replace('domain = "eu-west"\n', ""),
    ],
    ids=["told to", "in one domain"],
)
def test_a_workqueue_is_copied_where_told_to_or_in_its_own_domain(text: str) -> None:
    assert plan(desired(topology(text)), nothing()).refused == ()


def test_an_origin_that_is_not_managed_is_judged_by_what_was_found() -> None:
    found = nothing()
    here = applied(WORK)
    found.streams[EU, "WORK"] = here.streams[EU, "WORK"]
    (line,) = plan(desired(topology(FROM_WORK)), found).refused
    assert "a workqueue behind a leaf link" in line


def test_a_plan_shows_what_a_source_takes() -> None:
    text = ORDERS + GATHER + 'start_sequence = 3\ntransforms = [{ source = "ORDERS.new", destination = "new" }]\n'
    found = applied(ORDERS)
    shown = format_plan(plan(desired(topology(text + 'sourcing = "plain"\n')), found))
    assert "source: ORDERS of this domain (from sequence 3, ORDERS.new as new)" in shown
    assert "deny_delete" not in shown
    shown = format_plan(plan(desired(topology(text)), found))
    assert "source: ORDERS of this domain (durable, ORDERS.new as new)" in shown
    assert "opt_start_seq: 3" in shown


def test_a_filtered_copy_is_measured_against_the_origins_last_matching_message() -> None:
    text = ORDERS + GATHER + 'filter_subject = "ORDERS.new"\n'
    found = applied(text)
    with_state(found, HUB_PLACE, "ORDERS", StreamState(messages=9, last_seq=9))
    taken = Replication("ORDERS", filter_subject="ORDERS.new", active=5, seq=4)
    with_state(found, HUB_PLACE, "ALL", StreamState(messages=2, last_seq=2), taken)
    wanted = desired(topology(text))
    assert [(row.behind, row.takes) for row in report(wanted, found).replication if row.stream == "ALL"] == [
        (None, ("ORDERS.new",))
    ]
    found.last_matching[ORDERS_KEY, "ORDERS.new"] = 6
    assert [(row.origin_last, row.behind) for row in report(wanted, found).replication if row.stream == "ALL"] == [
        (6, 2)
    ]


def test_an_origin_is_asked_for_where_its_copier_is() -> None:
    text = '[[site]]\nname = "dub1"\nregion = "eu-west"\nserver.servers = ["nats://dub1"]\n'
    text += '[[stream]]\nname = "POLICY"\nplace = "dub1"\n[stream.mirror]\nname = "POLICY"\ndomain = "hub"\n'
    wanted = stream(text, "POLICY")
    assert wanted.place == Place("dub1", "")
    assert [origin.place for origin in wanted.origins] == [Place("dub1", "hub")]
    assert wanted.place.connection != HUB

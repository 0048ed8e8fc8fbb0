"""A message that holds registrations of several senders is a sighting of each, or the time behind it is unknown."""

import json
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from edge_agent.core.decisions import BlindCause, BlindSpan, StreamSeen
from edge_agent.core.intake import EXAMINED, MOST_REGISTRATIONS, GoodbyeRule, Intake, SenderByPath
from edge_agent.core.observation import (
    Batch,
    BatchForm,
    Observation,
    ProbeSighting,
    Rejected,
    RejectReason,
    SourceMessage,
    Unopened,
)
from edge_agent.core.payload import DigestRule
from edge_agent.core.replay import CommitReplay, OtherCommit
from edge_agent.core.tracker import Tracker
from edge_agent.observability.health import of_state
from shared.instants import DAY
from shared.tolerant_json import Deviation
from shared.wire import ForwardReason
from tests.support.core.watched_site import POLICY, WatchedSite, advisories_in, forwarded, instant

LINES, ARRAY = BatchForm.LINES, BatchForm.ARRAY


def message(payload: bytes, sequence: int = 1, at: float = 0) -> SourceMessage:
    return SourceMessage("registration.gateway", payload, None, sequence, instant(at))


def senders_in(payload: bytes, path: str, batch: BatchForm) -> list[str]:
    """List the senders that are heard in a body, in their order."""
    result = Intake(SenderByPath(path, batch)).read(message(payload))
    if isinstance(result, Batch):
        return [each.sender_id for each in result.observations]
    return [result.sender_id] if isinstance(result, Observation) else []


BODIES = {
    "JSON lines": (LINES, "host", b'{"host":"a"}\n{"host":"b"}\n'),
    "lines of Windows": (LINES, "host", b'{"host":"a"}\r\n\r\n{"host":"b"}'),
    "no lines between": (LINES, "host", b'{"host":"a"}{"host":"b"}'),
    "printed on several lines": (LINES, "host", b'{\n  "host": "a"\n}\n{\n  "host": "b"\n}'),
    "a text sequence (RFC 7464)": (LINES, "host", b'\x1e{"host":"a"}\n\x1e{"host":"b"}\n'),
    "a byte order mark": (LINES, "host", b'\xef\xbb\xbf{"host":"a"}\n{"host":"b"}'),
    "UTF-16": (LINES, "host", '{"host":"a"}\n{"host":"b"}'.encode("utf-16")),
    "commas between": (LINES, "host", b'{"host":"a"},{"host":"b"}'),
    "what is no JSON in each": (LINES, "host", b'{"host":"a","load":NaN}\n{"host":"b",}'),
    "a line that is cut": (LINES, "host", b'{"host":"a"}\n{"facts":{"os":\n{"host":"b"}'),
    "a prefix on each line": (LINES, "host", b'<14>Nov 28 {"host":"a"}\n<14>Nov 28 {"host":"b"}'),
    "lines of arrays": (LINES, "host", b'[{"host":"a"}]\n{"metrics":[{"host":"b"}]}'),
    "an array": (ARRAY, "host", b' [{"host":"a"}, {"host":"b"}] '),
    "Telegraf": (ARRAY, "tags.host", b'{"metrics":[{"tags":{"host":"a"},"fields":{}},{"tags":{"host":"b"}}]}'),
    "Telegraf by the whole path": (
        ARRAY,
        "metrics.tags.host",
        b'{"metrics":[{"tags":{"host":"a"}},{"tags":{"host":"b"}}]}',
    ),
    "Fluent Bit": (ARRAY, "host", b'[[1700000000.25,{"host":"a"}],[1700000000.5,{"host":"b"}]]'),
    "Fluent Bit with metadata": (
        ARRAY,
        "host",
        b'[[[1700000000.25,{}],{"host":"a"}],[[1700000000.5,{}],{"host":"b"}]]',
    ),
    "osquery": (ARRAY, "hostIdentifier", b'{"node_key":"k","data":[{"hostIdentifier":"a"},{"hostIdentifier":"b"}]}'),
    "JSON as text": (ARRAY, "data.host", json.dumps({"data": json.dumps([{"host": "a"}, {"host": "b"}])}).encode()),
    "lines as text": (LINES, "data.host", json.dumps({"data": '{"host":"a"}\n{"host":"b"}'}).encode()),
    "an array with a comma too many": (ARRAY, "host", b'[{"host":"a"},{"host":"b"},]'),
    "an array that is cut": (ARRAY, "host", b'[{"host":"a"},{"host":"b"},{"ho'),
    "an array in Latin-1": (ARRAY, "host", b'[{"host":"a","os":"caf\xe9"},{"host":"b"}]'),
}


@pytest.mark.parametrize(("batch", "path", "payload"), BODIES.values(), ids=BODIES)
def test_each_sender_of_a_body_is_heard_where_its_form_is_set(batch: BatchForm, path: str, payload: bytes) -> None:
    assert senders_in(payload, path, batch) == ["a", "b"]


@pytest.mark.parametrize(("batch", "path", "payload"), BODIES.values(), ids=BODIES)
def test_a_body_of_several_senders_is_known_for_one_where_no_form_is_set(
    batch: BatchForm, path: str, payload: bytes
) -> None:
    result = Intake(SenderByPath(path)).read(message(payload))
    assert isinstance(result, Observation | Rejected)
    assert result.unopened is not None
    # What people are told to set is what helps.
    assert senders_in(payload, path, BatchForm(result.unopened)) == ["a", "b"], batch


ONE = {
    "a registration": (b'{"host":"a"}', None),
    "senders in its facts": (b'{"host":"a","peers":[{"host":"b"},{"host":"c"}]}', None),
    "lines of one sender": (b'{"host":"a"}\n{"host":"a"}', Deviation.SURPLUS),
    "other lines behind it": (b'{"host":"a"}\n{"load":1}', Deviation.SURPLUS),
    "a note before it": (b'[warn] {"host":"a"}', Deviation.VALUE),
}


@pytest.mark.parametrize(("payload", "deviation"), ONE.values(), ids=ONE)
def test_a_body_of_one_sender_is_no_batch(payload: bytes, deviation: Deviation | None) -> None:
    assert Intake(SenderByPath("host")).read(message(payload)) == Observation(
        "a", message(payload), deviation=deviation
    )


@pytest.mark.parametrize("batch", [LINES, ARRAY])
@pytest.mark.parametrize("payload", [b'{"host":"a"}', b'[{"host":"a"}]', b'{"host":"a"}\n'])
def test_a_batch_of_one_is_that_senders_registration(payload: bytes, batch: BatchForm) -> None:
    assert Intake(SenderByPath("host", batch)).read(message(payload)) == Observation("a", message(payload))


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b"[1,2]", b'{"metrics":[]}', b"nothing", b"[" * 100_000])
@pytest.mark.parametrize("batch", BatchForm)
def test_a_body_without_a_sender_is_rejected_in_every_form(payload: bytes, batch: BatchForm) -> None:
    result = Intake(SenderByPath("host", batch)).read(message(payload))
    assert isinstance(result, Rejected)
    assert result.unopened is None


def test_lines_where_arrays_are_expected_are_known() -> None:
    payload = b'[{"host":"a"}]\n[{"host":"b"}]'
    result = Intake(SenderByPath("host", ARRAY)).read(message(payload))
    assert isinstance(result, Observation)
    assert (result.sender_id, result.unopened) == ("a", Unopened.LINES)


def test_registrations_of_one_sender_make_one_observation() -> None:
    payload = b'[{"host":"a","urgent":true,"n":1},{"host":"b"},{"host":"a","n":2}]'
    result = Intake(SenderByPath("host", ARRAY), "urgent", DigestRule(("*",))).read(message(payload))
    assert isinstance(result, Batch)
    first, second = result.observations
    assert (first.sender_id, first.count, first.forced) == ("a", 2, True)
    assert first.message.payload == b'{"host":"a","urgent":true,"n":1}\n{"host":"a","n":2}'
    assert (second.sender_id, second.count, second.message.payload) == ("b", 1, b'{"host":"b"}')
    assert len({0, first.digest, second.digest}) == 3


def test_a_probe_is_a_probe_whatever_is_set() -> None:
    probe = SourceMessage("probe", b"", {"Muster-Probe": "eu-west.dub1.nodes"}, 1, 0)
    assert isinstance(Intake(SenderByPath("host", LINES)).read(probe), ProbeSighting)


def test_what_is_beyond_the_limit_is_known_to_be_unread() -> None:
    payload = b"\n".join(b'{"host":"n%d"}' % number for number in range(MOST_REGISTRATIONS + 1))
    result = Intake(SenderByPath("host", LINES)).read(message(payload))
    assert isinstance(result, Batch)
    assert (len(result.observations), result.unopened) == (MOST_REGISTRATIONS, Unopened.TOO_LARGE)


@pytest.mark.parametrize("form", [LINES, ARRAY])
def test_a_batch_beyond_the_limit_has_another_remedy_than_the_form_that_is_configured(form: BatchForm) -> None:
    site = BatchSite()
    elements = [b'{"host":"n%d"}' % number for number in range(MOST_REGISTRATIONS + 1)]
    body = b"\n".join(elements) if form is LINES else b"[" + b",".join(elements) + b"]"
    remedies = []
    for batch in (BatchForm.NONE, form):
        site.intake = Intake(SenderByPath("host", batch))
        sent = msgspec.structs.replace(site.next_message(1), payload=body)
        site.gives(partial(site.intake.give, message=sent, too_old=False))
        remedies += [each.remedy for each in of_state("nodes", site.state, 0) if each.name == "batch_not_opened"]
    assert remedies == [
        f'set batch = "{form}" in [stream.sender]',
        "publish at most 65,536 registrations in one message",
    ]


# What a block makes of them


class BatchSite(WatchedSite):
    """A watched site that reads bodies."""

    def __init__(self, batch: BatchForm = BatchForm.NONE, **settings: int) -> None:
        super().__init__(msgspec.structs.replace(POLICY, **settings))
        self.intake = Intake(SenderByPath("host", batch))

    def reads(self, at: float, *senders: str, too_old: bool = False) -> list[tuple[str, str, float]]:
        """Read one message of JSON lines; give what was said of whom."""
        body = "\n".join(json.dumps({"host": sender} if sender else {}) for sender in senders).encode()
        sent = msgspec.structs.replace(self.next_message(at), payload=body)
        self.decided = self.gives(lambda draft: self.intake.give(draft, sent, too_old=too_old))
        return advisories_in(self.decided)

    def checks(self, at: float) -> list[tuple[str, str, float]]:
        """Take a caught-up check; give what was said of whom."""
        return advisories_in(self.gives(lambda draft: draft.prove(instant(at))))


def test_each_line_is_a_sighting_and_the_message_goes_on_once() -> None:
    site = BatchSite(LINES, sample_interval=DAY)
    assert site.reads(0, "a", "b", "", "a") == [("new", "a", 0), ("new", "b", 0)]
    sent = forwarded("", 1, 0, ForwardReason.NEW)
    assert site.decided[2:] == [msgspec.structs.replace(sent, message=site.decided[2].message)]  # type: ignore[union-attr]
    assert site.state.counters["valid"] == {"registrations": 3}
    assert site.state.counters["rejected"] == {"no_sender": 1}
    assert site.state.counters["forwarded"] == {"new": 1}
    # Nobody's sample is due, whatever the message weighs.
    assert (site.reads(5, "b", "a"), site.decided) == ([], [])
    # A new sender's message carries the others: their samples begin there.
    assert site.reads(19, "b", "a", "c") == [("new", "c", 19)]
    assert site.state.counters["forwarded"] == {"new": 2}
    senders = site.tracker.senders
    assert {senders.load(slot).last_forwarded_at for slot in senders.slots.values()} == {instant(19)}


def test_senders_beyond_max_senders_are_counted_line_by_line() -> None:
    site = BatchSite(LINES, max_senders=1)
    assert site.reads(0, "a", "b", "c", "b") == [("new", "a", 0)]
    assert site.state.counters["rejected"] == {"too_many_senders": 3}
    assert site.state.counters["valid"] == {"registrations": 1}
    (rejection,) = site.state.rejections.values()
    assert (rejection.reason, rejection.count) == (RejectReason.TOO_MANY_SENDERS, 3)


def test_a_batch_belongs_to_one_commit_however_many_decisions_it_takes() -> None:
    site = BatchSite(LINES)
    site._decision_limit = 2
    names = [f"n{number}" for number in range(20)]
    assert site.reads(0, *names) == [("new", name, 0) for name in names]
    assert site.commit_count == 1


def test_a_batch_without_senders_goes_on_as_a_message_without_one() -> None:
    site = BatchSite(LINES)
    site.reads(0, "", "")
    assert site.state.counters["forwarded"] == {"copy": 1}
    site.reads(1, "", "", too_old=True)
    assert site.state.counters["withheld"] == {"max_age": 1}


def test_goodbyes_are_counted_and_neither_heard_nor_forwarded() -> None:
    site = BatchSite(LINES)
    site.intake = Intake(SenderByPath("host", LINES), goodbye=GoodbyeRule("turn", ("last",)))
    site.reads(0, "a", "b")
    gone = b'{"host":"a","turn":"last"}\n{"host":"b","turn":"last"}'
    sent = msgspec.structs.replace(site.next_message(7), payload=gone)
    assert site.gives(lambda draft: site.intake.give(draft, sent, too_old=False)) == []
    assert site.state.counters["probes"] == {"goodbye": 2}
    assert site.state.counters["valid"] == {"registrations": 2}
    site.checks(15)
    assert site.checks(21) == [("stale", "a", 20), ("stale", "b", 20)]


def test_nobody_is_accused_while_messages_of_several_senders_are_read_as_one() -> None:
    site = BatchSite()
    assert site.reads(0, "a") == [("new", "a", 0)]
    assert site.reads(5, "b") == [("new", "b", 5)]
    for at in range(10, 200, 8):
        assert site.reads(at, "b", "a") == []
        assert site.state.is_suspended
        assert site.state.observed_since == site.state.observed_through == instant(at)
    assert site.state.counters["blind"] == {"batch": 1}
    assert site.state.seen.batch == "lines"
    # For stale_after (20) behind the last, any sender may be in what was not opened; then each has the full time.
    last = 194
    for at in range(last, last + 20, 4):
        assert site.checks(at) == []
        assert site.state.is_suspended
    since = last + 21
    assert site.checks(since) == []
    assert not site.state.is_suspended
    accused = [each for at in range(since, since + 30, 2) for each in site.checks(at)]
    assert accused == [("stale", "a", since + 20), ("stale", "b", since + 20)]


def test_a_batch_that_names_nobody_first_is_known_too() -> None:
    site = BatchSite()
    site.reads(0, "a")
    site.reads(1, "", "a", "b")
    assert site.state.is_suspended
    assert site.state.counters["rejected"] == {"batch": 1}


def test_blindness_by_batches_outlives_a_restart_and_a_replay_decides_the_same() -> None:
    live = BatchSite()
    tracker = Tracker(live.state)
    scripts: list[Callable[[], object]] = [
        lambda: live.reads(0, "a", "b"),
        lambda: live.reads(3, "a"),
        lambda: live.checks(10),
        lambda: live.checks(23),
        lambda: live.checks(24),
        lambda: live.reads(30, "b", "c"),
    ]
    bodies = {
        0: (1, b'{"host": "a"}\n{"host": "b"}'),
        1: (2, b'{"host": "a"}'),
        5: (3, b'{"host": "b"}\n{"host": "c"}'),
    }
    seconds = {0: 0, 1: 3, 5: 30}
    for number, script in enumerate(scripts):
        before = len(live.recorded)
        script()
        replay = CommitReplay(tracker, live.intake, OtherCommit(live.state, tuple(live.recorded[before:])))
        if number in bodies:
            sequence, body = bodies[number]
            sent = SourceMessage("registration.dub1", body, None, sequence, instant(seconds[number]))
            list(replay.take([sent]))
        tracker.adopt(replay.finish())
        assert tracker.state == live.state
    suspended = [item.batch for item in live.recorded if isinstance(item, StreamSeen)]
    assert suspended == ["lines", "", "lines"]
    assert [item.cause for item in live.recorded if isinstance(item, BlindSpan)] == [BlindCause.BATCH]


def test_senders_are_looked_for_in_a_bounded_part_of_a_body() -> None:
    nameless = b"[" + b'{"load":1},' * EXAMINED + b'{"host":"a"}]'
    result = Intake(SenderByPath("host")).read(message(nameless))
    assert isinstance(result, Rejected)
    assert result.unopened is None

"""A relay samples by origin, remembers each for as long as it is heard, and passes nothing on twice."""

import random

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import BlindCause, EpochBegun, Forward
from edge_agent.core.intake import Intake, SenderByPath
from edge_agent.core.observation import PROBE_HEADER, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Lane, WatermarkContext
from edge_agent.core.relay_mode import Relay, RelayEmitter, RelayIntake
from shared.identifiers import AdvisoryKind, BlockId, Incarnation, SourcePosition
from shared.instants import DAY, MINUTE, SECOND
from shared.subjects import advisory_subject, copy_prefix, registration_subject, watermark_subject
from shared.wire import origin_header

START = 1_700_000_000 * SECOND
FLEET_PAST = Incarnation(START - DAY, 1_700_000_000_000)
SITE_PAST = Incarnation(START - 2 * DAY, 1_699_000_000_000)
OTHER_PAST = Incarnation(START - 2 * DAY, 1_699_000_000_001)
POLICY = Policy(sample_interval=MINUTE, stale_after=2 * MINUTE, retire_after=10 * MINUTE, blind_after=30 * SECOND)
DUB1, LON1 = BlockId("eu-west", "dub1", "nodes"), BlockId("eu-west", "lon1", "nodes")
CONTEXT = WatermarkContext({}, {}, {})


class RelaySite:
    """A relay that commits after every message. Instants are seconds after START."""

    def __init__(self, policy: Policy = POLICY) -> None:
        position = SourcePosition("FLEET", FLEET_PAST, 0)
        self.relay = Relay(BlockState(position, policy, mode="relay"))
        self.intake = RelayIntake(Intake(SenderByPath("sender")))
        self._sequence = 0

    def meets(
        self,
        subject: str,
        origin: str,
        at: float,
        body: bytes = b'{"sender":"a"}',
        *,
        too_old: bool = False,
        named: str = "",
    ) -> list[Forward]:
        """Read one message; give what goes on."""
        self._sequence += 1
        headers = ({"Muster-Origin": origin} if origin else {}) | ({"Muster-Sender": named} if named else {})
        draft = self.relay.draft()
        message = SourceMessage(subject, body, headers, self._sequence, START + round(at * SECOND))
        assert self.intake.give(draft, message, too_old=too_old)
        self.relay.adopt(draft)
        return [decision for decision in draft.decisions if isinstance(decision, Forward)]

    def hears(
        self, sequence: int, at: float, block_id: BlockId = DUB1, *, sender: str = "a", past: Incarnation = SITE_PAST
    ) -> str:
        """Read a registration; give the reason for which it goes on, or nothing."""
        body = b'{"sender":"%s"}' % sender.encode()
        went_on = self.meets(registration_subject(block_id), origin_header(block_id, past, sequence), at, body)
        return str(went_on[0].reason) if went_on else ""

    @property
    def counters(self) -> dict[str, dict[str, int]]:
        return self.relay.state.counters


def test_first_registration_of_an_origin_goes_on_and_the_next_after_the_interval() -> None:
    site = RelaySite()
    assert site.hears(1, 0) == "new"
    # The first interval is shortened by a hash of the origin; no interval is longer than a minute.
    assert site.hears(2, 60) == "interval"
    assert [site.hears(3, 90), site.hears(4, 119.9), site.hears(5, 120)] == ["", "", "interval"]
    assert site.counters == {"forwarded": {"new": 1, "interval": 2}, "skipped": {"sampled": 2}}


def test_first_intervals_are_spread() -> None:
    intervals = {POLICY.first_interval(f"{DUB1}.node{number}") // SECOND for number in range(200)}
    assert len(intervals) > 40


@pytest.mark.parametrize("body", [b'{"sender":"other"}', b"NaN", b"{}"])
def test_sender_is_who_the_site_says_it_is(body: bytes) -> None:
    site = RelaySite()
    went_on = [
        site.meets(registration_subject(DUB1), origin_header(DUB1, SITE_PAST, number), number, body, named=named)
        for number, named in enumerate(("b%C3%BCro", "b%C3%BCro", "100%25", ""), 1)
    ]
    names = [each.sender_id.removeprefix(f"{DUB1}.") for one in went_on for each in one]
    assert names == ["büro", "100%", "other" if b"other" in body else ""]


@pytest.mark.parametrize("named", ["%00", "x" * 1025, "\ud83d", "caf\udce9"])
def test_name_that_no_store_takes_is_not_taken_from_a_header(named: str) -> None:
    site = RelaySite()
    (went_on,) = site.meets(registration_subject(DUB1), origin_header(DUB1, SITE_PAST, 1), 0, named=named)
    assert went_on.sender_id == f"{DUB1}.a"


def test_no_body_is_read_where_the_header_names_the_sender() -> None:
    """What is slow to read is counted, so that others on the loop are run behind it."""
    site = RelaySite()
    for number, (named, slow_count) in enumerate((("a", 0), ("", 1), ("%00", 2), ("a", 2)), 1):
        origin = origin_header(DUB1, SITE_PAST, number)
        site.meets(registration_subject(DUB1), origin, number, b'{"sender":"a",}', named=named)
        assert site.intake.slow_count == slow_count


def test_senders_of_one_name_at_two_sites_are_two_origins() -> None:
    site = RelaySite()
    assert [site.hears(1, 0, DUB1), site.hears(1, 1, LON1), site.hears(2, 1, DUB1)] == ["new", "new", ""]
    assert site.relay.sender_counts() == {"heard": 2}


def test_record_that_comes_round_again_goes_on_once() -> None:
    site = RelaySite()
    assert [site.hears(7, 0), site.hears(7, 100), site.hears(6, 200)] == ["new", "", ""]
    assert site.counters["skipped"] == {"repeated": 2}
    assert site.hears(1, 300, past=OTHER_PAST) == "interval"


def test_origin_that_is_not_heard_for_retire_after_is_forgotten() -> None:
    site = RelaySite()
    site.hears(1, 0, sender="silent")
    site.hears(2, 300, sender="heard")
    site.hears(3, 600, sender="heard")
    assert site.relay.sender_counts() == {"heard": 2}
    site.hears(4, 601, sender="heard")
    assert site.relay.sender_counts() == {"heard": 1}
    assert site.hears(5, 602, sender="silent") == "new"


def test_origins_are_forgotten_while_nothing_is_stored() -> None:
    site = RelaySite()
    site.hears(1, 0)
    early, late = site.relay.draft(), site.relay.draft()
    early.prove(START + 600 * SECOND)
    late.prove(START + 601 * SECOND)
    assert (early.changes_nothing, late.changes_nothing) == (True, False)
    site.relay.adopt(late)
    assert site.relay.sender_counts() == {"heard": 0}


def test_slots_of_the_forgotten_are_used_again() -> None:
    site = RelaySite()
    for number in range(3):
        site.hears(number + 1, number, sender=f"node{number}")
    site.hears(10, 700, sender="later")
    site.hears(11, 701, sender="latest")
    assert (len(site.relay.origins), len(site.relay.origins.sender_ids)) == (2, 4)


@pytest.mark.parametrize(
    ("subject", "cause"),
    [
        (advisory_subject(DUB1, AdvisoryKind.STALE), "advisory"),
        (watermark_subject(DUB1), "watermark"),
        (f"{copy_prefix(DUB1)}.registration.a", "copy"),
        ("nodes.registration", "other_record"),
    ],
)
def test_other_records_go_no_further(subject: str, cause: str) -> None:
    site = RelaySite()
    assert site.meets(subject, origin_header(DUB1, SITE_PAST, 1), 0) == []
    assert site.counters == {"skipped": {cause: 1}}


@pytest.mark.parametrize(
    ("origin", "cause"),
    [("", "no_origin"), ("eu-west.dub1", "no_origin"), (origin_header(LON1, SITE_PAST, 1), "origin_disagrees")],
)
def test_registration_whose_origin_cannot_be_believed_goes_no_further(origin: str, cause: str) -> None:
    site = RelaySite()
    assert site.meets(registration_subject(DUB1), origin, 0) == []
    assert site.counters == {"rejected": {cause: 1}}


def test_registration_without_a_sender_goes_on_unsampled() -> None:
    site = RelaySite()
    for sequence in (1, 2):
        (went_on,) = site.meets(registration_subject(DUB1), origin_header(DUB1, SITE_PAST, sequence), 0, b"[]")
        assert (went_on.sender_id, went_on.reason) == ("", "copy")
    assert site.counters["rejected"] == {"not_a_json_object": 2}


def test_registration_of_several_senders_goes_on_unsampled() -> None:
    site = RelaySite()
    for sequence, body in enumerate([b'{"sender":"a"}\n{"sender":"b"}', b'[{"sender":"a"},{"sender":"b"}]'], 1):
        (went_on,) = site.meets(registration_subject(DUB1), origin_header(DUB1, SITE_PAST, sequence), 0, body)
        assert (went_on.sender_id, went_on.reason) == ("", "copy")
    assert site.relay.sender_counts() == {"heard": 0}


def test_registration_that_is_not_quite_json_is_sampled_by_its_sender() -> None:
    site = RelaySite()
    subject = registration_subject(DUB1)
    (went_on,) = site.meets(subject, origin_header(DUB1, SITE_PAST, 1), 0, b'{"sender":"a","x":NaN}')
    assert (went_on.sender_id, went_on.reason) == ("eu-west.dub1.nodes.a", "new")
    assert site.meets(subject, origin_header(DUB1, SITE_PAST, 2), 1, b'{"sender":"a",}') == []
    assert site.counters["tolerated"] == {"value": 1, "structure": 1}


def test_origin_that_is_one_too_many_is_turned_away() -> None:
    site = RelaySite(msgspec.structs.replace(POLICY, max_senders=2))
    assert [site.hears(sequence, 0, sender=sender) for sequence, sender in enumerate("abcab", 1)] == [
        "new",
        "new",
        "",
        "",
        "",
    ]
    assert site.counters["rejected"] == site.counters["withheld"] == {"too_many_senders": 1}
    assert site.hears(6, 700, sender="c") == "", "only who has been forgotten makes room"
    assert site.hears(7, 701, sender="c") == "new"


def test_registration_that_is_too_old_is_withheld() -> None:
    site = RelaySite()
    assert site.meets(registration_subject(DUB1), origin_header(DUB1, SITE_PAST, 1), 0, too_old=True) == []
    assert site.counters == {"withheld": {"max_age": 1}}


def test_probe_goes_no_further() -> None:
    site = RelaySite()
    draft = site.relay.draft()
    headers = {
        "Muster-Origin": origin_header(DUB1, SITE_PAST, 1),
        "Muster-Sender": "a",
        PROBE_HEADER: "eu-west.dub1.nodes",
    }
    message = SourceMessage(registration_subject(DUB1), b'{"sender":"a"}', headers, 1, START)
    assert RelayIntake(Intake(SenderByPath("sender"))).give(draft, message, too_old=False)
    assert (draft.decisions, draft.state().counters) == ([], {"probes": {"others": 1}})


def test_changed_past_begins_an_epoch_and_forgets_nobody() -> None:
    site = RelaySite()
    site.hears(5, 0)
    draft = site.relay.draft()
    later = Incarnation(FLEET_PAST.created_at, FLEET_PAST.epoch_ms + 1)
    assert draft.begin_epoch(later, 0)
    site.relay.adopt(draft)
    state = site.relay.state
    assert (state.position, state.pending_blind) == (SourcePosition("FLEET", later, 0), BlindCause.NEW_EPOCH)
    assert draft.recorded == [EpochBegun(later, START, 1)]
    assert site.hears(5, 100) == ""


def test_record_keeps_its_subject_bytes_and_headers() -> None:
    origin = origin_header(DUB1, SITE_PAST, 7)
    kept = {"Muster-Origin": origin, "Choria-SR-Source": "R 7 dub1 nodes 1", "Muster-Sender": "a", "X": "y"}
    headers = {"Nats-Stream-Source": "x", **kept}
    message = SourceMessage(registration_subject(DUB1), b'{"sender":"a"}', headers, 1, START)
    emitter = RelayEmitter(BlockId("eu", "paris", "up"), bytes(32))
    state = BlockState(SourcePosition("FLEET", FLEET_PAST, 1), POLICY)
    relay = Relay(state)
    draft = relay.draft()
    RelayIntake(Intake(SenderByPath("sender"))).give(draft, message, too_old=False)
    (row,) = emitter.rows(draft.decisions, state, CONTEXT)
    (again,) = emitter.rows(draft.decisions, state, CONTEXT)
    assert (row.lane, row.block, row.subject, row.payload) == (
        Lane.REGISTRATIONS,
        "up",
        registration_subject(DUB1),
        b'{"sender":"a"}',
    )
    assert row.sender_id == "eu-west.dub1.nodes.a"
    assert row.headers == {**kept, "Nats-Msg-Id": again.headers["Nats-Msg-Id"]}
    assert row.headers_size == sum(len(f"{name}: {value}\r\n") for name, value in kept.items())


def cut_at(cuts: set[int], heard: list[tuple[int, str, int]]) -> list[tuple[str, str, int]]:
    """Relay what was heard (sequence, sender, instant) in drafts that end behind ``cuts``; give what went on."""
    relay = Relay(BlockState(SourcePosition("FLEET", FLEET_PAST, 0), POLICY, mode="relay"))
    intake, went_on = RelayIntake(Intake(SenderByPath("sender"))), []
    draft = relay.draft()
    for number, (sequence, sender, at) in enumerate(heard, 1):
        headers = {"Muster-Origin": origin_header(DUB1, SITE_PAST, sequence)}
        body = b'{"sender":"%s"}' % sender.encode()
        message = SourceMessage(registration_subject(DUB1), body, headers, number, START + at * SECOND)
        assert intake.give(draft, message, too_old=False)
        if number in cuts or number == len(heard):
            went_on += [
                (each.sender_id, str(each.reason), each.message.sequence)
                for each in draft.decisions
                if isinstance(each, Forward)
            ]
            relay.adopt(draft)
            draft = relay.draft()
    return went_on


def test_what_goes_on_does_not_depend_on_how_reading_was_cut_up() -> None:
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    for _ in range(100):
        at, heard = 0, []
        for number in range(1, 41):
            at += random.choice((0, 1, 30, 200, 605))
            heard.append((random.choice((number, max(1, number - 3))), random.choice("abc"), at))
        everywhere = set(range(41))
        some = {number for number in everywhere if random.random() < 0.3}
        assert cut_at(set(), heard) == cut_at(everywhere, heard) == cut_at(some, heard)


def test_relay_that_does_not_follow_a_clock_lets_no_time_pass_and_samples_on_when_it_does() -> None:
    site = RelaySite()
    site.hears(5, 0)
    for is_ahead, at, reason in ((True, 400 * 86_400, ""), (False, 30, ""), (False, 70, "interval")):
        draft = site.relay.draft()
        assert draft.see_clock(is_ahead=is_ahead, reference=START)
        assert draft.changes_nothing is (at == 70)
        site.relay.adopt(draft)
        assert site.hears(6 + at, at) == reason
    assert site.relay.state.observed_through == START + 70 * SECOND

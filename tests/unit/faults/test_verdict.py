"""The verdict on a schedule of faults can fail: whatever is lost, duplicated or wrong is found, and nothing else."""

from collections.abc import Callable

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import (
    Advise,
    BlindCause,
    BlindSpan,
    Clamped,
    EpochBegun,
    Forward,
    ObservationBegun,
    StreamSeen,
)
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, OutboxRow, WatermarkContext
from shared import wire
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.instants import SECOND
from shared.subjects import copy_prefix
from tests.support.core.straight_replay import replay
from tests.support.faults.evidence import Evidence, FleetRecord
from tests.support.faults.stage import Down
from tests.support.faults.verdict import Verdict, judge

BLOCK = BlockId("eu-west", "dub1", "nodes")
PAST = Incarnation(created_at=1, epoch_ms=1)
COPIES = BlockId("eu-west", "dub1", "copies")
POLICY = Policy(sample_interval=2 * SECOND, stale_after=3 * SECOND, retire_after=8 * SECOND, blind_after=SECOND)
THROUGH = 7 * SECOND
REFUSED = Down(3_100_000, 6 * SECOND, refuses=True)
# Both register at once; b, heard once more at 2.5 s, falls stale at 5.5 s.
HEARD = [("a", 10), ("b", 11), ("a", 20), ("b", 25), *(("a", tenths) for tenths in range(30, 70, 5))]


def evidence() -> Evidence:
    """Give what an agent leaves that did everything right."""
    messages = [
        (sender_id, SourceMessage("registration.copied.a", b"%d" % number, None, number, tenths * SECOND // 10))
        for number, (sender_id, tenths) in enumerate(HEARD, 1)
    ]
    last = messages[-1][1]
    state = BlockState(
        position=SourcePosition("REGISTRATION", PAST, last.sequence, last.stored_at),
        policy=POLICY,
        observed_since=SECOND,
        observed_through=THROUGH,
        advisory_ordinal=3,
        counters={"valid": {"registrations": len(messages)}},
    )
    began = ObservationBegun(SECOND, 0)
    decisions = replay(
        BlockState(SourcePosition("REGISTRATION", PAST, 0), POLICY),
        [(PAST, Observation(sender_id, message)) for sender_id, message in messages],
        [began],
        THROUGH,
    )
    nothing = WatermarkContext({}, {}, {})
    emitter = Emitter(BLOCK, "dub1-a", "boot", "1", "sender", bytes(32))
    rows = [*emitter.rows(decisions, state, nothing), emitter.watermark(state, nothing)]
    advise: list[Advise | Forward] = [decision for decision in decisions if isinstance(decision, Advise)]
    return Evidence(
        block_id=BLOCK,
        incarnation=PAST,
        state=state,
        messages=messages,
        recorded=[began],
        advisories=[row.payload for row in emitter.rows(list(advise), state, nothing)],
        forwarded={
            wire.origin_header(BLOCK, PAST, decision.message.sequence): decision.message.payload
            for decision in decisions
            if isinstance(decision, Forward)
        },
        fleet=[record(row) for row in rows],
    )


def record(row: OutboxRow) -> FleetRecord:
    return FleetRecord(row.subject, row.payload, dict(row.headers))


def place(evidence: Evidence, part: str) -> int:
    """Find the last record on a subject that ends so."""
    return max(number for number, each in enumerate(evidence.fleet) if each.subject.endswith(part))


def take_out(part: str) -> Callable[[Evidence], None]:
    def harm(evidence: Evidence) -> None:
        del evidence.fleet[place(evidence, part)]

    return harm


def say_twice(part: str) -> Callable[[Evidence], None]:
    def harm(evidence: Evidence) -> None:
        evidence.fleet.append(evidence.fleet[place(evidence, part)])

    return harm


def falsify(part: str, old: bytes, new: bytes) -> Callable[[Evidence], None]:
    def harm(evidence: Evidence) -> None:
        number = place(evidence, part)
        right = evidence.fleet[number]
        assert old in right.payload
        evidence.fleet[number] = FleetRecord(right.subject, right.payload.replace(old, new), right.headers)

    return harm


def vouch_first(evidence: Evidence) -> None:
    evidence.fleet.insert(0, evidence.fleet.pop())


def lose_an_acknowledged_one(evidence: Evidence) -> None:
    evidence.acknowledged.add("a-99")


def stop_reading(evidence: Evidence) -> None:
    message = SourceMessage("registration.nodes", b"", None, len(HEARD) + 1, THROUGH - 1)
    evidence.messages.append(("a", message))


def hear_the_accused(evidence: Evidence, sender_id: str = "b") -> None:
    """A message that neither the agent nor the straight run took for one of b's."""
    number, (_, message) = next((n, each) for n, each in enumerate(evidence.messages) if each[1].sequence == 6)
    evidence.messages[number] = (sender_id, message)


def site_was_down(evidence: Evidence) -> None:
    evidence.downs.append(Down(3 * SECOND, 5 * SECOND))


def be_blind(span: BlindSpan) -> Callable[[Evidence], None]:
    def harm(evidence: Evidence) -> None:
        evidence.recorded.append(span)

    return harm


def begin_an_epoch(evidence: Evidence) -> None:
    evidence.recorded.append(EpochBegun(Incarnation(1, 2), 2 * SECOND, 3))


def miscount(evidence: Evidence) -> None:
    evidence.let_go = [(0, 1)]


def found(verdict: Verdict) -> tuple[bool, bool, bool]:
    return bool(verdict.lost), bool(verdict.duplicated), bool(verdict.wrong)


def test_nothing_is_found_where_nothing_is_amiss() -> None:
    verdict = judge(evidence())
    assert (verdict.lost, verdict.duplicated, verdict.wrong) == ([], [], [])
    assert verdict.line == "lost, duplicated, wrong: 0, 0, 0"
    assert verdict.counts["advisories: stale"] == 1
    assert verdict.counts["registrations forwarded"] == 4


def test_a_registration_that_was_let_go_and_counted_is_not_lost() -> None:
    known = evidence()
    number = place(known, ".registration")
    sequence = wire.parse_origin_header(known.fleet.pop(number).headers[wire.ORIGIN_HEADER])[2]
    known.fates, known.let_go = {sequence: "newer_sample"}, [(1, 1)]
    assert judge(known).is_clean


def judged_with(down: Down, *stored_at: int, is_seen: bool = True) -> list[str]:
    known = evidence()
    known.downs.append(down)
    if is_seen and down.subject:
        known.recorded.append(StreamSeen(down.started_at, len(HEARD), narrowed_at=down.started_at + 1))
    known.messages = [each for each in known.messages if not down.started_at < each[1].stored_at < down.ended_at]
    known.messages += [("", SourceMessage("registration.copied.a", b"", None, at, at)) for at in stored_at]
    return [said for said in judge(known).wrong if "meanwhile" in said or "covers" in said]


def test_a_sender_must_not_be_called_stale_while_the_stream_refuses_nor_that_time_be_vouched_for() -> None:
    accused, covered = judged_with(REFUSED)
    assert accused == "advisory 3, b stale at 5500000: the site's stream stored nothing meanwhile"
    assert covered.endswith("covers 4100000 to 6000000, when the site's stream stored nothing")


def test_a_stream_that_stores_now_and_then_or_refuses_while_answers_still_count_makes_nobody_unheard() -> None:
    assert judged_with(REFUSED, *range(3_200_000, 6_000_000, 500_000)) == []
    assert judged_with(Down(3_900_000, 5_800_000, refuses=True)) == []


def test_a_stream_that_is_deaf_to_some_makes_nobody_else_unheard() -> None:
    (accused,) = judged_with(REFUSED._replace(subject="registration.copied.a"))
    assert "the site's stream did not listen on registration.copied.a meanwhile" in accused
    assert judged_with(REFUSED._replace(subject="registration.nodes")) == []
    assert judged_with(REFUSED._replace(subject="registration.copied.a"), is_seen=False) == []


def test_who_published_what_the_agent_could_not_read_was_heard() -> None:
    known = evidence()
    hear_the_accused(known, "")
    assert not any("it was heard meanwhile" in said for said in judge(known).wrong)
    known.published_by[6] = "b"
    assert any("it was heard meanwhile" in said for said in judge(known).wrong)
    known.recorded.append(Clamped(6, 6 * SECOND))
    assert any("it was heard meanwhile" in said for said in judge(known).wrong), "late, where nothing excuses that"
    known.shown_twice.append((3 * SECOND, 6 * SECOND))
    assert not any("it was heard meanwhile" in said for said in judge(known).wrong)


def test_a_probe_that_the_agent_left_unread_is_no_registration_lost() -> None:
    known = evidence()
    known.messages.append(("", SourceMessage("registration.probe", b"", None, 99, THROUGH)))
    assert judge(known).lost
    known.probes.add(99)
    assert judge(known).is_clean


def test_a_time_that_the_sites_clock_shows_once_more_is_not_the_one_that_was_given_up() -> None:
    def is_wrong(*tenths: int) -> bool:
        known = evidence()
        known.recorded.append(BlindSpan(7 * SECOND, 8 * SECOND, BlindCause.UNPROVEN, len(HEARD)))
        for number, at in enumerate(tenths, len(HEARD) + 1):
            known.messages.append(("a", SourceMessage("registration.nodes", b"", None, number, at * SECOND // 10)))
        return any("though messages were stored meanwhile" in said for said in judge(known).wrong)

    assert is_wrong(75, 80)
    assert not is_wrong(80, 75), "its clock was set back in between"


@pytest.mark.parametrize(
    "harm",
    [take_out(".registration"), lose_an_acknowledged_one],
    ids=["a registration", "one that the site had acknowledged"],
)
def test_what_is_lost_is_found(harm: Callable[[Evidence], None]) -> None:
    known = evidence()
    harm(known)
    assert found(judge(known)) == (True, False, False)


def test_an_advisory_that_is_lost_is_found_and_so_is_the_watermark_that_vouches_for_it() -> None:
    known = evidence()
    take_out(".advisory.stale")(known)
    verdict = judge(known)
    assert verdict.lost == ["advisory 3, b stale at 5500000"]
    unconfirmed, missing = verdict.wrong
    assert "came before the advisories [3]" in unconfirmed
    assert missing == "b: stale is due at 5500000; found: no advisory"


def test_a_registration_that_was_never_read_is_lost_and_uncounted() -> None:
    known = evidence()
    stop_reading(known)
    assert found(judge(known)) == (True, False, True)


@pytest.mark.parametrize("part", [".advisory.stale", ".registration", ".watermark"])
def test_what_comes_twice_is_found(part: str) -> None:
    known = evidence()
    say_twice(part)(known)
    assert found(judge(known)) == (False, True, False)


@pytest.mark.parametrize(("ordinal", "comes_twice"), [(3, False), (2, True)])
def test_the_last_watermark_may_be_said_again_with_what_keeps_the_next_one_back(
    ordinal: int, comes_twice: bool
) -> None:
    known = evidence()
    last = known.fleet[-1]
    mark = msgspec.structs.replace(wire.decode_watermark(last.payload), condition="link_down", advisory_ordinal=ordinal)
    known.fleet.append(msgspec.structs.replace(last, payload=msgspec.json.encode(mark)))
    assert found(judge(known)) == (False, comes_twice, False)


@pytest.mark.parametrize("times", [1, 2])
def test_what_a_run_before_committed_may_be_said_before_the_watermark_that_ends_it(times: int) -> None:
    known = evidence()
    last = known.fleet.pop()
    mark = msgspec.structs.replace(wire.decode_watermark(last.payload), condition="link_down")
    known.fleet += [msgspec.structs.replace(last, payload=msgspec.json.encode(mark)), *[last] * times]
    assert found(judge(known)) == (False, times > 1, False)


@pytest.mark.parametrize(
    "harm",
    [
        falsify(".advisory.stale", b'"age":3', b'"age":4'),
        falsify(".registration", b"9", b"8"),
        falsify(".watermark", b'"observed_since_us":1000000', b'"observed_since_us":900000'),
        falsify(".watermark", b'"advisory_ordinal":3', b'"advisory_ordinal":2'),
        vouch_first,
        hear_the_accused,
        site_was_down,
        be_blind(BlindSpan(SECOND, 4 * SECOND, BlindCause.UNPROVEN, 1)),
        be_blind(BlindSpan(THROUGH, THROUGH + 1, BlindCause.GAP, len(HEARD))),
        begin_an_epoch,
        miscount,
    ],
    ids=[
        "an advisory's bytes",
        "a registration's bytes",
        "coverage from before the beginning",
        "coverage with fewer advisories than decided",
        "a watermark before its advisories",
        "a stale sender that was heard",
        "a stale sender that nobody could hear",
        "blindness in the midst of messages",
        "a gap that there was not",
        "an epoch of an unchanged past",
        "letting go miscounted",
    ],
)
def test_what_is_wrong_is_found(harm: Callable[[Evidence], None]) -> None:
    known = evidence()
    harm(known)
    verdict = judge(known)
    assert verdict.wrong
    assert (verdict.lost, verdict.duplicated) == ([], [])


def test_an_advisory_that_a_straight_run_does_not_know_is_wrong() -> None:
    known = evidence()
    falsify(".advisory.stale", b'"value":"b"', b'"value":"c"')(known)
    right = known.fleet[place(known, ".advisory.stale")]
    body = msgspec.json.decode(right.payload)
    body["event_id"] = "0" * 32
    known.fleet.append(FleetRecord(right.subject, msgspec.json.encode(body), {}))
    assert any("of which a straight run knows nothing" in finding for finding in judge(known).wrong)


# Copies


def copied() -> Evidence:
    """Give what an agent leaves that copied everything besides."""
    known = evidence()
    known.copies_id = COPIES
    known.fleet += [
        FleetRecord(
            f"{copy_prefix(COPIES)}.{message.subject}",
            message.payload,
            {wire.ORIGIN_HEADER: wire.origin_header(COPIES, PAST, message.sequence)},
        )
        for _, message in known.messages
    ]
    return known


def test_copies_of_everything_are_what_must_be() -> None:
    assert judge(copied()).is_clean
    assert judge(copied()).counts["messages copied"] == len(HEARD)


def test_a_copy_that_is_lost_is_found_unless_it_is_set_apart_and_whole() -> None:
    known = copied()
    record = known.fleet.pop(place(known, ".copy.registration.copied.a"))
    assert judge(known).lost == [f"copy of message {len(HEARD)}"]
    known.set_apart[record.headers[wire.ORIGIN_HEADER]] = record.payload
    assert judge(known).is_clean
    known.set_apart[record.headers[wire.ORIGIN_HEADER]] = b""
    assert found(judge(known)) == (False, False, True)


def test_a_copy_that_comes_twice_is_found() -> None:
    known = copied()
    say_twice(".copy.registration.copied.a")(known)
    assert found(judge(known)) == (False, True, False)


def test_a_copy_that_is_not_what_was_published_is_found() -> None:
    known = copied()
    falsify(".copy.registration.copied.a", b"2", b"3")(known)
    assert found(judge(known)) == (False, False, True)


def test_a_copy_out_of_order_is_found() -> None:
    known = copied()
    known.fleet.insert(-3, known.fleet.pop())
    assert found(judge(known)) == (False, False, True)

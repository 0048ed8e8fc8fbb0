"""The independent judge of a schedule of faults accepts a right agent, and finds each kind of wrong one."""

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from shared import wire
from shared.identifiers import AdvisoryKind, BlockId, Incarnation, SourcePosition
from shared.instants import SECOND
from shared.subjects import advisory_subject, watermark_subject
from shared.wire import Watermark
from tests.support.core.advisories import advisory_of
from tests.support.faults.evidence import Evidence, FleetRecord
from tests.support.faults.stage import Down
from tests.support.faults.truth import contradictions

BLOCK = BlockId("eu-west", "dub1", "nodes")
PAST = Incarnation(created_at=1, epoch_ms=1)
POLICY = Policy(sample_interval=SECOND, stale_after=3 * SECOND, retire_after=8 * SECOND, blind_after=SECOND)
# In seconds: a is heard twice a second, except between 20 and 25; b is silent from 4 to 9, and for good from 13 on.
OF_A = [half / 2 for half in range(2, 81) if not 40 < half < 50]
HEARD = sorted([*((at, "a") for at in OF_A), (4, "b"), (9, "b"), (11, "b"), (13, "b")])
SPANS = [(1, 20), (25, 40)]
NEW, STALE, RECOVERED, RETIRED = AdvisoryKind.NEW, AdvisoryKind.STALE, AdvisoryKind.RECOVERED, AdvisoryKind.RETIRED
# b is retired after five seconds of covered time: four before the gap, one after it.
OF_B = [(NEW, 4), (STALE, 7), (RECOVERED, 9), (STALE, 16), (RETIRED, 26)]


class Site:
    """The stream's messages, the advisories of b, and the covered spans of one run; a test changes one of them."""

    def __init__(self) -> None:
        self.heard = list(HEARD)
        self.of_b: list[tuple[AdvisoryKind, float]] = list(OF_B)
        self.spans: list[tuple[float, float]] = list(SPANS)
        self.marks: dict[str, object] = {}
        self.evidence = Evidence(
            block_id=BLOCK,
            incarnation=PAST,
            state=BlockState(SourcePosition("REGISTRATION", PAST, 0), POLICY),
            messages=[],
        )

    def contradictions(self) -> list[str]:
        """Return what the judge finds."""
        evidence = self.evidence
        evidence.messages = [
            ("", SourceMessage("registration", b"", None, number, us(at)))
            for number, (at, _) in enumerate(self.heard, 1)
        ]
        evidence.published_by = {number: sender for number, (_, sender) in enumerate(self.heard, 1)}
        evidence.fleet = [self._advisory("a", NEW, 1), *(self._advisory("b", kind, at) for kind, at in self.of_b)]
        evidence.fleet += [
            FleetRecord(watermark_subject(BLOCK), wire.encode(watermark(since, through)))
            for since, through in self.spans
        ]
        return list(contradictions(evidence))

    def _advisory(self, sender: str, kind: AdvisoryKind, at: float) -> FleetRecord:
        before = [number for number, (heard_at, name) in enumerate(self.heard, 1) if name == sender and heard_at <= at]
        advisory = advisory_of(
            BLOCK,
            kind,
            sender_id=sender,
            inspect_field="sender",
            at=us(at),
            last_seen_at=us(at),
            stream="REGISTRATION",
            incarnation=PAST,
            sequence=before[-1],
            opening=(PAST, before[0]),
            ordinal=1,
        )
        marked = msgspec.structs.replace(advisory, **self.marks) if kind is RETIRED else advisory
        return FleetRecord(advisory_subject(BLOCK, kind), wire.encode(marked))


def us(seconds: float) -> int:
    return round(seconds * SECOND)


def watermark(since: float, through: float) -> Watermark:
    return Watermark(
        region=BLOCK.region,
        site=BLOCK.site,
        block=BLOCK.block,
        agent="dub1-a",
        observed_since_us=us(since),
        observed_through_us=us(through),
        stream="REGISTRATION",
        incarnation=str(PAST),
        sequence=1,
        advisory_ordinal=1,
        senders={},
        outbox={},
        counters={},
        stale_after=POLICY.stale_after,
        retire_after=POLICY.retire_after,
        blind_after=POLICY.blind_after,
        policy_revision=0,
        version="1",
        boot_id="boot",
    )


def test_a_right_agent_is_not_contradicted() -> None:
    assert Site().contradictions() == []


def test_a_silence_that_no_advisory_reports_is_found() -> None:
    site = Site()
    del site.of_b[1:3]
    assert site.contradictions() == ["b: stale is due at 7000000; found: stale at 16000000, message 29"]


@pytest.mark.parametrize(
    ("number", "at", "due"),
    [(0, 4.5, "new"), (1, 6.999999, "stale"), (2, 8, "recovered"), (3, 15, "stale"), (4, 21, "retired")],
)
def test_an_advisory_at_another_instant_is_found(number: int, at: float, due: str) -> None:
    site = Site()
    site.of_b[number] = (site.of_b[number][0], at)
    (found,) = site.contradictions()
    assert found.startswith(f"b: {due} is due at {us(OF_B[number][1])}; found: {due} at {us(at)}")


def test_an_advisory_without_a_cause_is_found() -> None:
    site = Site()
    site.of_b.append((RETIRED, 39))
    assert site.contradictions() == ["b: nothing calls for it; found: retired at 39000000, message 29"]


def test_coverage_without_messages_is_found() -> None:
    site = Site()
    site.spans = [(1, 40)]
    site.of_b[-1] = (RETIRED, 21)
    assert site.contradictions() == [
        "a: stale is due at 23000000; found: no advisory",
        "coverage from 1000000 to 40000000 includes 5000000 us without a message",
    ]


def test_coverage_that_overlaps_is_found() -> None:
    site = Site()
    site.spans = [(1, 20), (25, 40), (30, 40)]
    assert site.contradictions() == ["coverage from 30000000 began before that of 25000000 ended, at 40000000"]


def test_messages_that_no_span_covers_are_found_unless_the_server_was_down() -> None:
    site = Site()
    site.spans = [(1, 20), (25, 28), (34, 40)]
    assert site.contradictions() == ["no coverage from 28000000 to 34000000, though messages followed one another"]
    site.evidence.downs.append(Down(us(29), us(30), refuses=True))
    assert site.contradictions() == []


def test_only_a_sender_that_an_order_names_may_be_retired_by_it() -> None:
    site = Site()
    site.of_b[-1] = (RETIRED, 17)
    site.marks = {"by_operator": True}
    assert site.contradictions() == ["b: retired is due at 26000000; found: retired at 17000000, message 29"]
    site.evidence.retired_by_order.add("b")
    assert site.contradictions() == []


def test_only_a_sender_that_the_stream_refused_may_be_retired_as_unheard() -> None:
    site = Site()
    site.of_b[3:] = [(RETIRED, 16)]
    site.marks = {"unheard_until_us": us(21)}
    assert site.contradictions() == ["b: stale is due at 16000000; found: retired at 16000000, message 29"]
    site.evidence.downs.append(Down(us(14), us(15), refuses=True))
    assert site.contradictions() == []


def test_where_the_clock_was_set_back_a_message_counts_somewhere_in_the_time_shown_twice() -> None:
    site = Site()
    site.of_b[2:4] = [(RECOVERED, 9.5), (STALE, 16)]
    assert len(site.contradictions()) == 1
    site.evidence.shown_twice.append((us(8.5), us(9.6)))
    assert site.contradictions() == []

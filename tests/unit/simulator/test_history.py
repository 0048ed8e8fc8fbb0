"""A simulated history is what the agent's tracker says of the schedule, however it is cut into steps."""

from itertools import pairwise, takewhile

import msgspec
import pytest

from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, OutboxRow
from edge_agent.simulator.bodies import RegistrationBodies, SizeRange
from edge_agent.simulator.fleet import Fleet, FleetSettings, Lifetime, Span, sender_name
from edge_agent.simulator.history import HistorySettings, SiteHistory
from edge_agent.simulator.random_outages import (
    OutageSettings,
    Reliability,
    blind_at_random,
    break_at_random,
    random_spans,
    union,
)
from shared.identifiers import AdvisoryKind, BlockId, Incarnation
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.subjects import RecordType, parse_subject
from shared.wire import (
    ORIGIN_HEADER,
    REASON_HEADER,
    Advisory,
    Watermark,
    decode_advisory,
    decode_watermark,
    parse_origin_header,
)

INTERVAL = 5 * MINUTE
STARTED_AT = 1_769_817_600 * SECOND
FLEET = FleetSettings(site="dub1", sender_count=30, registration_interval=INTERVAL, jitter=30 * SECOND, rack_size=10)
POLICY = Policy(sample_interval=DAY, stale_after=12 * MINUTE, retire_after=6 * HOUR, blind_after=3 * MINUTE)
OUTAGES = OutageSettings(
    sender=Reliability(20 * HOUR, 40 * MINUTE),
    rack=Reliability(3 * DAY, HOUR),
    site=Reliability(5 * DAY, 20 * MINUTE),
    agent=Reliability(2 * DAY, HOUR),
    spread=1.0,
)
DURATION = 6 * DAY


def fleet() -> Fleet:
    lifetimes = [
        Lifetime(sender_id=sender_id, rack=rack) for sender_id, rack in (sender_name(FLEET, n) for n in range(30))
    ]
    break_at_random(lifetimes, FLEET, OUTAGES, DURATION)
    return Fleet(FLEET, lifetimes)


def site_history(blind_spans: list[Span]) -> SiteHistory:
    emitter = Emitter(BlockId("eu-west", "dub1", "nodes"), "dub1-a", "boot", "0.1.0", "sender", bytes(32))
    settings = HistorySettings(
        emitter=emitter, policy=POLICY, stream="REGISTRATION", started_at=STARTED_AT, watermark_interval=5 * MINUTE
    )
    return SiteHistory(fleet(), settings, RegistrationBodies(SizeRange(3_000, 5_000)), blind_spans)


def rows_of(history: SiteHistory, step: int = DURATION) -> list[OutboxRow]:
    return [row for ended_at in range(step, DURATION + 1, step) for row in history.advance_to(ended_at)]


def advisories_in(rows: list[OutboxRow]) -> list[Advisory]:
    decoded = [decode_advisory(row.payload) for row in rows if ".advisory." in row.subject]
    return [advisory for advisory in decoded if isinstance(advisory, Advisory)]


def watermarks_in(rows: list[OutboxRow]) -> list[Watermark]:
    return [decode_watermark(row.payload) for row in rows if row.is_watermark]


def test_steps_do_not_show_in_what_is_published() -> None:
    blind = blind_at_random(FLEET, OUTAGES, POLICY.blind_after, DURATION)
    assert blind

    def said(step: int) -> list[tuple[str, object]]:
        rows = rows_of(site_history(blind), step=step)
        # Counters of a watermark have no order.
        return [(row.subject, decode_watermark(row.payload) if row.is_watermark else row) for row in rows]

    assert said(HOUR) == said(DURATION)


def test_tracker_sees_every_registration_but_those_said_to_a_blind_agent() -> None:
    blind = [(DAY, DAY + 2 * HOUR), (3 * DAY, 3 * DAY + HOUR)]
    history = site_history(blind)
    rows = rows_of(history)
    due = [at for at, _ in takewhile(lambda registration: registration[0] < DURATION, fleet().registrations())]
    assert history.sighting_count == sum(not any(a <= at < b for a, b in blind) for at in due)
    last = watermarks_in(rows)[-1]
    assert last.sequence == last.counters["valid"]["registrations"] == history.sighting_count


def test_nobody_who_speaks_is_called_stale_and_every_long_silence_is() -> None:
    simulated = fleet()
    rows = rows_of(site_history([]))
    stale = {(advisory.value, advisory.at_us) for advisory in advisories_in(rows) if advisory.kind == "stale"}
    spoken: dict[str, list[int]] = {sender_id: [] for sender_id in simulated.sender_ids}
    for at, sender in takewhile(lambda registration: registration[0] < DURATION, simulated.registrations()):
        spoken[simulated.sender_ids[sender]].append(STARTED_AT + at)
    silences = {
        (sender_id, last + POLICY.stale_after)
        for sender_id, instants in spoken.items()
        for last, following in pairwise([*instants, STARTED_AT + DURATION])
        if following - last > POLICY.stale_after
    }
    assert stale == silences
    assert len(silences) > 50


def test_senders_are_counted_as_the_advisories_say() -> None:
    rows = rows_of(site_history([]))
    phases: dict[str, AdvisoryKind] = {}
    counted = 0
    for row in rows:
        if row.is_watermark:
            living = [kind for kind in phases.values() if kind is not AdvisoryKind.RETIRED]
            stale = living.count(AdvisoryKind.STALE)
            assert decode_watermark(row.payload).senders == {"heard": len(living) - stale, "stale": stale}
            counted += stale
        elif ".advisory." in row.subject:
            (advisory,) = advisories_in([row])
            phases[advisory.value] = advisory.kind
    assert counted


def test_advisories_are_numbered_without_holes_and_watermarks_say_how_far() -> None:
    rows = rows_of(site_history([(DAY, DAY + HOUR)]))
    assert [advisory.ordinal for advisory in advisories_in(rows)] == list(range(1, len(advisories_in(rows)) + 1))
    issued = 0
    for row in rows:
        if row.is_watermark:
            assert decode_watermark(row.payload).advisory_ordinal == issued
        issued += ".advisory." in row.subject


def test_blind_time_is_outside_all_coverage_and_all_the_rest_is_inside() -> None:
    rows = rows_of(site_history([(DAY, DAY + HOUR), (4 * DAY, 4 * DAY + 10 * MINUTE)]))
    coverage = union((mark.observed_since_us, mark.observed_through_us) for mark in watermarks_in(rows))
    gaps = [(closed, reopened) for (_, closed), (reopened, _) in pairwise(coverage)]
    assert (coverage[0][0], coverage[-1][1]) == (STARTED_AT, STARTED_AT + DURATION)
    for (closed, reopened), blind_from, blind_to in zip(gaps, (DAY, 4 * DAY), (HOUR, 10 * MINUTE), strict=True):
        assert 0 <= STARTED_AT + blind_from - closed < 2 * MINUTE
        assert 0 <= reopened - (STARTED_AT + blind_from + blind_to) < 2 * MINUTE
    for advisory in advisories_in(rows):
        assert not any(closed < advisory.at_us < reopened for closed, reopened in gaps)


def test_forwarded_registrations_are_what_their_senders_said() -> None:
    rows = rows_of(site_history([]))
    bodies = RegistrationBodies(SizeRange(3_000, 5_000))
    forwarded = [row for row in rows if row.subject.endswith(".registration")]
    assert len(forwarded) > 30 * DURATION // DAY
    for row in forwarded:
        subject = parse_subject(row.subject)
        block_id, incarnation, sequence = parse_origin_header(row.headers[ORIGIN_HEADER])
        assert subject is not None
        assert subject.record_type is RecordType.REGISTRATION
        assert subject.block_id == block_id
        assert incarnation == Incarnation(STARTED_AT, STARTED_AT // 1_000)
        assert 0 < sequence <= 30 * DURATION // INTERVAL
        assert row.headers[REASON_HEADER] in ("new", "interval", "recovered")
        envelope = msgspec.json.decode(row.payload)
        assert envelope["sender"] == row.sender_id
        number = int(envelope["requestid"][16:], 16)
        assert len(row.payload) == len(bodies.body(row.sender_id, number, STARTED_AT))


def test_random_outages_are_the_same_for_the_same_name_and_have_the_medians_asked_for() -> None:
    reliability = Reliability(up=10 * HOUR, down=HOUR)
    spans = random_spans(reliability, 1.2, 400 * DAY, 7, "n1")
    assert spans == random_spans(reliability, 1.2, 400 * DAY, 7, "n1")
    assert spans != random_spans(reliability, 1.2, 400 * DAY, 8, "n1")
    assert spans == union(spans)
    down = sorted(ended_at - started_at for started_at, ended_at in spans)
    up = sorted(following[0] - span[1] for span, following in pairwise(spans))
    assert 0.7 < down[len(down) // 2] / HOUR < 1.4
    assert 0.7 < up[len(up) // 2] / (10 * HOUR) < 1.4


@pytest.mark.parametrize("reliability", [Reliability(0, HOUR), Reliability(HOUR, 0)])
def test_what_never_breaks_has_no_outages(reliability: Reliability) -> None:
    assert random_spans(reliability, 1.2, DAY, "n1") == []

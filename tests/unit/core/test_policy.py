"""Thresholds, and what they say of one sighting: which reason to forward comes first, if any holds."""

import msgspec
import pytest

from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.senders import SenderPhase, SenderState, reason_to_forward
from shared.identifiers import Incarnation
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.wire import ForwardReason

FORWARDED_AT = 1_769_817_600 * SECOND
PAST = Incarnation(1, 1)
POLICY = Policy(
    sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=DAY, blind_after=3 * MINUTE, size_trigger=100
)
FORWARDED = SenderState(
    sender_id="n1.example.net",
    slot=0,
    phase=SenderPhase.HEARD,
    last_seen_at=FORWARDED_AT,
    last_sequence=1,
    opening_incarnation=PAST,
    opening_sequence=1,
    last_forwarded_at=FORWARDED_AT,
    forwarded_size=500,
    forwarded_digest=7,
    first_interval=False,
)


def reason(
    *,
    after: int = MINUTE,
    size: int = 500,
    digest: int = 7,
    forced: bool = False,
    state: SenderState = FORWARDED,
    policy: Policy = POLICY,
) -> ForwardReason | None:
    message = SourceMessage("registration", b"x" * size, None, 2, FORWARDED_AT + after)
    return reason_to_forward(policy, state, Observation("n1.example.net", message, digest, forced), message.stored_at)


def test_nothing_moved_is_no_reason() -> None:
    assert reason() is None


@pytest.mark.parametrize(("after", "found"), [(HOUR - 1, None), (HOUR, "interval"), (HOUR + 1, "interval")])
def test_interval_passes_at_its_very_end(after: int, found: str | None) -> None:
    assert reason(after=after) == found


@pytest.mark.parametrize(
    ("size", "found"), [(400, "size"), (401, None), (599, None), (600, "size"), (0, "size"), (10_000, "size")]
)
def test_size_moves_by_the_trigger_up_or_down(size: int, found: str | None) -> None:
    assert reason(size=size) == found


def test_size_trigger_0_is_off() -> None:
    assert reason(size=50_000, policy=msgspec.structs.replace(POLICY, size_trigger=0)) is None


def test_another_digest_is_a_change() -> None:
    assert reason(digest=8) is ForwardReason.CHANGED


def test_content_that_cannot_be_read_any_more_is_a_change() -> None:
    assert reason(digest=0) is ForwardReason.CHANGED


def test_force_is_a_reason() -> None:
    assert reason(forced=True) is ForwardReason.FORCED


def test_reasons_come_in_the_order_of_the_rules() -> None:
    never = msgspec.structs.replace(FORWARDED, last_forwarded_at=0)
    assert [
        reason(state=never, size=0, digest=8, forced=True),
        reason(after=HOUR, size=0, digest=8, forced=True),
        reason(size=0, digest=8, forced=True),
        reason(digest=8, forced=True),
        reason(forced=True),
    ] == ["new", "interval", "size", "changed", "forced"]


def test_sender_of_whom_nothing_was_forwarded_is_forwarded_as_new() -> None:
    assert reason(state=msgspec.structs.replace(FORWARDED, last_forwarded_at=0)) is ForwardReason.NEW


# The first interval


@pytest.mark.parametrize(
    ("sender_id", "first_interval"),
    [("n1.example.net", 2_523_284_912), ("n2.example.net", 3_144_781_494), ("ü", 1_488_317_871)],
)
def test_first_interval_is_golden(sender_id: str, first_interval: int) -> None:
    """The agents of a pair, and an agent after an update, must agree on it."""
    assert POLICY.first_interval(sender_id) == first_interval


@pytest.mark.parametrize(("after", "found"), [(2_523_284_911, None), (2_523_284_912, "interval")])
def test_first_interval_is_shorter_than_the_others(after: int, found: str | None) -> None:
    assert reason(after=after, state=msgspec.structs.replace(FORWARDED, first_interval=True)) == found


def test_first_intervals_of_a_fleet_are_spread_over_the_whole_interval() -> None:
    """Of 10,000 senders about 417 fall into each of 24 parts; six deviations of chance are 120."""
    intervals = [POLICY.first_interval(f"n{number}.example.net") for number in range(10_000)]
    assert all(0 < interval <= HOUR for interval in intervals)
    parts = [sum(interval * 24 // (HOUR + 1) == part for interval in intervals) for part in range(24)]
    assert all(297 < count < 537 for count in parts), parts


def test_retirement_counts_from_the_stale_instant() -> None:
    assert POLICY.retired_after_stale == DAY - 12 * MINUTE

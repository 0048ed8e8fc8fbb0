"""What was rejected lately is remembered, within a bound and for whoever may be told of it."""

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import (
    REJECTIONS_KEPT,
    Rejections,
    RejectReason,
    SourceMessage,
    rejections_of,
    with_another,
)
from edge_agent.observability.health import of_state
from shared.instants import MINUTE, SECOND
from tests.support.core.watched_site import POLICY, START, position

NO_SENDER, TOO_MANY = RejectReason.NO_SENDER, RejectReason.TOO_MANY_SENDERS


def refused(*subjects: str, reason: RejectReason = NO_SENDER, payload: bytes = b"{}") -> Rejections:
    rejections: Rejections = {}
    for sequence, subject in enumerate(subjects, 1):
        message = SourceMessage(subject, payload, None, sequence, START + sequence * SECOND)
        rejections = with_another(rejections, message, reason, message.stored_at)
    return rejections


def state(rejections: Rejections, observed_through: int = START + MINUTE) -> BlockState:
    policy = msgspec.structs.replace(POLICY, stale_after=5 * MINUTE, max_senders=1_000)
    return BlockState(position(9, 9), policy, observed_through=observed_through, rejections=rejections)


def test_messages_of_one_subject_are_counted_together_with_when_they_came() -> None:
    (rejection,) = refused("a", "a", "a").values()
    assert (rejection.count, rejection.first_at, rejection.last_at, rejection.sequence) == (
        3,
        START + SECOND,
        START + 3 * SECOND,
        3,
    )


def test_only_the_last_subjects_are_remembered() -> None:
    subjects = [f"s{number}" for number in range(REJECTIONS_KEPT + 5)]
    kept = refused(*subjects, "s5")
    assert [each.subject for each in kept.values()] == [*subjects[6:], "s5"]


def test_what_is_rejected_for_one_reason_is_not_forgotten_for_another() -> None:
    rejections = refused("web1")
    for number in range(2 * REJECTIONS_KEPT):
        message = SourceMessage(f"s{number}", b"{}", None, number + 2, START + (number + 2) * SECOND)
        rejections = with_another(rejections, message, TOO_MANY, message.stored_at)
    nameless, *turned_away = rejections.values()
    assert (nameless.subject, nameless.reason) == ("web1", NO_SENDER)
    assert len(turned_away) == REJECTIONS_KEPT
    assert [(said.name, said.what[:24]) for said in of_state("nodes", state(rejections), 1_000)] == [
        ("unidentified_registrations", "messages that name no se"),
        ("too_many_senders", "max_senders (1,000) is r"),
    ]


@pytest.mark.parametrize("subject", ["a\udcff", "\ud83d", "a\x1b[2J", "x" * 4_000])
@pytest.mark.parametrize("payload", [b"\xff\xfe\0", b"\xed\xa0\x80", b"x" * 1_000])
def test_whatever_was_rejected_can_be_written_down(subject: str, payload: bytes) -> None:
    written = msgspec.json.encode(state(refused(subject, payload=payload)))
    assert len(written) < 2_000
    assert msgspec.json.decode(written, type=BlockState).rejections


@pytest.mark.parametrize(
    ("subject", "is_its"),
    [
        ("nodes.web1", True),
        ("nodes.web1.metadata", True),
        ("nodes.WEB1.example.net", True),
        ("nodes.web1_example_net", True),
        ("nodes.web1-example-net.x", True),
        ("nodes.web11", False),
        ("nodes.example", False),
        ("nodes", False),
    ],
)
def test_a_subject_that_carries_the_name_is_its_senders(subject: str, is_its: bool) -> None:
    assert bool(rejections_of(refused(subject).values(), "web1.example.net")) is is_its


def test_a_body_that_shows_the_name_is_its_senders() -> None:
    assert rejections_of(refused("nodes", payload=b'{"host": "web1.example.net", "sen').values(), "web1.example.net")


# Who is warned, and until when


def test_messages_that_name_no_sender_are_warned_of_until_a_living_sender_would_have_spoken_again() -> None:
    rejections = refused("nodes.web1", payload=b"{oops")
    last_at = START + SECOND
    (said,) = of_state("nodes", state(rejections, last_at + 2 * MINUTE), 7)
    assert f"{said.text}; {said.remedy}" == (
        "stream nodes: messages that name no sender are rejected, the last 2m ago on subject nodes.web1 (no_sender): "
        "{oops; whoever sent it may be called stale; correct what the sender publishes, or [stream.sender], or leave "
        "it out by source.filter_subject"
    )
    assert list(of_state("nodes", state(rejections, last_at + 5 * MINUTE), 7))
    assert not list(of_state("nodes", state(rejections, last_at + 5 * MINUTE + 1), 7))


def test_senders_that_are_turned_away_are_warned_of_with_the_limit() -> None:
    (said,) = of_state("nodes", state(refused("nodes.web1", reason=TOO_MANY)), 1_000)
    assert f"{said.text}; {said.remedy}" == (
        "stream nodes: max_senders (1,000) is reached, with 1,000 senders: messages of others are rejected, the last "
        "59s ago on subject nodes.web1; raise it, or correct [stream.sender] where that names messages"
    )


@pytest.mark.parametrize(("subject", "name"), [("nodes.10", "10.0.0.1"), ("nodes.x", "")])
def test_a_number_or_nothing_in_a_subject_is_nobodys_name(subject: str, name: str) -> None:
    assert not rejections_of(refused(subject).values(), name)


def test_nobody_is_warned_of_nothing() -> None:
    assert not list(of_state("nodes", state({}), 1_000))

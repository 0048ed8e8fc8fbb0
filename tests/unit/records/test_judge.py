"""The judge's verdict on every kind of message: its subject outranks its body."""

import pytest

from aggregator.records.judge import (
    REACH,
    AdvisorySubject,
    PlainAdvisory,
    QuarantineReason,
    RegistrationOrigin,
    judged_advisory,
    judged_registration,
    judged_revision,
    judged_watermark,
    named_by,
)
from shared.identifiers import BlockId
from shared.instants import EARLIEST
from shared.policy import Revision, Scope
from shared.subjects import parse_subject
from shared.wire import Advisory, Watermark
from tests.support.lakehouse.hub import Message
from tests.support.lakehouse.judged_messages import ARCHIVED_AT, CASES, Case

TABLES = {
    Advisory: "advisories",
    PlainAdvisory: "advisories",
    Watermark: "watermarks",
    Revision: "policy",
    RegistrationOrigin: "registrations",
}


def judged(message: Message) -> object:
    """Return the record of a message that was archived at ``ARCHIVED_AT``, or the reason to quarantine it."""
    earliest, headers = max(EARLIEST, ARCHIVED_AT - REACH), message.headers or {}
    match named_by(message.subject.encode(), "eu-west"):
        case AdvisorySubject() as named:
            return judged_advisory(message.body, named, earliest)
        case BlockId() as block_id:
            return judged_watermark(message.body, block_id, earliest)
        case Scope():
            return judged_revision(message.body)
    ours = parse_subject(message.subject)
    if ours is None:
        return QuarantineReason.UNKNOWN_SUBJECT
    origin, source, sender = (headers.get(name) for name in ("Muster-Origin", "Choria-SR-Source", "Muster-Sender"))
    return judged_registration(origin, source, sender, ours.block_id)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_message_is_a_record_or_is_quarantined_for_its_reason(case: Case) -> None:
    found = judged(case.message)
    assert (found if isinstance(found, QuarantineReason) else TABLES[type(found)]) == case.becomes

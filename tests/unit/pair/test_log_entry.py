"""Entries of a log are read as they were written, by either member, and fit into a message whatever they say."""

import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import BlindCause, BlindSpan, Clamped
from edge_agent.core.policy import Policy
from edge_agent.pair.log import Entry, EntryKind, Writer, decode_entry, encode_entry
from shared.identifiers import Incarnation, SourcePosition

WRITER = Writer("dub1-a", "6f1c", "00ff", {"nodes": "12ab"})
RENEWED = (
    b'{"protocol":"muster:pair:1","kind":"renewed","generation":"c0ffee","writer":{"member":"dub1-a","boot_id":"6f1c","key":"00ff",'
    b'"settings":{"nodes":"12ab"}},"delivered":{"nodes":{"advisories":7}}}'
)
MAX_PAYLOAD = 1 << 20


def test_an_entry_has_the_bytes_that_it_always_had() -> None:
    entry = Entry(kind=EntryKind.RENEWED, generation="c0ffee", writer=WRITER, delivered={"nodes": {"advisories": 7}})
    assert encode_entry(entry) == RENEWED
    assert decode_entry(RENEWED) == entry


def test_a_commit_that_clamped_thousands_of_messages_fits_into_one_message() -> None:
    state = BlockState(SourcePosition("REGISTRATION", Incarnation(1, 2), 20_000, 3), Policy(4, 5, 6, 7))
    clamped = [Clamped(sequence, 1_769_817_600_000_000 + sequence) for sequence in range(20_000)]
    entry = Entry(
        kind=EntryKind.DECIDED,
        generation="c0ffee",
        writer=WRITER,
        block="nodes",
        state=state,
        recorded=(BlindSpan(1, 2, BlindCause.GAP, 0), *clamped),
    )
    body = encode_entry(entry)
    assert len(body) < MAX_PAYLOAD / 2
    assert decode_entry(body) == entry


@pytest.mark.parametrize("body", [b"", b"{}", b"x", RENEWED[:-1]])
def test_what_is_no_entry_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not an entry that this agent reads"):
        decode_entry(body)


def test_an_entry_of_another_kind_of_log_is_told_apart() -> None:
    with pytest.raises(ValueError, match="not an entry that this agent reads: Invalid value 'muster:pair:2'"):
        decode_entry(RENEWED.replace(b"pair:1", b"pair:2"))

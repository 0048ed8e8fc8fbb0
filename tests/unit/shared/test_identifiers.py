"""Ids come out the same everywhere, and only usable names become subject tokens."""

import hashlib
import json

import pytest

from shared.identifiers import (
    AdvisoryKind,
    BlockId,
    Incarnation,
    InvalidIdentifier,
    SourcePosition,
    advisory_event_id,
    message_id,
    validated_token,
)

BLOCK = BlockId("eu-west", "dub1", "nodes")
INCARNATION = Incarnation(created_at=1_769_817_600_000_000, epoch_ms=1_769_817_700_123)
AT = 1_769_818_320_000_000


def test_kinds_at_one_instant_rank_stale_retired_recovered_new() -> None:
    ranked = sorted(AdvisoryKind, key=lambda kind: kind.rank)
    assert ranked == [AdvisoryKind.STALE, AdvisoryKind.RETIRED, AdvisoryKind.RECOVERED, AdvisoryKind.NEW]


def test_block_is_written_as_three_tokens() -> None:
    assert str(BLOCK) == "eu-west.dub1.nodes"


def test_incarnation_is_one_token_and_reads_back() -> None:
    assert str(INCARNATION) == "1769817600000000-1769817700123"
    assert validated_token(str(INCARNATION), "incarnation") == str(INCARNATION)
    assert Incarnation.parse(str(INCARNATION)) == INCARNATION


def test_incarnations_of_one_stream_order_by_their_epoch() -> None:
    assert Incarnation(5, 10) < Incarnation(5, 11) < Incarnation(6, 1)


@pytest.mark.parametrize("text", ["", "5", "5-", "-5", "5-x", "5-6-7", "5 -6", "-5-6", "5-+6", "5-1_0", "५-6"])
def test_anything_else_is_not_an_incarnation(text: str) -> None:
    with pytest.raises(InvalidIdentifier, match="not an incarnation"):
        Incarnation.parse(text)


def test_an_incarnation_holds_no_number_beyond_2_to_the_53() -> None:
    largest = Incarnation(2**53 - 1, 2**53 - 1)
    assert Incarnation.parse(str(largest)) == largest
    for text in (f"{2**53}-6", f"5-{2**53}", "5-" + "9" * 5_000):
        with pytest.raises(InvalidIdentifier, match="not an incarnation"):
            Incarnation.parse(text)


def test_reading_goes_on_after_the_position() -> None:
    assert SourcePosition("REGISTRATION", INCARNATION, 41).next_sequence == 42


@pytest.mark.parametrize("name", ["dub1", "eu-west", "a_b", "7", "x" * 64])
def test_usable_names_are_returned_unchanged(name: str) -> None:
    assert validated_token(name, "site") == name


@pytest.mark.parametrize("name", ["", "eu.west", "a b", "*", ">", "a/b", "düb", "dub1\n", "x" * 65])
def test_unusable_names_are_refused_with_what_they_were_for(name: str) -> None:
    with pytest.raises(InvalidIdentifier, match=r"^site .* is not usable in a subject"):
        validated_token(name, "site")


def test_event_id_is_the_128_bit_blake2b_of_the_compact_array() -> None:
    event_id = advisory_event_id(BLOCK, (INCARNATION, 17), "bücher.example.net", AdvisoryKind.STALE, AT)
    array = ["eu-west", "dub1", "nodes", "1769817600000000-1769817700123", 17, "bücher.example.net", "stale", AT]
    compact = json.dumps(array, separators=(",", ":"), ensure_ascii=False).encode()
    assert event_id == hashlib.blake2b(compact, digest_size=16).hexdigest()


def test_event_id_is_golden() -> None:
    event_id = advisory_event_id(BLOCK, (INCARNATION, 17), "n1.example.net", AdvisoryKind.STALE, AT)
    assert event_id == "6d793f344d8776ced7acf680defbfd87"


def test_every_part_of_the_identity_changes_the_event_id() -> None:
    other = Incarnation(INCARNATION.created_at, INCARNATION.epoch_ms + 1)
    ids = {
        advisory_event_id(BLOCK, (INCARNATION, 17), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BlockId("eu", "dub1", "nodes"), (INCARNATION, 17), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BlockId("eu-west", "dub2", "nodes"), (INCARNATION, 17), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BlockId("eu-west", "dub1", "vms"), (INCARNATION, 17), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BLOCK, (other, 17), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BLOCK, (INCARNATION, 18), "n1", AdvisoryKind.STALE, AT),
        advisory_event_id(BLOCK, (INCARNATION, 17), "n2", AdvisoryKind.STALE, AT),
        advisory_event_id(BLOCK, (INCARNATION, 17), "n1", AdvisoryKind.RETIRED, AT),
        advisory_event_id(BLOCK, (INCARNATION, 17), "n1", AdvisoryKind.STALE, AT + 1),
    }
    assert len(ids) == 9


def test_message_id_is_golden_and_needs_the_sites_key() -> None:
    key = bytes(range(32))
    assert message_id(key, "advisory", "eu-west.dub1.nodes", 17) == "da04cd2b5f068deb510d13b7e7c9eac3"
    assert message_id(key[::-1], "advisory", "eu-west.dub1.nodes", 17) != "da04cd2b5f068deb510d13b7e7c9eac3"


def test_message_id_tells_a_number_from_its_text() -> None:
    key = bytes(32)
    assert message_id(key, "a", 1) != message_id(key, "a", "1")

"""A seed deals faults of every kind, and broken bodies are broken, though who sent them can be told."""

import json
import random
from itertools import pairwise

import msgspec
import pytest

from tests.support.faults.fleet import HEADERS, MALFORMATIONS, Sender, malformed
from tests.support.faults.schedule import FaultKind, counts, draw_schedule


def test_a_seed_gives_its_schedule_again_and_no_other_seed_does() -> None:
    assert draw_schedule(7, 200) == draw_schedule(7, 200)
    assert draw_schedule(7, 200) != draw_schedule(8, 200)
    assert draw_schedule(7, 200)[:100] == draw_schedule(7, 100)


@pytest.mark.parametrize("seed", range(5))
def test_two_hundred_faults_are_of_every_kind_and_end_in_two_minutes(seed: int) -> None:
    faults = draw_schedule(seed, 200)
    assert min(count for _, count in counts(faults)) >= 2
    assert faults[-1].at < 130
    for target in {fault.target for fault in faults}:
        own = [fault for fault in faults if fault.target is target]
        assert all(before.at + before.duration <= after.at for before, after in pairwise(own))


def test_what_cannot_be_made_here_is_left_out() -> None:
    assert dict(counts(draw_schedule(7, 200, {FaultKind.DISK_FULL})))[FaultKind.DISK_FULL] == 0


def test_a_schedule_has_the_kinds_that_it_names_and_no_others() -> None:
    kinds = {FaultKind.MALFORMED: 3, FaultKind.SITE_FULL: 1}
    drawn = dict(counts(draw_schedule(7, 200, cards=kinds)))
    assert {kind for kind, count in drawn.items() if count} == kinds.keys()
    assert drawn[FaultKind.MALFORMED] > 2 * drawn[FaultKind.SITE_FULL]


@pytest.mark.parametrize("number", [b"12", b"3"], ids=["the fault first", "the sender first"])
@pytest.mark.parametrize("way", MALFORMATIONS)
def test_a_malformed_body_is_no_json_and_names_its_sender(way: str, number: bytes) -> None:
    broken = malformed(b'{"sender":"node-07","number":%s}' % number, way)
    with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
        msgspec.json.decode(broken)
    assert b'"sender":"node-07"' in broken


def test_an_oversized_registration_fills_its_message_to_the_last_byte() -> None:
    sender = Sender("node-07", random.Random(1))
    body = sender.oversized(1 << 20)
    assert len(HEADERS % (sender.message_id, "node-07")) + len(body) == 1 << 20
    assert json.loads(body)["sender"] == "node-07"

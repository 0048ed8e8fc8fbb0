"""One of a pair that says to be alone is an incident from when it said so first until it is alone no more."""

from pathlib import Path

import pytest

from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import Incident, IncidentCause, IncidentRules
from aggregator.live.alerts.receivers import incident_text
from aggregator.live.api import UnknownReason
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.lakehouse.hub import Block
from tests.support.live.told import KNOWN_UNTIL, LATE, START, Told, in_conditions, restatement


def test_an_agent_that_says_to_be_alone_is_an_incident_since_it_said_so_first(told: Told, tmp_path: Path) -> None:
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules(close_after=MINUTE))
    book.look(told.view(KNOWN_UNTIL))
    dub1 = Block("eu-west", "dub1", agent="dub1-b", ordinal=3)

    def tells(minutes: int, *conditions: str) -> list[Incident]:
        at = KNOWN_UNTIL + minutes * MINUTE
        told.at(at, in_conditions(dub1.watermark(START, at), *conditions))
        return [each for each in book.look(told.view(at)) if each.cause is IncidentCause.ALONE]

    assert tells(1, "probe_not_stored", "pair_alone") == []
    (began,) = tells(2, "pair_alone")
    assert (began.started_at_us, began.nodes) == (KNOWN_UNTIL + MINUTE, ("dub1-b",))
    assert incident_text(began).title.startswith("eu-west.dub1: only one agent of its pair is ready since")
    assert incident_text(began).nodes == "dub1-b"
    assert told.view(KNOWN_UNTIL + 2 * MINUTE).block(0).conditions == ("pair_alone",)
    (clear,) = tells(3)
    assert clear.ended_at_us is None
    (ended,) = tells(4)
    assert (ended.incident_id, ended.ended_at_us) == (began.incident_id, KNOWN_UNTIL + 3 * MINUTE)
    book.close()


def test_what_is_sent_again_late_says_nothing_of_who_is_alone_now(told: Told) -> None:
    dub1, dub1_b, at = Block("eu-west", "dub1", ordinal=3), Block("eu-west", "dub1", agent="dub1-b", ordinal=3), LATE
    block = told.fleet.blocks[0]
    told.at(at, dub1.watermark(START, at))
    told.at(at + 1, in_conditions(dub1_b.watermark(START, at - 10 * MINUTE), "pair_alone"))
    assert (block.alone_since, block.conditions, block.agent) == (0, (), dub1.agent)
    # One after another, as a stream is published again.
    told.at(at + 2, in_conditions(dub1_b.watermark(START, at - 9 * MINUTE), "pair_alone"))
    assert block.alone_since == 0
    told.at(at + MINUTE, in_conditions(dub1_b.watermark(START, at + MINUTE), "pair_alone"))
    told.at(at + MINUTE + 1, dub1.watermark(START, at - 10 * MINUTE))
    assert (block.alone_since, block.agent) == (at + MINUTE, "dub1-b")


@pytest.mark.parametrize("before", [(), ("pair_alone",)], ids=["together", "alone for a moment"])
def test_who_comes_back_alone_after_a_silence_is_alone_from_then_on(told: Told, before: tuple[str, ...]) -> None:
    dub1, block = Block("eu-west", "dub1", ordinal=3), told.fleet.blocks[0]
    told.at(LATE, in_conditions(dub1.watermark(START, LATE), *before))
    # It vouches for the time before the silence, and says what is now.
    told.at(LATE + HOUR, in_conditions(dub1.watermark(START, LATE + SECOND), "pair_alone"))
    assert block.alone_since == LATE + HOUR


def test_who_is_alone_while_its_stream_does_not_store_is_so_since_it_said_so_first(told: Told) -> None:
    dub1, block = Block("eu-west", "dub1", ordinal=3), told.fleet.blocks[0]
    frozen = restatement(dub1, KNOWN_UNTIL, "stream_not_storing")
    told.at(KNOWN_UNTIL + 3 * DAY, frozen)
    assert block.alone_since == 0
    for minutes in (1, 2):
        told.at(KNOWN_UNTIL + 3 * DAY + minutes * MINUTE, in_conditions(frozen, "pair_alone"))
        assert block.alone_since == KNOWN_UNTIL + 3 * DAY + MINUTE
    told.at(KNOWN_UNTIL + 3 * DAY + 3 * MINUTE, frozen)
    assert block.alone_since == 0


def test_who_is_alone_is_seen_beside_a_block_that_nobody_speaks_for_any_more(told: Told, tmp_path: Path) -> None:
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules(close_after=MINUTE))
    nodes = Block("eu-west", "dub1", "nodes", agent="dub1-b", ordinal=3)
    removed = Block("eu-west", "dub1", "removed", agent="dub1-a")
    # It was alone, too, when it was heard last.
    told.at(
        KNOWN_UNTIL,
        removed.new("db1", KNOWN_UNTIL),
        in_conditions(removed.watermark(START, KNOWN_UNTIL), "pair_alone"),
    )
    for minutes, names in enumerate([("pair_alone",), ("pair_alone",), (), ()], start=60):
        at = KNOWN_UNTIL + minutes * MINUTE
        told.at(at, in_conditions(nodes.watermark(START, at), *names))
        view = told.view(at)
        assert view.reason(1) is UnknownReason.AGENT_SILENT
        book.look(view)
    (over,) = [each for each in book.recent() if each.cause is IncidentCause.ALONE]
    assert (over.started_at_us, over.ended_at_us, over.nodes) == (
        KNOWN_UNTIL + HOUR,
        KNOWN_UNTIL + HOUR + 2 * MINUTE,
        ("dub1-b",),
    )
    book.close()


def test_of_the_conditions_of_an_agent_a_few_are_kept_and_none_is_missed(told: Told) -> None:
    dub1, block = Block("eu-west", "dub1", ordinal=3), told.fleet.blocks[0]
    names = (*(f"{number:03}" * 100 for number in range(100)), "pair_alone")
    told.at(LATE, in_conditions(dub1.watermark(START, LATE), *names))
    assert (len(block.conditions), {len(name) for name in block.conditions}, block.alone_since) == (16, {64}, LATE)

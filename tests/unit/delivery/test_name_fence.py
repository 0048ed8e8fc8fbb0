"""Another living agent of our names is told from one that died, and the place of the next watermark is known."""

from collections.abc import Callable

import msgspec
import pytest

from edge_agent.delivery.name_fence import AgentRun, FencedBlock, LastMessage, Lineage, Namesake, began_at, boot_id
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.wire import Watermark
from tests.support.delivery.watermark_records import watermark_of

OURS, EARLIER, LATER = (boot_id(at, bytes(10)) for at in (2_000_000, 1_000_000, 3_000_000))
OLDER_AGENTS = "9f1b4e6a0c1d4f2e8a7b6c5d4e3f2a1b"
READ_THROUGH = 100
SOON = 60.0
NAMES = BlockId("eu-west", "dub1", "nodes")


def watermark(through: int, run: str = EARLIER) -> Watermark:
    return watermark_of(through, run)


def lineage(members: frozenset[str] = frozenset()) -> Lineage:
    return Lineage(AgentRun("a", OURS, 1.0, members), FencedBlock(NAMES, READ_THROUGH))


def last(sequence: int, found: Watermark, behind: int = 0) -> LastMessage:
    return LastMessage(sequence, "id", behind, found)


def living(*seen: Watermark, members: frozenset[str] = frozenset(), at: float = 10.0) -> Namesake | None:
    """Read once a second, and return the run that lives ``at``."""
    found = lineage(members)
    for second, each in enumerate(seen):
        found.take(float(second), last(second + 1, each))
    return found.living(at, SOON)


def test_who_goes_on_vouching_lives() -> None:
    found = living(watermark(101), watermark(102), watermark(103))
    assert found == Namesake("b", EARLIER, NAMES, "REGISTRATION", 7)


@pytest.mark.parametrize(
    "seen",
    [
        pytest.param([watermark(101)] * 5, id="the last word of one that died"),
        pytest.param([watermark(101), watermark(105), watermark(105)], id="words that came late, all at once"),
        pytest.param([watermark(through) for through in (97, 98, 99, 100)], id="what our store had left to send"),
        pytest.param([watermark(through, OURS) for through in (101, 102, 103)], id="our own"),
        pytest.param([watermark(101), watermark(102, LATER), watermark(103, OLDER_AGENTS)], id="restarts of another"),
    ],
)
def test_what_does_not_grow_run_by_run_beyond_our_store_is_nobody(seen: list[Watermark]) -> None:
    assert living(*seen) is None


def test_the_other_member_of_a_pair_is_no_stranger() -> None:
    seen = [watermark(through) for through in (101, 102, 103)]
    assert living(*seen, members=frozenset({"a", "b"})) is None
    assert living(*seen, members=frozenset({"a", "c"})) is not None


def test_who_falls_silent_is_forgotten() -> None:
    seen = [watermark(through) for through in (101, 102, 103)]
    assert living(*seen, at=2.0 + SOON) is not None
    assert living(*seen, at=2.1 + SOON) is None


@pytest.mark.parametrize(
    ("theirs", "ours", "came_before"),
    [(EARLIER, OURS, True), (LATER, OURS, False), (OLDER_AGENTS, OURS, None), (EARLIER, OLDER_AGENTS, None)],
)
def test_two_runs_agree_who_came_first(theirs: str, ours: str, came_before: bool | None) -> None:
    other = Namesake("b", theirs, NAMES, "REGISTRATION", 7)
    assert other.came_before(ours) is came_before


def test_two_runs_of_one_instant_do_not_both_withdraw() -> None:
    one, other = boot_id(1_000, bytes(10)), boot_id(1_000, bytes([255] * 10))
    assert Namesake("b", one, NAMES, "S", 7).came_before(other) is True
    assert Namesake("b", other, NAMES, "S", 7).came_before(one) is False


def test_an_agent_of_the_same_site_reads_the_same_stream() -> None:
    found = living(watermark(101), watermark(102), watermark(103))
    assert found is not None
    assert found.reads(SourcePosition("REGISTRATION", Incarnation(7, 99), 5))
    assert not found.reads(SourcePosition("REGISTRATION", Incarnation(6, 8), 5))
    assert not found.reads(SourcePosition("OTHER", Incarnation(7, 8), 5))


def test_a_watermark_whose_incarnation_is_none_is_no_end_of_the_watch() -> None:
    seen = [msgspec.structs.replace(watermark(through), incarnation="?") for through in (101, 102, 103)]
    found = living(*seen)
    assert found is not None
    assert found.created_at == 0


def test_who_has_not_grown_twice_is_in_doubt() -> None:
    found = lineage()
    assert found.undecided() == []
    doubts = []
    for second, through in enumerate((101, 102, 103)):
        found.take(float(second), last(second + 1, watermark(through)))
        doubts.append([other.agent for other in found.undecided()])
    assert doubts == [["b"], ["b"], []]


def test_a_run_that_says_to_have_begun_in_no_year_of_ours_does_not_say_when_it_began() -> None:
    assert began_at("ffffffffffff7" + "0" * 19) is None


def test_a_run_that_has_written_directly_behind_us_lives() -> None:
    found = lineage()
    found.take(0.0, last(5, watermark(101)))
    found.note_stored(6)
    found.take(1.0, last(7, watermark(101), behind=6))
    alive = found.living(1.0, SOON)
    assert alive is not None
    assert alive.agent == "b"


def test_a_watermark_that_arrives_late_behind_us_is_of_nobody() -> None:
    found = lineage()
    found.take(0.0, last(5, watermark(101)))
    found.note_stored(6)
    found.take(1.0, last(7, watermark(102)))
    found.note_stored(8)
    found.take(2.0, last(9, watermark(103, LATER), behind=5))
    assert found.living(2.0, SOON) is None


def test_the_next_watermark_stands_behind_the_last_message_whoever_wrote_it() -> None:
    found = lineage()
    places = [found.expected]

    def note(step: Callable[[], None]) -> None:
        step()
        places.append(found.expected)

    note(lambda: found.take(0.0, None))
    note(lambda: found.note_stored(4))
    # A duplicate is answered with the place that it had.
    note(lambda: found.note_stored(2))
    note(lambda: found.take(1.0, LastMessage(9, "", 0, None)))
    # The stream was made again.
    note(lambda: found.take(2.0, last(1, watermark(101))))
    assert places == [None, 0, 4, 4, 9, 1]

"""Another agent of our names is known from what earlier agents have left by what goes on growing."""

import msgspec
import pytest

from edge_agent.observability.name_watch import Namesake, Sightings, began_at, boot_id
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.wire import Watermark

OURS, EARLIER, LATER = (boot_id(at, bytes(10)) for at in (2_000_000, 1_000_000, 3_000_000))
OLDER_AGENTS = "9f1b4e6a0c1d4f2e8a7b6c5d4e3f2a1b"
READ_THROUGH = 100
SOON = 60.0


def watermark(through: int, run: str = EARLIER, agent: str = "b") -> Watermark:
    return Watermark(
        region="eu-west",
        site="dub1",
        block="nodes",
        agent=agent,
        observed_since_us=1,
        observed_through_us=through,
        stream="REGISTRATION",
        incarnation="7-8",
        sequence=1,
        advisory_ordinal=0,
        senders={},
        outbox={},
        counters={},
        stale_after=1,
        retire_after=2,
        blind_after=1,
        policy_revision=0,
        version="1",
        boot_id=run,
    )


def living(*seen: Watermark, members: frozenset[str] = frozenset(), at: float = 10.0) -> Namesake | None:
    """Look once a second, and say who lives ``at``."""
    sightings = Sightings(OURS, READ_THROUGH, members)
    for second, each in enumerate(seen):
        sightings.see(float(second), each)
    return sightings.living(at, SOON)


def test_who_goes_on_vouching_lives() -> None:
    found = living(watermark(101), watermark(102), watermark(103))
    assert found == Namesake("b", EARLIER, BlockId("eu-west", "dub1", "nodes"), "REGISTRATION", 7)


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
    other = Namesake("b", theirs, BlockId("eu-west", "dub1", "nodes"), "REGISTRATION", 7)
    assert other.came_before(ours) is came_before


def test_two_runs_of_one_instant_do_not_both_withdraw() -> None:
    one, other = boot_id(1_000, bytes(10)), boot_id(1_000, bytes([255] * 10))
    names = BlockId("eu-west", "dub1", "nodes")
    assert Namesake("b", one, names, "S", 7).came_before(other) is True
    assert Namesake("b", other, names, "S", 7).came_before(one) is False


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
    sightings = Sightings(OURS, READ_THROUGH)
    assert sightings.undecided() == []
    doubts = []
    for second, through in enumerate((101, 102, 103)):
        sightings.see(float(second), watermark(through))
        doubts.append([other.agent for other in sightings.undecided()])
    assert doubts == [["b"], ["b"], []]


def test_a_run_that_says_to_have_begun_in_no_year_of_ours_does_not_say_when_it_began() -> None:
    assert began_at("ffffffffffff7" + "0" * 19) is None

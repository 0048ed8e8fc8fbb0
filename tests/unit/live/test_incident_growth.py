"""When an incident that is open is told of again."""

import msgspec
import pytest

from shared.instants import MINUTE
from tests.unit.live.test_incidents import NOON, STALE, Site, Watch, many


def test_an_incident_has_grown_when_it_is_of_twice_as_many_or_of_all_for_a_while() -> None:
    watch, grew = Watch(), dict[int, int]()
    # A site dies: its senders become stale one after another.
    for minute in range(1, 40):
        watch.see(Site(stale=many(min(12 * minute, 230)), known_until_us=NOON + minute * MINUTE))
        grew[watch.open[STALE].growth_count] = grew.get(watch.open[STALE].growth_count, minute)
    assert grew == {0: 1, 1: 5, 2: 13, 3: 23}
    assert watch.open[STALE].told_count == 230


@pytest.mark.parametrize(
    ("now_stale", "changed", "grows"),
    [
        (39, {}, False),
        (40, {}, True),
        (60, {"planned_count": 21}, False),
        (60, {"planned_count": 20}, True),
        (60, {"maintained": True}, False),
        (21, {"expected_count": 21}, True),
        (20, {"expected_count": 20}, False),
    ],
)
def test_growth_is_told_of_where_a_beginning_would_be(now_stale: int, changed: dict[str, int], grows: bool) -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    larger = msgspec.structs.replace(Site(stale=many(now_stale)), **changed)
    for minutes in (2, 5):
        watch.see(msgspec.structs.replace(larger, known_until_us=NOON + minutes * MINUTE))
    assert watch.open[STALE].growth_count == grows


def test_an_incident_has_not_grown_to_what_it_began_with_when_maintenance_of_some_ends() -> None:
    watch = Watch()
    watch.see(Site(stale=many(24), planned_count=12, known_until_us=NOON + MINUTE))
    assert watch.open[STALE].node_count == 24
    for minute in range(2, 8):
        watch.see(Site(stale=many(24), known_until_us=NOON + minute * MINUTE))
    assert watch.open[STALE].growth_count == 0
    for minute in range(8, 12):
        watch.see(Site(stale=many(48), known_until_us=NOON + minute * MINUTE))
    assert (watch.open[STALE].growth_count, watch.open[STALE].told_count) == (1, 48)


def test_numbers_that_go_up_and_down_or_that_nobody_watched_are_no_growth() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    for minute in range(2, 30):
        watch.see(Site(stale=many(20 if minute % 3 else 60), known_until_us=NOON + minute * MINUTE))
    back = NOON + 40 * MINUTE
    watch.see(Site(stale=many(60), known_until_us=back - 5 * MINUTE))
    larger = Site(stale=many(60), observed_since_us=back, known_until_us=back + 3 * MINUTE - 1)
    watch.see(larger)
    assert watch.open[STALE].growth_count == 0
    watch.see(msgspec.structs.replace(larger, known_until_us=back + 3 * MINUTE))
    assert watch.open[STALE].growth_count == 1

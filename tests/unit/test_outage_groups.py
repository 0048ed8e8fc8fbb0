"""Outages that belong together: a rack falls silent, and comes back, within an interval."""

import random

from aggregator.lakehouse.page.figures import Outage
from aggregator.lakehouse.page.outage_groups import FEWEST_TOGETHER, group_outages

SPREAD = 100


def outage(sender_id: str, started_at: int, ended_at: int | None, site: str = "dub1") -> Outage:
    return Outage("eu-west", site, sender_id, started_at, ended_at, "recovered" if ended_at else None)


def rack(name: str, size: int, started_at: int, ended_at: int | None, site: str = "dub1") -> list[Outage]:
    step = SPREAD // size
    return [
        outage(f"{name}-n{n}", started_at + n * step, None if ended_at is None else ended_at + n * step, site)
        for n in range(size)
    ]


def test_a_rack_is_one_group_and_the_others_are_not_in_it() -> None:
    members = rack("r1", 5, 1000, 2000)
    others = [outage("x", 1000, 5000), outage("y", 500, 700), outage("z", 1050, None)]
    groups, singles = group_outages([*others, *members], SPREAD)
    assert [group.outages for group in groups] == [tuple(members)]
    assert (groups[0].started_at, groups[0].ended_at) == (1000, 2080)
    assert singles == sorted(others, key=lambda each: (each.started_at, each.sender_id))


def test_racks_that_come_back_apart_are_apart() -> None:
    groups, singles = group_outages(rack("r1", 5, 1000, 2000) + rack("r2", 6, 1000, 3000), SPREAD)
    assert [(group.name_prefix, len(group.outages)) for group in groups] == [(("r1-", 5), 5), (("r2-", 6), 6)]
    assert singles == []


def test_sites_are_apart() -> None:
    groups, _ = group_outages(rack("r1", 5, 1000, 2000) + rack("r1", 5, 1000, 2000, "nyc1"), SPREAD)
    assert [(group.site, len(group.outages)) for group in groups] == [("dub1", 5), ("nyc1", 5)]


def test_a_rack_that_is_still_down_is_a_group_without_an_end() -> None:
    groups, _ = group_outages(rack("r1", 5, 1000, None), SPREAD)
    assert [group.ended_at for group in groups] == [None]


def test_few_are_no_group() -> None:
    few = rack("r1", FEWEST_TOGETHER - 1, 1000, 2000)
    assert group_outages(few, SPREAD) == ([], few)


def test_a_stray_outage_just_before_does_not_tear_a_rack_apart() -> None:
    groups, singles = group_outages([outage("stray", 950, 2000), *rack("r1", 10, 1000, 2000)], SPREAD)
    assert [len(group.outages) for group in groups] == [10]
    assert [each.sender_id for each in singles] == ["stray"]


def test_names_of_most_members_name_the_group() -> None:
    groups, _ = group_outages([outage("other", 1000, 2000), *rack("web-r1", 9, 1000, 2000)], SPREAD)
    assert [group.name_prefix for group in groups] == [("web-r1-", 9)]
    unlike = [outage(f"{n}", 1000, 2000) for n in range(5)]
    assert [group.name_prefix for group in group_outages(unlike, SPREAD)[0]] == [("", 0)]


def test_no_outage_is_lost_or_told_twice() -> None:
    chance = random.Random(3)
    outages = [
        outage(f"n{n}", at, chance.choice([None, at + chance.randrange(1, 400)]))
        for n in range(3000)
        for at in (chance.randrange(20_000),)
    ]
    groups, singles = group_outages(outages, SPREAD)
    assert groups
    assert sorted(
        [*singles, *(each for group in groups for each in group.outages)], key=lambda each: each.sender_id
    ) == (sorted(outages, key=lambda each: each.sender_id))
    for group in groups:
        assert len(group.outages) >= FEWEST_TOGETHER
        starts = [each.started_at for each in group.outages]
        assert max(starts) - min(starts) <= SPREAD

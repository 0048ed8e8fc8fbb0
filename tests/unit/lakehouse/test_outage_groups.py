"""The outages of one incident are told together, all others one by one."""

from aggregator.lakehouse.page.figures import OutageRow
from aggregator.lakehouse.page.outages import group_outages
from aggregator.lakehouse.tables.outage_views import FEWEST_TOGETHER


def rack(
    name: str, size: int, incident: int | None, ended_at: int | None = 2000, site: str = "dub1"
) -> list[OutageRow]:
    end = [None if ended_at is None else ended_at + n for n in range(size)]
    by = None if ended_at is None else "recovered"
    return [OutageRow("eu-west", site, f"{name}-n{n}", 1000 + n, end[n], by, incident) for n in range(size)]


def test_incidents_and_sites_are_apart_and_nothing_is_lost_or_told_twice() -> None:
    first, second = rack("r1", 5, 1000), rack("r2", 6, 900)
    elsewhere, alone = rack("r1", 4, 1000, site="nyc1"), rack("x", 7, None)
    groups, singles = group_outages([*alone, *second, *first, *elsewhere])
    assert [group.outages for group in groups] == [tuple(first), tuple(second), tuple(elsewhere)]
    assert (groups[0].started_at, groups[0].ended_at) == (1000, 2004)
    assert singles == alone


def test_an_incident_of_which_somebody_is_still_down_has_no_end() -> None:
    (group,), _ = group_outages([*rack("r1", 5, 1000), *rack("r2", 1, 1000, None)])
    assert group.ended_at is None


def test_a_few_stragglers_of_an_incident_are_told_one_by_one() -> None:
    few = rack("r1", FEWEST_TOGETHER - 1, 1000)
    assert group_outages(few) == ([], few)


def test_names_of_most_members_name_the_group() -> None:
    (group,), _ = group_outages([*rack("other", 1, 1000), *rack("web-r1", 9, 1000)])
    assert group.name_prefix == ("web-r1-", 9)
    unlike = [outage._replace(sender_id=f"{n}") for n, outage in enumerate(rack("r", 5, 1000))]
    assert [each.name_prefix for each in group_outages(unlike)[0]] == [("", 0)]

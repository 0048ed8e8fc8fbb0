from collections.abc import Sequence

import msgspec
import pytest

from aggregator.live.alerts.incidents import (
    MOST_NODES,
    HubTimes,
    Incident,
    IncidentCause,
    IncidentKey,
    IncidentOutcome,
    IncidentRules,
    judge,
)
from shared.instants import HOUR, MINUTE, SECOND

RULES = IncidentRules(open_after=30 * SECOND, unknown_after=MINUTE, close_after=3 * MINUTE, least_share=0.05)
NOON = 1_790_000_000_000_000
READ_UNTIL = NOON + SECOND
STALE = IncidentKey("eu", "dub1", IncidentCause.STALE)
UNKNOWN = IncidentKey("eu", "dub1", IncidentCause.UNKNOWN)
ALONE = IncidentKey("eu", "dub1", IncidentCause.ALONE)
REGION = IncidentKey("eu", "", IncidentCause.UNKNOWN)
HUB = IncidentKey("", "", IncidentCause.UNKNOWN)
CLOSED = {("eu", "closed"), ("ap", "")}


class Site(msgspec.Struct, kw_only=True):
    """A site of which a test says what it shows."""

    region: str = "eu"
    site: str = "dub1"
    expected_count: int = 230
    stale: dict[str, int] = {}
    planned_count: int = 0
    retired_count: int = 0
    observed_since_us: int = 0
    known_until_us: int = NOON
    unknown: str | None = None
    is_heard: bool = True
    alone_since_us: int = 0
    lone_agents: tuple[str, ...] = ()
    gone: bool = False
    maintained: bool = False
    maintained_until_us: int = 0
    stale_blocks: tuple[str, ...] = ("nodes",)
    unseen: tuple[str, ...] = ()
    silent_block_count: int = 0

    @property
    def unknown_count(self) -> int:
        return self.silent_block_count or self.expected_count

    @property
    def known_count(self) -> int:
        return self.expected_count - self.silent_block_count

    @property
    def unknown_since_us(self) -> int:
        return max(NOON if self.silent_block_count else self.known_until_us, self.maintained_until_us)

    @property
    def unknown_maintained(self) -> bool:
        return self.maintained

    @property
    def lost_since_us(self) -> int | None:
        is_lost = self.unknown is not None and not self.silent_block_count
        return max(self.known_until_us, self.maintained_until_us) if is_lost else None

    def sees(self, blocks: Sequence[str]) -> bool:
        return not set(self.unseen) & set(blocks)

    @property
    def stale_count(self) -> int:
        return len(self.stale)

    def stale_at(self, rank: int) -> int:
        return max(self.silent_at(rank), self.observed_since_us)

    def silent_at(self, rank: int) -> int:
        return sorted(self.stale.values())[rank - 1]

    def stale_among(self, senders: Sequence[str], _blocks: Sequence[str]) -> int:
        return len(self.stale.keys() & senders)

    def stale_senders(self, most: int) -> list[str]:
        return sorted(self.stale, key=lambda sender: self.stale[sender])[:most]


class Watch:
    """What is open, as the live store keeps it."""

    def __init__(self) -> None:
        self.open: dict[IncidentKey, Incident] = {}
        self.ended: list[Incident] = []

    def see(self, *sites: Site, now: int | None = None, read_since: int = 0) -> list[Incident]:
        at = now or max(site.known_until_us for site in sites)
        changed = judge(sites, self.open, HubTimes(at, READ_UNTIL, read_since), RULES, lambda *place: place in CLOSED)
        for incident in changed:
            if incident.ended_at_us is None:
                self.open[incident.key] = incident
            else:
                del self.open[incident.key]
                self.ended.append(incident)
        return changed


def many(count: int, at: int = NOON) -> dict[str, int]:
    return {f"web{number}": at for number in range(count)}


def test_many_stale_senders_are_one_incident_from_when_they_became_too_many() -> None:
    watch = Watch()
    stale = {"old": NOON - 500 * MINUTE} | many(213)
    watch.see(Site(stale=stale, known_until_us=NOON + 29 * SECOND))
    assert watch.open == {}
    watch.see(Site(stale=stale, known_until_us=NOON + 30 * SECOND))
    incident = watch.open[STALE]
    assert (incident.started_at_us, incident.node_count, incident.expected_count) == (NOON, 214, 230)
    assert (incident.known_until_us, len(incident.nodes)) == (NOON + 30 * SECOND, MOST_NODES)


def test_a_few_stale_senders_of_a_large_site_are_no_incident() -> None:
    watch = Watch()
    watch.see(Site(stale=many(11), known_until_us=NOON + 60 * MINUTE))
    assert watch.open == {}
    watch.see(Site(stale=many(12), known_until_us=NOON + 60 * MINUTE))
    assert list(watch.open) == [STALE]


def test_the_same_past_gives_the_same_id() -> None:
    first, second = Watch(), Watch()
    first.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    second.see(Site(stale=many(20), known_until_us=NOON + 40 * SECOND))
    second.see(Site(stale=many(25), known_until_us=NOON + 50 * SECOND))
    assert first.open[STALE].incident_id == second.open[STALE].incident_id


def test_an_incident_ends_when_it_has_been_away_for_long_enough_and_flapping_is_one() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    watch.see(Site(known_until_us=NOON + 2 * MINUTE))
    watch.see(Site(stale=many(20, NOON + 3 * MINUTE), known_until_us=NOON + 4 * MINUTE))
    watch.see(Site(known_until_us=NOON + 5 * MINUTE))
    watch.see(Site(known_until_us=NOON + 8 * MINUTE - 1))
    assert list(watch.open) == [STALE]
    assert watch.ended == []
    watch.see(Site(known_until_us=NOON + 8 * MINUTE))
    assert watch.open == {}
    assert [each.ended_at_us for each in watch.ended] == [NOON + 5 * MINUTE]
    assert watch.ended[0].outcome is IncidentOutcome.RECOVERED
    assert watch.ended[0].most_count == 20


def test_between_half_the_limit_and_the_limit_an_incident_neither_opens_nor_ends() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    watch.see(Site(stale=many(6), known_until_us=NOON + 60 * MINUTE))
    watch.see(Site(stale=many(6), known_until_us=NOON + 90 * MINUTE))
    assert list(watch.open) == [STALE]
    watch.see(Site(stale=many(5), known_until_us=NOON + 91 * MINUTE))
    watch.see(Site(stale=many(5), known_until_us=NOON + 94 * MINUTE))
    assert watch.open == {}


def test_what_nobody_watches_resolves_nothing_and_its_time_stands_still() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    watch.see(Site(known_until_us=NOON + 2 * MINUTE))
    hour = NOON + 60 * MINUTE
    watch.see(Site(known_until_us=NOON + 2 * MINUTE, unknown="agent_silent"), now=hour)
    assert STALE in watch.open
    back = Site(observed_since_us=hour, known_until_us=hour + MINUTE)
    watch.see(back)
    assert STALE in watch.open
    watch.see(msgspec.structs.replace(back, known_until_us=hour + 3 * MINUTE))
    assert [each.ended_at_us for each in watch.ended if each.cause is IncidentCause.STALE] == [hour]


def test_a_vanished_site_resolves_nothing() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    other = Site(site="lon1", known_until_us=NOON + 90 * MINUTE)
    assert watch.see(other) == []
    assert list(watch.open) == [STALE]


def test_retired_senders_have_not_recovered() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + MINUTE))
    for minutes in (60, 63):
        watch.see(Site(expected_count=210, retired_count=20, known_until_us=NOON + minutes * MINUTE))
    assert [each.outcome for each in watch.ended] == [IncidentOutcome.RETIRED]


def test_a_site_that_nobody_watches_is_an_incident_with_its_reason() -> None:
    watch = Watch()
    watch.see(Site(unknown="agent_silent"), now=NOON + MINUTE - 1)
    assert watch.open == {}
    watch.see(Site(unknown="agent_silent"), now=NOON + MINUTE)
    assert watch.open[UNKNOWN].started_at_us == NOON
    assert watch.open[UNKNOWN].reason == "agent_silent"
    watch.see(Site(known_until_us=NOON + 5 * MINUTE, observed_since_us=NOON + 4 * MINUTE), now=NOON + 5 * MINUTE)
    watch.see(Site(known_until_us=NOON + 8 * MINUTE, observed_since_us=NOON + 4 * MINUTE), now=NOON + 8 * MINUTE)
    assert watch.open == {}
    assert [(each.cause, each.ended_at_us) for each in watch.ended] == [(IncidentCause.UNKNOWN, NOON + 5 * MINUTE)]


def test_an_agent_of_a_pair_that_is_alone_for_long_is_an_incident_until_the_other_is_back_or_none_is_expected() -> None:
    watch = Watch()
    alone = Site(alone_since_us=NOON, lone_agents=("dub1-b",))
    watch.see(msgspec.structs.replace(alone, maintained=True), now=NOON + 9 * MINUTE)
    watch.see(alone, now=NOON + MINUTE - 1)
    assert watch.open == {}
    watch.see(alone, now=NOON + MINUTE)
    began = watch.open[ALONE]
    assert (began.started_at_us, began.node_count, began.expected_count, began.nodes) == (NOON, 1, 2, ("dub1-b",))
    # What is not seen resolves nothing.
    watch.see(Site(unknown="agent_silent", is_heard=False, known_until_us=NOON), now=NOON + 20 * MINUTE)
    assert watch.open[ALONE].clear_since_us is None
    back = NOON + 21 * MINUTE
    watch.see(Site(known_until_us=back, observed_since_us=back), now=back)
    watch.see(Site(known_until_us=back, observed_since_us=back), now=back + 3 * MINUTE)
    assert [
        (each.cause, each.ended_at_us, each.outcome) for each in watch.ended if each.cause is IncidentCause.ALONE
    ] == [(IncidentCause.ALONE, back, IncidentOutcome.RECOVERED)]
    watch.see(msgspec.structs.replace(alone, alone_since_us=back), now=back + 2 * MINUTE)
    gone = msgspec.structs.replace(alone, gone=True)
    watch.see(gone, now=back + 4 * MINUTE)
    watch.see(gone, now=back + 7 * MINUTE)
    assert ALONE not in watch.open
    assert watch.ended[-1].outcome is IncidentOutcome.RETIRED


def test_who_is_alone_after_maintenance_is_so_since_its_end() -> None:
    watch, ended_at = Watch(), NOON + 5 * MINUTE
    watch.see(Site(alone_since_us=NOON, maintained_until_us=ended_at), now=ended_at + MINUTE - 1)
    assert watch.open == {}
    watch.see(Site(alone_since_us=NOON, maintained_until_us=ended_at), now=ended_at + MINUTE)
    assert watch.open[ALONE].started_at_us == ended_at


@pytest.mark.parametrize(
    ("reason", "key", "started_at"),
    [
        ("region_behind", REGION, NOON),
        ("hub_behind", HUB, READ_UNTIL),
        ("agent_silent", REGION, NOON),
    ],
)
def test_a_wider_cause_is_one_incident_that_lists_its_sites(reason: str, key: IncidentKey, started_at: int) -> None:
    watch = Watch()
    sites = [Site(site=f"dub{number}", unknown=reason) for number in range(4)]
    # One has been unknown for long: that was no matter of the whole region yet.
    sites[2].known_until_us -= 9 * MINUTE
    watch.see(*sites, now=NOON + 2 * MINUTE)
    assert list(watch.open) == [key]
    incident = watch.open[key]
    assert incident.nodes == ("dub0", "dub1", "dub2", "dub3")
    assert (incident.reason, incident.node_count, incident.expected_count) == (reason, 4, 4)
    assert incident.started_at_us == started_at


def test_sites_that_say_themselves_what_is_wrong_are_no_lost_region() -> None:
    watch = Watch()
    reasons = ("agent_silent", "not_stored", "clock", "ordinals_missing")
    sites = [Site(site=f"dub{number}", unknown=reason) for number, reason in enumerate(reasons)]
    watch.see(*sites, now=NOON + 2 * MINUTE)
    assert {key.site: each.reason for key, each in watch.open.items()} == dict(
        zip(("dub0", "dub1", "dub2", "dub3"), reasons, strict=True)
    )


def test_a_region_that_catches_up_is_lost_until_its_sites_are_known() -> None:
    watch = Watch()
    cut = [Site(site=f"dub{number}", unknown="region_behind") for number in range(4)]
    watch.see(*cut, now=NOON + 2 * MINUTE)
    for minutes in range(3, 9):
        behind = [msgspec.structs.replace(each, unknown="agent_behind") for each in cut]
        watch.see(*behind, now=NOON + minutes * MINUTE)
    assert (list(watch.open), watch.open[REGION].reason) == ([REGION], "region_behind")


@pytest.mark.parametrize("count", [1, 4])
def test_what_a_place_says_on_its_way_back_was_not_its_cause(count: int) -> None:
    watch = Watch()
    cut = [Site(site=f"dub{number}", unknown="region_behind") for number in range(count)]
    watch.see(*cut, now=NOON + 2 * MINUTE)
    for minutes, reason in enumerate(("agent_silent", "agent_stopped", "agent_behind"), start=3):
        watch.see(*(msgspec.structs.replace(each, unknown=reason) for each in cut), now=NOON + minutes * MINUTE)
    for minutes in (6, 9):
        watch.see(*(Site(site=each.site, known_until_us=NOON + minutes * MINUTE) for each in cut))
    assert [(each.key, each.reason) for each in watch.ended] == [(REGION, "region_behind")]


def test_a_region_of_one_site_stays_one_incident_until_that_site_is_back() -> None:
    watch = Watch()
    cut = Site(unknown="region_behind")
    watch.see(cut, now=NOON + 2 * MINUTE)
    on_its_way = msgspec.structs.replace(cut, unknown="agent_silent")
    for minute in range(3, 20):
        watch.see(on_its_way, now=NOON + minute * MINUTE)
    assert list(watch.open) == [REGION]
    assert watch.open[REGION].summary == "eu: unknown (region behind, 1 of 1 site)"
    back = Site(known_until_us=NOON + 20 * MINUTE, observed_since_us=0)
    watch.see(back)
    watch.see(msgspec.structs.replace(back, known_until_us=NOON + 24 * MINUTE))
    assert [(each.key, each.reason) for each in watch.ended] == [(REGION, "region_behind")]


def test_what_an_incident_took_is_told_of_those_that_were_expected_then() -> None:
    watch = Watch()
    watch.see(Site(stale=many(214), known_until_us=NOON + MINUTE))
    for minutes in (2, 6):
        watch.see(Site(expected_count=16, retired_count=214, known_until_us=NOON + minutes * MINUTE))
    (over,) = watch.ended
    assert (over.most_count, over.expected_count, over.outcome) == (214, 230, IncidentOutcome.RETIRED)


def test_who_has_just_begun_to_read_calls_nobody_unknown_yet() -> None:
    watch = Watch()
    began = NOON + 60 * MINUTE
    sites = [Site(unknown="agent_silent"), Site(region="us", site="nyc1", unknown="region_behind")]
    watch.see(*sites, now=began + MINUTE - 1, read_since=began)
    assert watch.open == {}
    watch.see(*sites, now=began + MINUTE, read_since=began)
    assert {each.key: each.started_at_us for each in watch.open.values()} == {
        UNKNOWN: NOON,
        IncidentKey("us", "", IncidentCause.UNKNOWN): NOON,
    }


def test_a_regions_incident_does_not_end_because_its_sites_vanished() -> None:
    watch = Watch()
    lost = [Site(site=f"dub{number}", unknown="agent_silent") for number in range(4)]
    well = Site(site="cork", known_until_us=NOON + 90 * MINUTE)
    watch.see(*lost, well, now=NOON + 2 * MINUTE)
    watch.see(well, now=NOON + 80 * MINUTE)
    watch.see(well, now=NOON + 90 * MINUTE)
    assert list(watch.open) == [REGION]


@pytest.mark.parametrize("unknown", [None, "agent_silent"])
@pytest.mark.parametrize(
    ("was_open", "maintained", "holds", "opened", "closed"),
    [
        (False, True, True, False, False),
        (False, False, True, True, False),
        (True, True, True, False, False),
        (True, True, False, False, True),
        (True, False, False, False, True),
        (True, False, True, False, False),
        (False, True, False, False, False),
    ],
)
def test_maintenance_suppresses_creation_alone(
    was_open: bool, maintained: bool, holds: bool, opened: bool, closed: bool, unknown: str | None
) -> None:
    key, watch = STALE if unknown is None else UNKNOWN, Watch()

    def look(minutes: int, holds: bool, maintained: bool) -> list[Incident]:
        now = NOON + minutes * MINUTE
        stale = many(20) if holds and unknown is None else {}
        reason = unknown if holds else None
        site = Site(stale=stale, unknown=reason, maintained=maintained, known_until_us=NOON if reason else now)
        return watch.see(site, now=now)

    if was_open:
        look(2, True, False)
    changed = [*look(10, holds, maintained), *look(14, holds, maintained)]
    assert (key in watch.open) == (opened or (was_open and not closed))
    assert (bool(watch.ended), not was_open and bool(changed)) == (closed, opened)


def test_time_in_maintenance_does_not_count_towards_an_incident() -> None:
    watch = Watch()
    end = NOON + 10 * MINUTE
    watch.see(Site(stale=many(20), maintained_until_us=end, known_until_us=end + 29 * SECOND))
    assert watch.open == {}
    watch.see(Site(stale=many(20), maintained_until_us=end, known_until_us=end + 30 * SECOND))
    assert watch.open[STALE].started_at_us == end


def test_senders_in_maintenance_open_no_incident() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), planned_count=15, known_until_us=NOON + 60 * MINUTE))
    assert watch.open == {}


def test_a_sites_incident_becomes_part_of_its_regions_and_stands_by_itself_when_that_is_over() -> None:
    watch = Watch()
    dub1 = Site(unknown="agent_silent")
    others = [Site(site=f"lon{number}", known_until_us=NOON + MINUTE) for number in range(3)]
    watch.see(dub1, *others, now=NOON + MINUTE)
    (alone,) = watch.open.values()
    assert (alone.key, alone.within) == (UNKNOWN, "")

    # The whole region is cut, a little later than the one site fell silent.
    cut = [msgspec.structs.replace(site, unknown="region_behind") for site in (dub1, *others)]
    watch.see(*cut, now=NOON + 3 * MINUTE)
    assert set(watch.open) == {UNKNOWN, REGION}
    assert watch.open[UNKNOWN].within == watch.open[REGION].incident_id

    # It comes back, but for the one site, and another falls silent at once: no incident of its own as long as the
    # region's goes on, whose time of being clear runs.
    def back(minutes: int, *silent: str) -> list[Site]:
        now = NOON + minutes * MINUTE
        return [
            dub1,
            *(msgspec.structs.replace(each, known_until_us=now) for each in others if each.site not in silent),
            *(Site(site=site, unknown="agent_silent", known_until_us=NOON + 2 * MINUTE) for site in silent),
        ]

    watch.see(*back(10), now=NOON + 10 * MINUTE)
    watch.see(*back(12), now=NOON + 12 * MINUTE)
    assert set(watch.open) == {UNKNOWN, REGION}
    watch.see(*back(13), now=NOON + 13 * MINUTE)
    watch.see(*back(14), now=NOON + 14 * MINUTE)
    assert watch.open == {UNKNOWN: watch.open[UNKNOWN]}
    assert (watch.open[UNKNOWN].incident_id, watch.open[UNKNOWN].within) == (alone.incident_id, "")
    assert [each.key for each in watch.ended] == [REGION]


def test_while_a_regions_incident_dies_down_no_site_of_it_opens_one() -> None:
    watch = Watch()
    cut = [Site(site=f"dub{number}", unknown="region_behind") for number in range(4)]
    watch.see(*cut, now=NOON + 2 * MINUTE)
    back = [msgspec.structs.replace(each, unknown=None, known_until_us=NOON + 9 * MINUTE) for each in cut[1:]]
    silent = msgspec.structs.replace(cut[0], unknown="agent_silent")
    watch.see(silent, *back, now=NOON + 9 * MINUTE)
    assert list(watch.open) == [REGION]
    watch.see(silent, *back, now=NOON + 12 * MINUTE)
    watch.see(silent, *back, now=NOON + 12 * MINUTE + SECOND)
    assert [(key.site, each.started_at_us) for key, each in watch.open.items()] == [("dub0", NOON)]


def test_a_hub_that_is_behind_ends_no_incident_of_a_region_and_is_the_wider_one() -> None:
    watch = Watch()
    cut = [Site(site=f"dub{number}", unknown="region_behind") for number in range(4)]
    watch.see(*cut, now=NOON + 2 * MINUTE)
    before = watch.open[REGION]
    behind = [msgspec.structs.replace(each, unknown="hub_behind") for each in cut]
    for minutes in range(3, 20):
        watch.see(*behind, now=NOON + minutes * MINUTE)
    assert set(watch.open) == {HUB, REGION}
    assert watch.ended == []
    assert watch.open[REGION] == msgspec.structs.replace(before, within=watch.open[HUB].incident_id)
    # The hub reads on, and the region is still cut: it is told of no second time.
    for minutes in range(20, 25):
        watch.see(*cut, now=NOON + minutes * MINUTE)
    assert list(watch.open) == [REGION]
    assert (watch.open[REGION].incident_id, watch.open[REGION].within) == (before.incident_id, "")


@pytest.mark.parametrize("key", [STALE, UNKNOWN])
def test_where_nobody_is_expected_any_more_no_incident_opens_and_an_open_one_ends(key: IncidentKey) -> None:
    stale = many(20) if key is STALE else {}
    site = Site(unknown=None if stale else "agent_silent", stale=stale)
    later = msgspec.structs.replace(site, known_until_us=NOON + MINUTE if stale else NOON)
    gone = msgspec.structs.replace(later, unknown="agent_silent", gone=True)
    watch = Watch()
    watch.see(gone, now=NOON + 90 * MINUTE)
    assert watch.open == {}
    watch.see(later, now=NOON + MINUTE)
    assert list(watch.open) == [key]
    for minutes in (90, 92):
        watch.see(gone, now=NOON + minutes * MINUTE)
    assert list(watch.open) == [key]
    watch.see(gone, now=NOON + 93 * MINUTE)
    assert [(each.key, each.outcome) for each in watch.ended] == [(key, IncidentOutcome.RETIRED)]


def test_a_region_is_lost_by_the_sites_of_which_anything_is_expected() -> None:
    gone = [Site(site=f"old{number}", unknown="agent_silent", gone=True) for number in range(4)]
    watch = Watch()
    watch.see(*gone, *(Site(site=f"dub{number}", known_until_us=NOON + 9 * MINUTE) for number in range(2)))
    assert watch.open == {}
    watch.see(*gone, *(Site(site=f"dub{number}", unknown="agent_silent") for number in range(2)), now=NOON + MINUTE)
    assert watch.open[REGION].nodes == ("dub0", "dub1")


def test_what_vanished_ends_where_an_operator_has_closed_it() -> None:
    watch = Watch()
    sites = [Site(site="closed", unknown="agent_silent"), Site(unknown="agent_silent"), Site(site="lon1")]
    more = [Site(region="us", site=site, known_until_us=NOON + 60 * MINUTE) for site in ("nyc1", "nyc2")]
    asian = [Site(region="ap", site="tyo1", unknown="region_behind")]
    watch.see(*sites[:1], *sites[2:], *more, *asian, now=NOON + MINUTE)
    watch.see(*sites[1:2], *more, now=NOON + 60 * MINUTE)
    watch.see(*sites[1:2], *more, now=NOON + 63 * MINUTE)
    assert set(watch.open) == {UNKNOWN}
    assert {(each.key.region, each.key.site, each.outcome) for each in watch.ended} == {
        ("eu", "closed", IncidentOutcome.RETIRED), ("ap", "", IncidentOutcome.RETIRED)
    }  # fmt: skip


def test_a_regions_incident_that_a_vanished_site_keeps_open_hides_no_other_site() -> None:
    watch = Watch()
    watch.see(*(Site(site=name, unknown="agent_silent") for name in "abc"), now=NOON + 10 * MINUTE)
    assert REGION in watch.open
    # The state is made anew, and the archive has nothing of the third any more.
    for minute in range(20, 30):
        at = NOON + minute * MINUTE
        watch.see(*(Site(site=name, known_until_us=at) for name in "ab"), now=at)
    assert [*watch.open] == [REGION]
    at = NOON + 60 * MINUTE
    watch.see(Site(site="a", unknown="agent_silent"), Site(site="b", known_until_us=at), now=at)
    assert IncidentKey("eu", "a", IncidentCause.UNKNOWN) in watch.open


def test_a_block_that_comes_back_behind_the_others_turns_no_time_back() -> None:
    watch = Watch()
    watch.see(Site(stale=many(20), known_until_us=NOON + 60 * MINUTE))
    behind = NOON + 57 * MINUTE
    watch.see(Site(known_until_us=behind, observed_since_us=NOON - MINUTE))
    assert watch.open[STALE].clear_since_us == NOON + 60 * MINUTE
    watch.see(Site(known_until_us=NOON + 62 * MINUTE))
    assert list(watch.open) == [STALE]
    watch.see(Site(known_until_us=NOON + 63 * MINUTE))
    assert [each.ended_at_us for each in watch.ended] == [NOON + 60 * MINUTE]


def test_more_stale_senders_than_an_incident_names_have_not_recovered_where_nobody_watches_them() -> None:
    watch = Watch()
    watch.see(Site(stale=many(150), stale_blocks=("nodes", "dbs"), known_until_us=NOON + MINUTE))
    others = Site(unknown="agent_silent", silent_block_count=30, unseen=("dbs",), known_until_us=NOON + HOUR)
    for minutes in (0, 9):
        watch.see(msgspec.structs.replace(others, known_until_us=NOON + HOUR + minutes * MINUTE))
    assert watch.open[STALE].clear_since_us is None


def test_a_region_that_has_grown_has_not_recovered_while_as_many_of_its_sites_are_silent() -> None:
    def sites(minutes: int, count: int, silent: int) -> list[Site]:
        now = NOON + minutes * MINUTE
        lost = [Site(site=f"dub{number}", unknown="agent_silent") for number in range(silent)]
        return [*lost, *(Site(site=f"dub{number}", known_until_us=now) for number in range(silent, count))]

    watch = Watch()
    watch.see(*sites(2, 4, 2), now=NOON + 2 * MINUTE)
    began = watch.open[REGION].incident_id
    for minutes in range(10, 20):
        watch.see(*sites(minutes, 6, 2), now=NOON + minutes * MINUTE)
    watch.see(*sites(20, 4, 2), now=NOON + 20 * MINUTE)
    assert ([each.incident_id for each in watch.open.values()], watch.ended) == ([began], [])
    for minutes in (21, 24):
        watch.see(*sites(minutes, 6, 1), now=NOON + minutes * MINUTE)
    assert [(each.incident_id, each.outcome) for each in watch.ended] == [(began, IncidentOutcome.RECOVERED)]


def test_a_site_that_has_grown_has_not_recovered_while_as_many_of_its_senders_are_stale() -> None:
    watch = Watch()
    watch.see(Site(expected_count=20, stale=many(2), known_until_us=NOON + MINUTE))
    for minutes in (10, 20):
        watch.see(Site(expected_count=2000, stale=many(2), known_until_us=NOON + minutes * MINUTE))
    assert (list(watch.open), watch.ended) == ([STALE], [])
    for minutes in (21, 24):
        watch.see(Site(expected_count=2000, known_until_us=NOON + minutes * MINUTE))
    assert [each.outcome for each in watch.ended] == [IncidentOutcome.RECOVERED]


@pytest.mark.parametrize("others", [3, 7])
def test_a_site_that_has_grown_has_recovered_with_those_that_were_stale_whoever_else_is(others: int) -> None:
    watch = Watch()
    watch.see(Site(expected_count=10, stale=many(3), known_until_us=NOON + MINUTE))
    few = {f"db{number}": NOON for number in range(others)}
    watch.see(Site(expected_count=1010, stale=many(3) | few, known_until_us=NOON + 10 * MINUTE))
    for minutes in (11, 60):
        # Two of three are left.
        watch.see(Site(expected_count=1010, stale=many(2) | few, known_until_us=NOON + minutes * MINUTE))
    assert (list(watch.open), watch.ended) == ([STALE], [])
    for minutes in (61, 64):
        watch.see(Site(expected_count=1010, stale=many(1) | few, known_until_us=NOON + minutes * MINUTE))
    assert [(each.outcome, each.most_count) for each in watch.ended] == [(IncidentOutcome.RECOVERED, 3)]


def test_a_few_that_were_stale_all_along_keep_no_incident_of_many_open() -> None:
    watch = Watch()
    watch.see(Site(expected_count=4000, stale=many(300), known_until_us=NOON + MINUTE))
    for minutes in (2, 5):
        watch.see(Site(expected_count=4000, stale=many(60), known_until_us=NOON + minutes * MINUTE))
    assert [each.outcome for each in watch.ended] == [IncidentOutcome.RECOVERED]


def test_a_region_whose_source_is_back_is_not_lost_by_the_few_sites_that_stay_silent() -> None:
    watch = Watch()
    silent = [Site(site=f"dub{number}", unknown="agent_silent") for number in range(2)]
    cut = [msgspec.structs.replace(each, unknown="region_behind") for each in silent]
    for minutes, lost in ((2, cut), (3, silent), (6, silent)):
        now = NOON + minutes * MINUTE
        others = [Site(site=f"lon{number}", known_until_us=now) for number in range(8)]
        watch.see(*lost, *others, now=now)
    assert [each.key for each in watch.ended] == [REGION]

"""Make up histories of fleets, for what shows them: a demo of a minute and a half, and a month."""

import random
from collections.abc import Iterable
from typing import NamedTuple

from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.lakehouse.small_rollup import REGION_OF, START, Coverage, Interval


class History(NamedTuple):
    """What a rollup would have found, and the settings that it was made with."""

    intervals: list[Interval]
    coverage: list[Coverage]
    known_through: int
    stale_after: int
    registration_interval: int


def lives(site: str, sender_id: str, born_at: int, downs: Iterable[tuple[int, int | None]]) -> list[Interval]:
    """Cut a sender's life at its outages; None: still down."""
    intervals, up_from = [], born_at
    for down_from, down_to in sorted(downs, key=lambda down: down[0]):
        intervals.append(Interval(site, sender_id, "up", up_from, down_from, "stale"))
        intervals.append(Interval(site, sender_id, "down", down_from, down_to, "recovered" if down_to else None))
        if down_to is None:
            return intervals
        up_from = down_to
    return [*intervals, Interval(site, sender_id, "up", up_from, None, None)]


def observed(
    site: str, ended_at: int, gaps: Iterable[tuple[int, int, str]] = (), started_at: int = START
) -> list[Coverage]:
    """Cover a site's time but for the gaps, each of which has its cause."""
    spans, at = [], started_at
    for gap_from, gap_to, cause in gaps:
        spans += [Coverage(site, at, gap_from, "observed"), Coverage(site, gap_from, gap_to, cause)]
        at = gap_to
    return [span for span in [*spans, Coverage(site, at, ended_at, "observed")] if span.started_at < span.ended_at]


def demo() -> History:
    """95 seconds of 600 senders: two racks, a sender that flaps, one that leaves, a killed agent, a stopped server."""
    interval, start = 3 * SECOND, START + 14 * HOUR + 2 * MINUTE + 11 * SECOND + 400_000
    end = start + 95 * SECOND
    chance = random.Random(7)
    intervals: list[Interval] = []
    for site in REGION_OF:
        for number in range(200):
            rack, place = number // 20 + 1, number % 20 + 1
            name = f"{site}-r{rack}-n{place}.example.net"
            phase = chance.randrange(interval)
            downs: list[tuple[int, int | None]] = []
            if (site, rack) in (("dub1", 3), ("nyc1", 4)):
                downs.append((start + 10 * SECOND + phase, start + 29 * SECOND + phase))
            if name == "dub1-r2-n4.example.net":
                downs += [(start + at * SECOND + phase, start + (at + 15) * SECOND + phase) for at in (12, 36, 60)]
            if name == "nyc1-r1-n4.example.net":
                downs.append((start + 62 * SECOND + phase, None))
            intervals += lives(site, name, start + phase, downs)
    coverage = [
        *observed("ams1", end, [(start + 64 * SECOND, start + 84 * SECOND, "unobserved")], start),
        *observed("dub1", end, (), start),
        *observed("nyc1", end, [(start + 93 * SECOND, end, "unobserved")], start),
    ]
    return History(intervals, coverage, end, 10 * SECOND, interval)


def month(senders_per_site: int = 60, days: int = 31) -> History:
    """A month with outages at random, a rack a week, and a site that nobody watched for half a day."""
    end = START + days * DAY - 5 * HOUR
    chance = random.Random(11)
    intervals: list[Interval] = []
    for site_number, site in enumerate(REGION_OF):
        for number in range(senders_per_site):
            rack, place = number // 20 + 1, number % 20 + 1
            phase = chance.randrange(5 * MINUTE)
            downs: list[tuple[int, int | None]] = []
            for week in range(0, days, 7):
                if rack == site_number + 1:
                    at = START + (week + 2 + site_number) * DAY + 9 * HOUR + phase
                    downs.append((at, at + 3 * HOUR))
                if chance.random() < 0.2:
                    at = START + week * DAY + DAY // 4 + chance.randrange(DAY)
                    downs.append((at, at + chance.randrange(20 * MINUTE, 12 * HOUR)))
            downs = [down for down in downs if down[1] is not None and down[1] < end]
            intervals += lives(site, f"{site}-r{rack}-n{place}.example.net", START + phase, downs)
    coverage = [
        *observed("ams1", end),
        *observed("dub1", end, [(START + 9 * DAY + 2 * HOUR, START + 9 * DAY + 14 * HOUR, "unobserved")]),
        *observed("nyc1", end, [(START + 20 * DAY, START + 20 * DAY + 90 * MINUTE, "advisories_missing")]),
    ]
    return History(intervals, coverage, end, 12 * MINUTE, 5 * MINUTE)


def mixed(seed: int) -> History:
    """Two days drawn from a seed: lost stores, retirements and births, gaps of every cause that overlap outages."""
    chance = random.Random(seed)
    end = START + 2 * DAY - 3 * HOUR
    intervals: list[Interval] = []
    for site in REGION_OF:
        for number in range(12):
            name, at = f"{site}-{number}", START + chance.randrange(HOUR)
            while at < end:
                edges = [at + chance.randrange(1, 12 * HOUR)]
                edges.append(edges[0] + chance.randrange(20 * MINUTE, 5 * HOUR))
                if edges[1] >= end:
                    intervals.append(Interval(site, name, "up", at, None, None))
                    break
                lost = chance.random() < 0.3
                state, ended_by = ("unknown", "lost_store") if lost else ("down", "stale")
                intervals.append(Interval(site, name, "up", at, edges[0], ended_by))
                retired = not lost and chance.random() < 0.3
                intervals.append(Interval(site, name, state, edges[0], edges[1], "retired" if retired else "recovered"))
                at = edges[1] + (chance.randrange(1, 4 * HOUR) if retired else 0)
    coverage = []
    for site in REGION_OF:
        gaps, at = [], START
        for cause in ("unobserved", "advisories_missing", "unobserved"):
            at += chance.randrange(HOUR, 9 * HOUR)
            gaps.append((at, at + chance.randrange(1, 4 * HOUR), cause))
            at = gaps[-1][1]
        coverage += observed(site, end, gaps)
    return History(intervals, coverage, end, 12 * MINUTE, 5 * MINUTE)


def hostile() -> History:
    """Senders whose names want to be markup."""
    end = START + 3 * HOUR
    names = ["<img src=x onerror=alert(1)>", "</script><script>x()</script>", '" onclick="x()', "&amp;</style>'"]
    downs = [(START + HOUR, START + 2 * HOUR)]
    intervals = [each for name in names for each in lives("dub1", name, START, downs)]
    return History(intervals, observed("dub1", end), end, 12 * MINUTE, 5 * MINUTE)

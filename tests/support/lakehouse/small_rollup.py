"""Work out, one sender and one instant of coverage at a time, the rows that a rollup would leave.

This shares no line with the job's way to the same figures.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from aggregator.lakehouse.tables.imports import BLOCK_PREFIX
from aggregator.lakehouse.tables.schemas import SITE_BUCKETS
from shared.instants import DAY, HOUR, MINUTE, SECOND

START = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * SECOND
"""A Monday's midnight: where the histories of tests begin."""
REGION_OF = {"ams1": "eu-west", "dub1": "eu-west", "nyc1": "us-east"}
BLOCK = "nodes"
IMPORTED_BLOCK = f"{BLOCK_PREFIX}nagios"
STALE_AFTER = 12 * MINUTE
REGISTRATION_INTERVAL = 5 * MINUTE

Row = dict[str, Any]
Lived = tuple[str, str, str, int]
"""A site, a block of it, a sender, and the start of a window."""


class Interval(NamedTuple):
    """One interval of one sender, as in ``sender_intervals``."""

    site: str
    sender_id: str
    state: str
    started_at: int
    ended_at: int | None
    ended_by: str | None
    block: str = BLOCK


class Coverage(NamedTuple):
    """One span of a site's coverage, as in ``site_coverage``."""

    site: str
    started_at: int
    ended_at: int
    cause: str
    block: str = BLOCK

    @property
    def known(self) -> bool:
        return self.cause in ("observed", "assumed", "imported")


class Times(NamedTuple):
    """Sender-microseconds of one sender in one window, and its outages; ``noticed`` are those not imported."""

    up: int
    down: int
    unknown: int
    outages: int
    noticed: int


def windows(
    intervals: Sequence[Interval], coverage: Sequence[Coverage], known_through: int, unit: int
) -> dict[Lived, Times]:
    """Account for each (site, block, sender, window) that a sender lived in."""
    known: dict[tuple[str, str], list[Coverage]] = defaultdict(list)
    for span in coverage:
        known[span.site, span.block].append(span)
    summed: dict[Lived, list[int]] = defaultdict(lambda: [0] * len(Times._fields))
    for each in intervals:
        for started_at, ended_at in _cut(each.started_at, min(each.ended_at or known_through, known_through), unit):
            times = summed[each.site, each.block, each.sender_id, started_at // unit * unit]
            observed = sum(
                max(0, min(span.ended_at, ended_at) - max(span.started_at, started_at))
                for span in known[each.site, each.block]
                if span.known and each.state != "unknown"
            )
            times[0 if each.state == "up" else 1] += observed
            times[2] += ended_at - started_at - observed
            times[3] += each.state == "down"
            times[4] += each.state == "down" and not is_imported(each.block)
    return {key: Times(*times) for key, times in summed.items()}


def is_imported(block: str) -> bool:
    """Tell whether a block is one of another system's history."""
    return block.startswith(BLOCK_PREFIX)


def bucket_of(site: str) -> int:
    """Give the bucket that a site's rows are partitioned by."""
    return zlib.crc32(site.encode()) % SITE_BUCKETS


def _cut(started_at: int, ended_at: int, unit: int) -> Iterator[tuple[int, int]]:
    while started_at < ended_at:
        cut_at = min(ended_at, (started_at // unit + 1) * unit)
        yield started_at, cut_at
        started_at = cut_at


def _whole_days(each: Interval, known_through: int) -> list[int]:
    """Give the starts of the days that an interval fills, as far as they are known."""
    pieces = _cut(each.started_at, each.ended_at or known_through, DAY)
    return [at for at, to in pieces if at % DAY == 0 and to == min(at + DAY, known_through)]


def _noticed_at(each: Interval, coverage: Sequence[Coverage], known_through: int, stale_after: int) -> int:
    """Give when an agent notices an outage: after a blind span everyone has the full time to be heard."""
    at = each.started_at + stale_after
    for span in coverage:
        is_blind = (span.site, span.block, span.cause) == (each.site, each.block, "unobserved")
        if is_blind and each.started_at < span.ended_at < known_through and span.started_at < at:
            at = span.ended_at + stale_after
    return at if each.ended_at is None else min(at, each.ended_at)


def interval_row(each: Interval, coverage: Sequence[Coverage], known_through: int, stale_after: int) -> Row:
    is_noticed = each.state == "down" and not is_imported(each.block)
    whole = [at // DAY for at in _whole_days(each, known_through)]
    return {
        **each._asdict(),
        "region": REGION_OF[each.site],
        "episode": f"{zlib.crc32(each.sender_id.encode()):032x}",
        "episode_started_at": each.started_at,
        "advisory_at": _noticed_at(each, coverage, known_through, stale_after) if is_noticed else each.started_at,
        "first_whole_day": whole[0] if whole else None,
        "last_whole_day": whole[-1] if whole else None,
        "site_bucket": bucket_of(each.site),
    }


def coverage_row(each: Coverage) -> Row:
    derived = {"region": REGION_OF[each.site], "known": each.known, "site_bucket": bucket_of(each.site)}
    return {**each._asdict(), **derived}


def watermark_rows(coverage: Sequence[Coverage], stale_after: int) -> Iterator[Row]:
    for each in coverage:
        if each.known and not is_imported(each.block):
            yield {
                "region": REGION_OF[each.site],
                "site": each.site,
                "block": each.block,
                "agent": f"{each.site}-a",
                "boot_id": "boot",
                "observed_since": each.started_at,
                "observed_through": each.ended_at,
                "stale_after_us": stale_after,
                "retire_after_us": DAY,
                "blind_after_us": stale_after // 4,
                "senders": [("up", 1)],
                "counters": [("rejected", [("no_sender", 2)])],
            }


def advisory_rows(
    intervals: Sequence[Interval], coverage: Sequence[Coverage], known_through: int, stale_after: int
) -> Iterator[Row]:
    back_at = {(each.site, each.block, each.sender_id, each.ended_at) for each in intervals if each.state == "down"}
    for ordinal, each in enumerate(intervals, start=1):
        if is_imported(each.block):
            continue
        is_back = (each.site, each.block, each.sender_id, each.started_at) in back_at
        kind = "stale" if each.state == "down" else "recovered" if is_back else "new"
        yield {
            "region": REGION_OF[each.site],
            "site": each.site,
            "block": each.block,
            "sender_id": each.sender_id,
            "kind": kind,
            "occurred_at": _noticed_at(each, coverage, known_through, stale_after)
            if kind == "stale"
            else each.started_at,
            "last_seen_at": each.started_at,
            "event_id": f"{ordinal:032x}",
            "ordinal": ordinal,
            "rebuilt": False,
            "assumed": False,
            "archived_at": known_through,
        }


def sender_rows(
    days: Mapping[Lived, Times], intervals: Sequence[Interval], known_through: int, bound: int
) -> Iterator[Row]:
    filled = {
        (each.site, each.block, each.sender_id, at)
        for each in intervals
        if each.state == "up"
        for at in _whole_days(each, known_through)
    }
    for (site, block, sender_id, at), times in days.items():
        window = min(DAY, known_through - at)
        if (site, block, sender_id, at) in filled:
            continue
        yield {
            "day": at // DAY,
            "region": REGION_OF[site],
            "site": site,
            "block": block,
            "sender_id": sender_id,
            "window_us": window,
            "up_us": times.up,
            "down_us": times.down,
            "unknown_us": times.unknown,
            "maintenance_us": 0,
            "absent_us": window - times.up - times.down - times.unknown,
            "outage_count": times.outages,
            "complete": window == DAY,
            "error_bound_us": bound * times.noticed,
            "site_bucket": bucket_of(site),
        }


def coverage_day_rows(coverage: Sequence[Coverage], known_through: int) -> Iterator[Row]:
    known: dict[tuple[str, str, int], int] = defaultdict(int)
    for each in coverage:
        for started_at, ended_at in _cut(each.started_at, each.ended_at, DAY):
            known[each.site, each.block, started_at // DAY * DAY] += (ended_at - started_at) * each.known
    for (site, block, at), known_us in known.items():
        window = min(DAY, known_through - at)
        yield {
            "day": at // DAY,
            "region": REGION_OF[site],
            "site": site,
            "block": block,
            "window_us": window,
            "known_us": known_us,
            "maintenance_us": 0,
            "assumed_us": 0,
            "complete": window == DAY,
            "site_bucket": bucket_of(site),
        }


def summed_rows(
    per_sender: Mapping[Lived, Times], known_through: int, unit: int, keys: tuple[str, ...], bound: int
) -> Iterator[Row]:
    groups: dict[tuple[Any, ...], list[Times]] = defaultdict(list)
    for (site, _, _, at), times in per_sender.items():
        names = {"region": REGION_OF[site], "site": site}
        groups[at, *(names[key] for key in keys)].append(times)
    for (at, *values), members in groups.items():
        up, down, unknown, outages, noticed = (sum(parts) for parts in zip(*members, strict=True))
        window = min(unit, known_through - at)
        lived = up + down + unknown
        row: Row = {
            **dict(zip(keys, values, strict=True)),
            "day": at // DAY,
            "sender_count": len(members),
            "window_us": window,
            "up_us": Decimal(up),
            "down_us": Decimal(down),
            "unknown_us": Decimal(unknown),
            "maintenance_us": Decimal(0),
            "absent_us": Decimal(window * len(members) - lived),
            "outage_count": outages,
            "complete": window == unit,
            "availability_known": up / (up + down) if up + down else None,
            "availability_total": up / lived if lived else None,
            "coverage": (up + down) / lived if lived else None,
            "error_bound_us": Decimal(bound * noticed),
        }
        if unit == HOUR:
            row["hour"] = at
        if "site" in keys:
            row["site_bucket"] = bucket_of(row["site"])
        yield row

"""Write drawn histories, and maintenance drawn for them, as rows of the bronze tables."""

import random
from collections.abc import Iterable, Iterator

from shared.instants import DAY, HOUR
from tests.support.lakehouse.random_fleet import NEW, RECOVERED, BlockHistory, Row, Window


def advisory_rows(history: BlockHistory) -> Iterator[Row]:
    """Yield the block's advisories as the table holds them, instants in microseconds."""
    for each in history.said:
        yield {
            "region": "eu-west",
            "site": history.site,
            "block": history.block,
            "sender_id": each.sender_id,
            "kind": str(each.kind),
            "occurred_at": each.at,
            "last_seen_at": each.last_seen_at,
            "event_id": each.event_id,
            "incarnation": None if each.ordinal is None else f"1-{each.incarnation}",
            "ordinal": each.ordinal,
            "rebuilt": each.rebuilt,
            "by_operator": each.by_operator,
            "unheard_until": each.unheard_until,
            "sequence": None
            if each.ordinal is None
            else (each.at if each.kind in (NEW, RECOVERED) else each.last_seen_at),
            "opening_sequence": None if each.ordinal is None else each.opened_at,
            "assumed": each.ordinal is None,
            "archived_at": each.archived_at or each.at,
        }


def watermark_rows(history: BlockHistory) -> Iterator[Row]:
    """Yield the block's watermarks as the table holds them, instants in microseconds."""
    for number, each in enumerate(history.marks, start=1):
        yield {
            "region": "eu-west",
            "site": history.site,
            "block": history.block,
            "incarnation": f"1-{each.incarnation}",
            "observed_since": each.since,
            "observed_through": each.through,
            "advisory_ordinal": each.ordinal,
            "rebuilt_at": each.rebuilt_at or None,
            "store_began_at": each.store or None,
            "archived_at": each.archived_at or each.through,
            "hub_sequence": number,
        }


def draw_windows(draw: random.Random, blocks: list[BlockHistory], start: int, end: int) -> Iterator[Window]:
    """Draw maintenance: of the region, of sites and blocks, of some senders; some at the borders of hours and days."""
    for _ in range(draw.randrange(1, 7)):
        of = draw.choice(blocks)
        site, block = draw.choice((("", ""), (of.site, ""), (of.site, of.block)))
        known = sorted({each.sender_id for each in of.said})
        names = tuple(sorted(draw.sample(known, draw.randrange(1, len(known) + 1)))) if known else ()
        began = draw.randrange(start - DAY, end + DAY)
        began -= draw.choice((0, began % HOUR, began % DAY))
        length = draw.choice((1, draw.randrange(1, 3 * HOUR), HOUR, draw.randrange(1, 3 * DAY), DAY))
        yield Window("eu-west", site, block, names if draw.random() < 0.6 else (), began, began + length)


def policy_rows(draw: random.Random, blocks: list[BlockHistory], start: int, end: int) -> Iterator[Row]:
    """Draw maintenance that is declared before it or long after, and perhaps cancelled, as the table holds it."""
    revision = 0
    for window in draw_windows(draw, blocks, start, end):
        revision += 1
        given_at = draw.randrange(start, end)
        common = {"stream_created_at": 1, "region": window.region, "site": window.site or None}
        common["block"] = window.block or None
        span = {"started_at": window.started_at, "ended_at": window.ended_at}
        senders = list(window.sender_ids) or None
        yield common | span | {
            "revision": revision, "kind": "maintenance", "given_at": given_at, "sender_ids": senders
        }  # fmt: skip
        if draw.random() < 0.4:
            yield common | {
                "revision": revision + 1,
                "kind": "cancel",
                "given_at": draw.randrange(given_at, end + DAY),
                "cancelled_revision": revision,
            }
            revision += 1


def standing_windows(rows: Iterable[Row]) -> Iterator[Window]:
    """Yield the maintenance that rows of the policy declare and do not cancel."""
    rows = list(rows)
    cancelled = {row.get("cancelled_revision") for row in rows}
    for row in rows:
        if row["kind"] == "maintenance" and row["revision"] not in cancelled:
            names = tuple(row["sender_ids"] or ())
            scope = row["region"], row["site"] or "", row["block"] or ""
            yield Window(*scope, names, row["started_at"], row["ended_at"])

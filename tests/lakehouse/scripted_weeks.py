"""What blocks say in the week that an archive begins with: outages of known lengths, hour after hour watched."""

from collections.abc import Iterator, Sequence

from aggregator.lakehouse.tables.schemas import ADVISORIES, WATERMARKS, Table
from shared.instants import DAY, HOUR, MINUTE
from tests.lakehouse.scripted_archive import START, Row


def maintenance(revision: int, sender_ids: tuple[str, ...] | None, hours: tuple[int, int]) -> Row:
    """Declare maintenance of a block, or of some of its senders, from one hour of the week to another."""
    began, ended = (START + hour * HOUR for hour in hours)
    scope = {"stream_created_at": 1, "region": "eu", "site": "site3", "block": "nodes"}
    what = {"revision": revision, "kind": "maintenance", "given_at": START, "sender_ids": sender_ids}
    return {**scope, **what, "started_at": began, "ended_at": ended}


def across_a_months_end() -> Iterator[tuple[Table, Row]]:
    """Give a sender that is down until the month's last hour, and again 40 minutes later, in the next month."""
    said = [(START, "new", "edge", START)]
    for down, back in ((1350, 1420), (1460, 1490)):
        seen_at = START + DAY + down * MINUTE
        said.append((seen_at + 12 * MINUTE, "stale", "edge", seen_at))
        said.append((START + DAY + back * MINUTE, "recovered", "edge", seen_at))
    yield from reported("site3", "edge", said)


def week_of(site: str, senders: int = 20) -> Iterator[tuple[Table, Row]]:
    """Give a week of a site: senders that fail once a day, and one that failed on one day."""
    said = [(START, "new", f"{site}-{number}", START) for number in range(senders)] + [
        (START, "new", f"{site}-late", START)
    ]
    for day in range(7):
        for number in range(senders):
            down = START + day * DAY + (number + 1) * HOUR
            sender = f"{site}-{number}"
            said += [(down + 12 * MINUTE, "stale", sender, down), (down + 20 * MINUTE, "recovered", sender, down)]
    down = START + 2 * DAY + 10 * HOUR
    said += [(down + 12 * MINUTE, "stale", f"{site}-late", down), (down + HOUR, "recovered", f"{site}-late", down)]
    yield from reported(site, "nodes", said)


def reported(site: str, name: str, said: Sequence[tuple[int, str, str, int]]) -> Iterator[tuple[Table, Row]]:
    """Give what a block reports of what it ``said``, and of a week that it watches from end to end."""
    block = {"region": "eu", "site": site, "block": name, "incarnation": "1-1", "rebuilt": False, "assumed": False}
    for ordinal, (at, kind, sender_id, seen_at) in enumerate(sorted(said), start=1):
        event = {"sender_id": sender_id, "kind": kind, "occurred_at": at, "last_seen_at": seen_at, "ordinal": ordinal}
        yield ADVISORIES, block | event | {"event_id": f"{site}-{name}-{ordinal}"}
    for hour in range(1, 7 * 24):
        at = START + hour * HOUR
        mark = {
            "observed_since": START,
            "observed_through": at,
            "advisory_ordinal": sum(each[0] <= at for each in said),
        }
        yield WATERMARKS, block | mark

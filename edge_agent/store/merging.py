"""Decide which unsent watermarks the next one of their block makes superfluous: what waits does not grow with time.

Two merge that vouch for one coverage, where nothing of their block lies between. What lies there of others keeps the
block's first in its place: behind a lane that never becomes empty, one that moved to the end each time would never
leave. What may be in flight stays as it is.
"""

import msgspec

from edge_agent.core.records import OutboxRow


class LastWatermark(msgspec.Struct, frozen=True):
    """A block's last record but registrations: the next watermark of its coverage may replace it while it is unsent.

    ``behind`` is the row of an earlier one of the coverage that keeps its place, 0 where none does.
    """

    row_id: int
    since: int
    size: int
    behind: int


def merged(
    rows: list[OutboxRow], last_watermarks: dict[str, LastWatermark], end: int, unsent_after: int
) -> tuple[list[OutboxRow], dict[int, int]]:
    """Give those of a lane's new rows that remain, and the superfluous ones before them: sizes in bytes by row id.

    ``last_watermarks``, by block, follow the new rows. ``end`` is the lane's last row before them; rows up to
    ``unsent_after`` may be in flight.
    """
    superfluous: dict[int, int] = {}
    for row in rows:
        last = last_watermarks.pop(row.block, None)
        if since := row.watermark_since:
            behind = 0
            if last and last.since == since and last.row_id > unsent_after:
                behind = last.row_id
                if last.row_id == end or last.behind > unsent_after:
                    behind, superfluous[last.row_id] = last.behind, last.size
            last_watermarks[row.block] = LastWatermark(row.row_id, since, row.size, behind)
        end = row.row_id
    kept = [row for row in rows if superfluous.pop(row.row_id, None) is None] if superfluous else rows
    return kept, superfluous

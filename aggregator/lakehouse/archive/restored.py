"""Find out whether the archive still holds what was read: one restored from an older copy goes on with other messages.

It keeps its name, its creation and soon more sequences than were read, but what it takes after the restore it stores
later than anything that was read. So the time of the message at a position tells one past from the other.
"""

from collections.abc import Collection

from aggregator.archive.reader import StreamReader
from aggregator.lakehouse.archive.reading_plan import RESTORED_REMEDY, Refused, Span
from aggregator.lakehouse.tables.position import HubPosition
from shared.instants import format_instant


async def check_past(reader: StreamReader, positions: Collection[HubPosition]) -> None:
    """Raise Refused where the archive holds, at or before a position, what was stored after all that had been read.

    A position whose messages are all gone from the archive proves nothing, and passes. Raise ReadFailed.
    """
    for position in set(positions):
        last = await _last_through(reader, position)
        if last is None:
            continue
        sequence, stored_at = last
        if stored_at > position.known_through:
            other = Span(await _first_later(reader, position, sequence), position.sequence)
            raise Refused(
                f"{position.stream} holds other messages at {other} than those that were read: it was restored from an"
                f" older copy and has grown since (what was read ends at {format_instant(position.known_through)},"
                f" {sequence} was stored at {format_instant(stored_at)}); {RESTORED_REMEDY}"
            )


async def _last_through(reader: StreamReader, position: HubPosition) -> tuple[int, int] | None:
    """Give sequence and time of the last message at or before the position, None where there is none."""
    found = await reader.at_or_after(position.stream, position.sequence) if position.sequence else None
    if found is not None and found[0] == position.sequence:
        return found
    last, first, beyond = None, 1, position.sequence
    while first < beyond:
        middle = (first + beyond) // 2
        found = await reader.at_or_after(position.stream, middle)
        if found is None or found[0] >= position.sequence:
            beyond = middle
        else:
            last, first = found, found[0] + 1
    return last


async def _first_later(reader: StreamReader, position: HubPosition, last: int) -> int:
    """Give the first sequence whose message was stored after what was read; that of ``last`` was."""
    first = 1
    while first < last:
        middle = (first + last) // 2
        found = await reader.at_or_after(position.stream, middle)
        if found is None or found[1] > position.known_through:
            last = middle
        else:
            first = found[0] + 1
    return last

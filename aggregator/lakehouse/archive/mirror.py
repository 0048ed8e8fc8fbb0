"""Find out whether a mirror of the archive has the archive's past: it may hold what the archive was before.

Where the archive is created again, or restored from an older copy, and the mirror is not, the mirror waits until the
archive has grown past it, and then goes on with what comes: no state of either stream tells any more, but below that
they hold different messages. A mirror keeps the times at which its origin stored messages, so those are compared.

Where the two pasts meet, the mirror has a gap in time, for the archive was away and grew again meanwhile; the last
message before the gap is of the other past. So of all that is read of a mirror the messages before the longest gaps are
compared, beside the first and the last one: a few requests, however much is read.
"""

import asyncio
import heapq
from contextlib import aclosing
from typing import NamedTuple

import msgspec
import numpy as np

from aggregator.archive.consumer import Messages
from aggregator.archive.reader import ReadFailed, StreamContents, StreamReader
from shared.instants import format_instant

GAPS = 16
"""So many are looked at: a hub that has little to store has gaps of other causes, such as links that were cut."""


class _Gap(NamedTuple):
    length: int
    sequence: int
    stored_at: int


class Witnesses:
    """The messages of a mirror that would tell of another past, chosen while it is read in order."""

    def __init__(self) -> None:
        self._first = self._last = (0, 0)
        self._gaps: list[_Gap] = []

    def see(self, messages: Messages) -> None:
        """Take notice of the next messages."""
        sequences, times = messages.sequences, messages.archived_at
        if self._last[0]:
            sequences = np.concatenate(([self._last[0]], sequences))
            times = np.concatenate(([self._last[1]], times))
        else:
            self._first = int(sequences[0]), int(times[0])
        self._last = int(sequences[-1]), int(times[-1])
        lengths = np.diff(times)
        count = min(GAPS, len(lengths))
        longest = np.argpartition(lengths, -count)[-count:] if count else lengths
        found = (_Gap(int(lengths[at]), int(sequences[at]), int(times[at])) for at in longest)
        self._gaps = heapq.nlargest(GAPS, [*self._gaps, *found])

    def chosen(self) -> dict[int, int]:
        """Give the times (microseconds) of the chosen messages, by sequence."""
        before_gaps = ((gap.sequence, gap.stored_at) for gap in self._gaps)
        return dict(sorted({self._first, self._last, *before_gaps} - {(0, 0)}))


async def check_witnesses(reader: StreamReader, mirror: str, archive: str, witnesses: Witnesses) -> None:
    """Raise ReadFailed where ``archive`` holds another message at one of the sequences, or gives no answer.

    What the archive has let go proves nothing, and passes: a mirror may keep more.
    """
    chosen = witnesses.chosen()
    found = await asyncio.gather(*(reader.at_or_after(archive, sequence) for sequence in chosen))
    for (sequence, stored_at), held in zip(chosen.items(), found, strict=True):
        if held is not None and held[0] == sequence and held[1] != stored_at:
            raise ReadFailed(
                f"{mirror} and {archive} hold different messages at {sequence}, stored at {format_instant(stored_at)}"
                f" and at {format_instant(held[1])}: {another_past(mirror, archive)}"
            )


def another_past(mirror: str, archive: str) -> str:
    """Say what happened to the archive of ``mirror``, and what helps."""
    return (
        f"{archive} was created again or restored from an older copy, and {mirror} holds what it was before; restore"
        f" that {archive}, or delete {mirror} and have muster-aggregator apply make it again"
    )


async def in_one_piece(
    reader: StreamReader, report: StreamContents, archive: StreamContents, done: int
) -> StreamContents:
    """Give ``report`` as what it holds from behind ``done`` to the first hole that ``archive`` does not fill.

    A report with holes is read for it, as far as it alone holds anything that is still to be read. Raise ReadFailed.
    """
    kept_from = archive.first_kept
    first = max(done + 1, report.first_kept)
    if first >= kept_from or not report.has_holes:
        return report
    found = await reader.at_or_after(report.name, first)
    begin = following = report.last_sequence + 1 if found is None else found[0]
    async with aclosing(reader.read(report.name, begin, kept_from - 1)) as batches:
        async for messages in batches:
            # Behind a hole a sequence is ahead of its place.
            places = np.arange(following, following + len(messages.sequences))
            whole = int(np.count_nonzero(messages.sequences == places))
            following += whole
            if whole < len(places):
                break
    last = report.last_sequence if following >= kept_from else following - 1
    return msgspec.structs.replace(report, first_sequence=begin, last_sequence=last)

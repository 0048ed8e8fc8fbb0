"""Find out what of the report can be read in one piece: a mirror that was away for long has a hole.

When it comes back, the server passes over what the archive has let go meanwhile. What lies before such a hole is to be
read first; then the hole is what is lost, like all else that no stream holds any more.
"""

from contextlib import aclosing

import msgspec
import numpy as np

from aggregator.lakehouse.archive.reader import StreamReader, StreamState


async def in_one_piece(reader: StreamReader, report: StreamState, archive: StreamState, done: int) -> StreamState:
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

"""Look through all of a block's advisories, and read only where counting does not tell which they are.

Ordinals ascend by one, so of a stretch between two advisories of one life it is enough to know both and how many lie
between. Where that does not fit, as around a hole, or where some came twice, or another life began, the stretch is
halved, until it is short enough to be read. Only as many that came twice in one stretch as are lacking there would hide
that.
"""

from typing import NamedTuple

from nats.aio.client import Client

from aggregator.topology.model import StreamKey
from aggregator.topology.observed.messages import Stored, count_messages, get_message, read_some
from aggregator.topology.report.ordinals import Life, advisories_of, advisory_in

_READ_AT_ONCE = 500


class _Mark(NamedTuple):
    """A sequence of the archive: how many are there or behind, and the life and ordinal of the first of them."""

    position: int
    left: int
    incarnation: str
    ordinal: int


async def held_ordinals(client: Client, archive: StreamKey, life: Life, read_at_once: int = _READ_AT_ONCE) -> set[int]:
    """Give the ordinals of one life of a block that the archive holds; raise RequestFailed, ApiError."""
    block, incarnation = life
    subject = advisories_of(block)
    last = await get_message(client, archive, {"last_by_subj": subject})
    if last is None:
        return set()
    end = _mark(last, last.seq + 1, await count_messages(client, archive, subject, last.seq + 1))
    held: set[int] = set()
    stretches = [(await _found_mark(client, archive, subject, 1), end._replace(ordinal=end.ordinal + 1))]
    while stretches:
        low, high = stretches.pop()
        count = low.left - high.left
        is_one_life = low.incarnation and low.incarnation == high.incarnation
        if count > 0 and is_one_life and high.ordinal - low.ordinal == count:
            held.update(range(low.ordinal, high.ordinal) if low.incarnation == incarnation else ())
        elif 0 < count <= read_at_once or (count > 0 and high.position - low.position <= 1):
            async for message in read_some(client, archive, subject, low.position, count):
                advisory = advisory_in(message.body)
                if advisory is not None and advisory.incarnation == incarnation:
                    held.add(advisory.ordinal)
        elif count > 0:
            middle = await _found_mark(client, archive, subject, (low.position + high.position) // 2)
            stretches += [(low, middle), (middle, high)]
    return held


async def _found_mark(client: Client, archive: StreamKey, subject: str, position: int) -> _Mark:
    left = await count_messages(client, archive, subject, position)
    return _mark(await get_message(client, archive, {"seq": position, "next_by_subj": subject}), position, left)


def _mark(message: Stored | None, position: int, left: int) -> _Mark:
    advisory = advisory_in(message.data) if message is not None else None
    return _Mark(position, left, advisory.incarnation if advisory else "", advisory.ordinal if advisory else 0)

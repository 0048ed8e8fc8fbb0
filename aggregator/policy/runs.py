"""Tell who has taken which revision, by each block's last watermark in the hub's archive."""

from typing import NamedTuple

import msgspec
from nats.aio.client import Client

from aggregator.policy.book import Book
from aggregator.topology.desired.model import StreamKey
from aggregator.topology.report.evidence import last_watermarks
from shared import wire
from shared.identifiers import BlockId
from shared.instants import format_duration


class Run(NamedTuple):
    """How a block stands to the policy. ``last_revision`` is the last revision that is for it, 0 where none is.

    ``remark`` says what a person should look at, "" where nothing is.
    """

    block_id: BlockId
    taken: int
    last_revision: int
    seen_at: int
    remark: str


async def runs(client: Client, archive: StreamKey, book: Book, most: int) -> list[Run]:
    """List the state of each block that ever had a watermark, of ``most`` of a site; raise RequestFailed, ApiError."""
    watermarks = (await last_watermarks(client, archive, most)).words
    return [_run(block_id, watermark, book) for block_id, watermark in sorted(watermarks.items())]


def _run(block_id: BlockId, watermark: wire.Watermark, book: Book) -> Run:
    addressed, taken = book.revisions_for(block_id), watermark.policy_revision
    last = addressed[-1].revision if addressed else 0
    waits = [each for each in addressed if each.revision > taken]
    if waits:
        remark = f"{len(waits)} not taken yet"
    elif taken > last:
        remark = "has taken a revision that is not here: was the hub's stream made anew?"
    else:
        remark = _refused(block_id, watermark, book)
    remarks = "; ".join(filter(None, (remark, _strangers(watermark))))
    return Run(block_id, taken, last, watermark.observed_through_us, remarks)


def _refused(block_id: BlockId, watermark: wire.Watermark, book: Book) -> str:
    wanted = book.wanted_of(block_id).given
    runs = msgspec.structs.asdict(watermark)
    other = [name for name, value in wanted.items() if name in runs and runs[name] != value]
    held = ", ".join(f"{name} {format_duration(runs[name])}" for name in other)
    return f"refused by its settings, runs {held}: muster-agent status there says why" if other else ""


def _strangers(watermark: wire.Watermark) -> str:
    """Say that orders named senders that the block does not know: mistyped, or of another block of the site."""
    count = watermark.counters.get("policy", {}).get("unknown_sender", 0)
    return f"{count} named a sender that it did not know" if count else ""

"""Commit batch after batch, for ever: ``mortal_committer.py <store>``. Whoever started it kills it.

What batch N holds follows from N alone, so that a test knows what must be in the file. After each commit its number is
printed; every few batches, the records of all earlier ones are acknowledged.
"""

import asyncio
import random
import sys
from pathlib import Path

from edge_agent.core.decisions import Clamped
from edge_agent.core.records import Lane
from edge_agent.core.senders import SenderPhase, SenderState
from edge_agent.store.port import BatchCommit
from tests.support.store.store_batches import ALL_ROWS, BLOCK, advisory, batch, copy, opened, registration, sender

SENDERS = 40
ACKNOWLEDGED_EVERY = 5


def numbered_batch(number: int) -> BatchCommit:
    """Give batch ``number``: a few senders heard, stale or retired, records of each lane, one recorded input."""
    chance = random.Random(number)
    slots = chance.sample(range(SENDERS), 6)
    heard = [sender(slot, seen_at=number) for slot in slots[:3]]
    stale = [sender(slot, seen_at=number, phase=SenderPhase.STALE) for slot in slots[3:5]]
    retired = [sender(slots[5])]
    rows = [
        *(advisory(f"{number}.{part}") for part in range(chance.randint(1, 5))),
        *(registration("", f"{number}.{part}", size=chance.randint(1, 9_000)) for part in range(3)),
        *(copy(f"{number}.{part}") for part in range(chance.randint(0, 3))),
    ]
    return batch(number, rows, heard=heard, stale=stale, retired=retired, recorded=[Clamped(number, number)])


def senders_after(number: int) -> dict[str, SenderState]:
    """Give the senders that are known when the first ``number`` batches are in."""
    known: dict[str, SenderState] = {}
    for each in range(1, number + 1):
        changes = numbered_batch(each).changes
        known |= {state.sender_id: state for state in (*changes.heard, *changes.stale)}
        for state in changes.retired:
            known.pop(state.sender_id, None)
    return known


async def commit_for_ever(path: Path) -> None:
    """Go on behind the last batch that the file holds."""
    async with opened(path) as store:
        known = await store.load_block(BLOCK)
        number = known[0].position.sequence if known else 0
        while True:
            if number % ACKNOWLEDGED_EVERY == 0:
                for lane in Lane:
                    rows = await store.pending(lane, 0, ALL_ROWS)
                    if rows:
                        store.delete_through(lane, rows[-1].row_id)
            number += 1
            await store.commit(numbered_batch(number))
            print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(commit_for_ever(Path(sys.argv[1])))

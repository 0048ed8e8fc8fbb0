"""Build what a store is given, and open stores: batches of one block, with rows, senders and recorded inputs."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import RecordedInput
from edge_agent.core.policy import Policy
from edge_agent.core.records import Lane, OutboxRow
from edge_agent.core.senders import SenderChanges, SenderPhase, SenderState
from edge_agent.store.files import prepare
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.instants import HOUR, MINUTE, SECOND

BLOCK_ID = BlockId("eu-west", "dub1", "nodes")
BLOCK = BLOCK_ID.block
INCARNATION = Incarnation(1_700_000_000_000_000, 1_700_000_000_123)
POLICY = Policy(sample_interval=HOUR, stale_after=12 * MINUTE, retire_after=24 * HOUR, blind_after=3 * MINUTE)
ALL_ROWS = 1 << 30
ROOM = 1 << 30


@asynccontextmanager
async def opened(path: Path, max_outbox: int = ROOM) -> AsyncIterator[SqliteStore]:
    """Open a store as the agent does, and close it."""
    prepare(path)
    store = await SqliteStore.open(path, max_outbox)
    try:
        yield store
    finally:
        await store.close()


async def die(store: SqliteStore) -> None:
    """Let go of the file without writing anything more, as a process does that is killed."""
    store._flusher.cancel()
    await store._database.close()


def batch(
    sequence: int,
    rows: Sequence[OutboxRow] = (),
    *,
    heard: Sequence[SenderState] = (),
    stale: Sequence[SenderState] = (),
    retired: Sequence[SenderState] = (),
    recorded: Sequence[RecordedInput] = (),
    block_id: BlockId = BLOCK_ID,
    is_behind: bool = False,
) -> BatchCommit:
    """Make a batch that takes the block to ``sequence``."""
    changes = SenderChanges(list(heard), list(stale), list(retired))
    return BatchCommit(block_id, state_at(sequence), changes, rows, recorded, is_behind=is_behind)


def state_at(sequence: int) -> BlockState:
    """Give a block's state in which everything depends on how far it was read."""
    return BlockState(
        position=SourcePosition("REGISTRATION", INCARNATION, sequence, stored_at=sequence * SECOND),
        policy=POLICY,
        observed_since=1,
        observed_through=sequence * SECOND,
        source_clock=sequence * SECOND + 1,
        examined_sequence=sequence,
        advisory_ordinal=sequence,
        counters={"valid": {"registrations": sequence}},
    )


def sender(slot: int, *, phase: SenderPhase = SenderPhase.HEARD, seen_at: int = 1, digest: int = 0) -> SenderState:
    """Give a sender with a place in the table."""
    return SenderState(
        sender_id=f"node{slot:05}.example.net",
        slot=slot,
        phase=phase,
        last_seen_at=seen_at,
        last_sequence=seen_at,
        opening_incarnation=INCARNATION,
        opening_sequence=slot + 1,
        forwarded_digest=digest,
    )


def advisory(text: str, block: str = BLOCK, size: int = 0) -> OutboxRow:
    """Make an advisory's row; ``size`` pads its payload."""
    payload = text.encode().ljust(size)
    return OutboxRow(Lane.ADVISORIES, block, "fleet.eu-west.dub1.nodes.advisory.new", {"Nats-Msg-Id": text}, payload)


def registration(sender_id: str, text: str, block: str = BLOCK, size: int = 0) -> OutboxRow:
    """Make a registration's row; without a ``sender_id`` no other replaces it."""
    subject = "fleet.eu-west.dub1.nodes.registration"
    payload = text.encode().ljust(size)
    return OutboxRow(Lane.REGISTRATIONS, block, subject, {"Nats-Msg-Id": text}, payload, sender_id)


def copy(text: str, block: str = BLOCK, size: int = 0, site: str = BLOCK_ID.site) -> OutboxRow:
    """Make a copy's row, on a subject of its block."""
    payload = text.encode().ljust(size)
    return OutboxRow(Lane.COPIES, block, f"fleet.eu-west.{site}.{block}.copy.reg", {"Nats-Msg-Id": text}, payload)


def watermark(text: str, since: int = 1, block: str = BLOCK) -> OutboxRow:
    """Make a watermark's row of the coverage that began at ``since``."""
    subject = "fleet.eu-west.dub1.nodes.watermark"
    return OutboxRow(Lane.ADVISORIES, block, subject, {"Nats-Msg-Id": text}, text.encode(), watermark_since=since)


async def waiting(store: SqliteStore, lane: Lane) -> list[str]:
    """Give what waits in a lane, by the words it was made with, and leave it as unsent as it was."""
    in_flight = store._index.in_flight_through[lane]
    rows = await store.pending(lane, 0, ALL_ROWS)
    store._index.in_flight_through[lane] = in_flight
    return [row.payload.decode().strip() for row in rows]


async def fill(path: Path) -> None:
    """Make a store of some hundred pages."""
    async with opened(path) as store:
        rows = [registration("", "r", size=9_000)] * 50
        await store.commit(batch(1, rows, heard=[sender(slot) for slot in range(500)]))


async def read_wholly(path: Path) -> None:
    """Read all of a store that an agent would."""
    async with opened(path) as store:
        await store.block_states()
        await store.load_block(BLOCK)
        await store.pending(Lane.REGISTRATIONS, 0, 1_000)

"""Stream blocks in the store, and the instants at which their senders' deadlines fall due."""

import sqlite3
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState, decode_block_state
from edge_agent.ingest.block import IngestPhase
from edge_agent.observability.health import is_stalled
from edge_agent.observability.status_report import read_phases, read_progress
from edge_agent.store.read_only import StoreUnreadable, store_reader
from edge_agent.store.senders import slot_range
from shared.identifiers import BlockId, Incarnation
from shared.instants import SECOND

BLOCKS = "SELECT number, name, region, site, state FROM block"
WATERMARK_SLACK = 60 * SECOND


class KnownBlock(msgspec.Struct, frozen=True):
    """One stream block as committed; ``is_read`` while a running agent reads its stream, and time passes there."""

    number: int
    block_id: BlockId
    state: BlockState
    is_read: bool

    @property
    def row_ids(self) -> tuple[int, int]:
        """The first and the last row id of its senders."""
        return slot_range(self.number)

    @property
    def watches(self) -> bool:
        """True if its senders are watched: a relay only remembers those that it has heard."""
        return self.state.mode == "sample"

    def is_watched(self, at: int) -> bool:
        """Return True if the stream is observed up to ``at``, by the store.

        An advance of time alone is committed only with the next watermark.
        """
        state = self.state
        is_recent = at - state.observed_through <= state.policy.blind_after + WATERMARK_SLACK
        return (
            self.watches and self.is_read and state.pending_blind is None and state.observed_through > 0 and is_recent
        )

    def stale_at(self, last_seen_at: int) -> int:
        """Return when a sender that is not heard again falls stale, if the stream is watched until then."""
        state = self.state
        return state.policy.stale_at(last_seen_at, state.observed_since, state.policy_at)

    def retired_at(self, stale_observed_at: int) -> int:
        """Return when a stale sender that is not heard again is retired, if the stream is watched until then."""
        state = self.state
        return state.policy.retired_at(stale_observed_at, state.blind_total, state.observed_since, state.policy_at)

    def forgotten_at(self, last_seen_at: int) -> int:
        return last_seen_at + self.state.policy.retire_after

    def forwarded_again_at(self, sender_id: str, last_forwarded_at: int, is_first_interval: bool) -> int:
        """Return when the sender's interval has passed, so that its next sighting is forwarded."""
        return last_forwarded_at + self.state.policy.interval_of(sender_id, is_first=is_first_interval)


def read_blocks(database: sqlite3.Connection, name: str = "") -> dict[int, KnownBlock]:
    """Read the blocks by number, or the one that is named; raise StoreUnreadable where there is none."""
    phases = read_phases(database)
    known = {
        number: KnownBlock(
            number,
            BlockId(region, site, block),
            decode_block_state(state),
            is_read=phases.get(f"stream {block}") == IngestPhase.READING and not _is_stalled(database, block),
        )
        for number, block, region, site, state in database.execute(BLOCKS).fetchall()
    }
    chosen = {number: block for number, block in known.items() if name in ("", block.block_id.block)}
    if not known:
        raise StoreUnreadable("the agent has not read from any stream yet")
    if not chosen:
        names = ", ".join(sorted(block.block_id.block for block in known.values()))
        raise StoreUnreadable(f"there is no stream {name}; the store knows {names}")
    return chosen


def known_block(path: Path, name: str) -> KnownBlock | None:
    """Read one block of the store at ``path``; None where nothing is to be read of it."""
    try:
        with store_reader(path) as database:
            return read_blocks(database, name).popitem()[1]
    except StoreUnreadable:
        return None


def _is_stalled(database: sqlite3.Connection, block: str) -> bool:
    progress = read_progress(database, block)
    return progress is not None and bool(is_stalled(progress) or progress.contradiction)


def read_incarnations(database: sqlite3.Connection) -> dict[int, Incarnation]:
    rows = database.execute("SELECT number, created_at, epoch_ms FROM incarnation")
    return {number: Incarnation(created_at, epoch_ms) for number, created_at, epoch_ms in rows}

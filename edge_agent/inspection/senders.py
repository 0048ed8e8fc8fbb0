"""List of senders: heard, stale, and their deadlines. One pass over a million takes a second."""

import sqlite3
from collections.abc import Collection, Iterator
from typing import Any

import msgspec

from edge_agent.core.senders import SenderPhase
from edge_agent.inspection.blocks import KnownBlock, read_blocks
from edge_agent.inspection.moments import relative, rough
from edge_agent.store.port import EVERYTHING
from shared.command_line.tables import TableColumn, format_table

COUNT_SENDERS = """
SELECT COUNT(*), COALESCE(SUM(phase), 0), COALESCE(SUM(
  phase BETWEEN :lowest AND :highest AND last_seen_at >= :since AND last_seen_at < :before AND sender_id GLOB :glob
), 0)
FROM sender WHERE row_id BETWEEN :first AND :last
"""
SENDERS = """
SELECT row_id, sender_id, phase, last_seen_at, last_sequence, last_forwarded_at, opening_sequence, stale_observed_at
FROM sender WHERE row_id BETWEEN :first AND :last
  AND phase BETWEEN :lowest AND :highest AND last_seen_at >= :since AND last_seen_at < :before AND sender_id GLOB :glob
ORDER BY last_seen_at * :direction, sender_id LIMIT :limit
"""
NO_LIMIT = -1


class SenderFilter(msgspec.Struct, frozen=True):
    """Filter of senders, of one stream or of all (""): ``seen_since <= last_seen_at < not_seen_since``."""

    stream: str = ""
    phase: SenderPhase | None = None
    glob: str = "*"
    seen_since: int = 0
    not_seen_since: int = EVERYTHING

    def parameters(self, blocks: Collection[KnownBlock]) -> dict[str, int | str]:
        return {
            "first": min(block.row_ids[0] for block in blocks),
            "last": max(block.row_ids[1] for block in blocks),
            "lowest": min(SenderPhase) if self.phase is None else self.phase,
            "highest": max(SenderPhase) if self.phase is None else self.phase,
            "since": self.seen_since,
            "before": self.not_seen_since,
            "glob": self.glob,
        }


class SenderLine(msgspec.Struct, frozen=True, gc=False):
    """One sender.

    ``due_at`` is when it falls stale, or is retired, if it is not heard and the stream is watched; 0 where nobody is.
    ``is_watched`` says whether the stream is now.
    """

    stream: str
    sender_id: str
    state: str
    last_seen_at: int
    last_sequence: int
    last_forwarded_at: int
    opening_sequence: int
    due_at: int
    is_watched: bool


class SenderListing(msgspec.Struct, frozen=True):
    """Result of ``senders``; also its JSON form. ``heard`` and ``stale`` count all, ``matching`` those that pass.

    ``unwatched`` names the streams that should be watched, and are not now.
    """

    heard: int
    stale: int
    matching: int
    unwatched: list[str]
    senders: list[SenderLine]


def list_senders(
    database: sqlite3.Connection, wanted: SenderFilter, *, limit: int, newest_first: bool, at: int
) -> SenderListing:
    """Read the senders that pass, ordered by when they were last seen; ``limit`` 0 reads all of them."""
    database.execute("BEGIN")
    blocks = read_blocks(database, wanted.stream)
    values = wanted.parameters(blocks.values())
    total, stale, matching = database.execute(COUNT_SENDERS, values).fetchone()
    order = {"direction": -1 if newest_first else 1, "limit": limit or NO_LIMIT}
    rows = database.execute(SENDERS, values | order).fetchall()
    watched = {number for number, block in blocks.items() if block.is_watched(at)}
    return SenderListing(
        heard=total - stale,
        stale=stale,
        matching=matching,
        unwatched=sorted(
            block.block_id.block for number, block in blocks.items() if block.watches and number not in watched
        ),
        senders=[_line(blocks[row[0] >> 32], row, is_watched=row[0] >> 32 in watched) for row in rows],
    )


def _line(block: KnownBlock, row: tuple[Any, ...], *, is_watched: bool) -> SenderLine:
    _, sender_id, phase, seen_at, sequence, forwarded_at, opening, stale_observed_at = row
    due_at = block.retired_at(stale_observed_at) if phase == SenderPhase.STALE else block.stale_at(seen_at)
    return SenderLine(
        stream=block.block_id.block,
        sender_id=sender_id,
        state=SenderPhase(phase).name.lower(),
        last_seen_at=seen_at,
        last_sequence=sequence,
        last_forwarded_at=forwarded_at,
        opening_sequence=opening,
        due_at=due_at if block.watches else 0,
        is_watched=is_watched,
    )


def render_senders(listed: SenderListing, at: int, width: int) -> str:
    return "\n".join(_lines(listed, at, width))


def _lines(listed: SenderListing, at: int, width: int) -> Iterator[str]:
    lines = listed.senders
    several = len({line.stream for line in lines}) > 1
    if lines:
        yield format_table(
            [
                TableColumn("sender", lambda line: line.sender_id),
                TableColumn("stream", lambda line: line.stream if several else ""),
                TableColumn("state", lambda line: line.state),
                TableColumn("last seen", lambda line: relative(line.last_seen_at, at), right=True),
                TableColumn("forwarded", lambda line: _ago(line.last_forwarded_at, at), right=True, spare=1),
                TableColumn("if not heard", lambda line: _fate(line, at)),
            ],
            lines,
            width,
        )
        yield ""
    shown = f", {len(lines):,} shown: see --limit" if len(lines) < listed.matching else ""
    counts = f"{listed.heard:,} heard, {listed.stale:,} stale in all"
    yield f"{listed.matching:,} of {listed.heard + listed.stale:,} senders match{shown}; {counts}"
    if listed.unwatched:
        names = ", ".join(listed.unwatched)
        yield f"Not watched now: {names}. No sender there falls stale or is retired before they are, for some time."


def _ago(at: int, to: int) -> str:
    return relative(at, to) if at else "never"


def _fate(line: SenderLine, at: int) -> str:
    if not line.due_at or not line.is_watched:
        return ""
    word = "stale" if line.state == "heard" else "retired"
    return f"{word} in {rough(line.due_at - at)}" if line.due_at > at else f"{word} now"

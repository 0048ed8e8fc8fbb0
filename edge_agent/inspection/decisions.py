"""Read the log of decisions, and print it: advisories, forwarded registrations, and the fate of each record."""

import sqlite3
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from edge_agent.core.records import Lane
from edge_agent.inspection.blocks import KnownBlock, read_blocks, read_incarnations
from edge_agent.inspection.moments import moment, rough
from edge_agent.store import decision_log
from edge_agent.store.marker import last_row_id
from edge_agent.store.read_only import store_reader
from edge_agent.store.schema import waits
from shared.command_line.tables import UNWRAPPED, cut, visible
from shared.identifiers import AdvisoryKind, Incarnation, advisory_event_id
from shared.wire import origin_header

FORWARDED = "forwarded"
EVERY_DECISION = (*(str(kind) for kind in AdvisoryKind), FORWARDED)

# The last rows of both logs together, newest first; only those are looked up in the outboxes.
LAST_DECISIONS = f"""
SELECT last.*,
  CASE lane WHEN 0 THEN {waits(Lane.ADVISORIES, "last.row_id")}
            ELSE {waits(Lane.REGISTRATIONS, "last.row_id")} END AS waits
FROM (
  SELECT row_id, 0 AS lane, block, sender_id, kind, '' AS reason, at, last_seen_at, incarnation, sequence,
    opening_incarnation, opening_sequence, ordinal, rebuilt, 0 AS size, '' AS fate
  FROM {decision_log.LOGGED_ADVISORIES}
  WHERE through > :after AND row_id > :after AND at >= :since AND sender_id GLOB :sender
    AND kind IN (SELECT value FROM json_each(:kinds)) AND block IN (SELECT value FROM json_each(:blocks))
  UNION ALL
  SELECT row_id, 1, block, sender_id, 'forwarded', reason, at, at, incarnation, sequence, 0, 0, 0, 0, size, fate
  FROM {decision_log.LOGGED_FORWARDS}
  WHERE through > :after AND row_id > :after AND at >= :since AND sender_id GLOB :sender
    AND 'forwarded' IN (SELECT value FROM json_each(:kinds)) AND block IN (SELECT value FROM json_each(:blocks))
  ORDER BY row_id DESC LIMIT :limit
) AS last
"""
NO_LIMIT = -1


class Fate(StrEnum):
    """The fate of a decision's record, in addition to the causes for which registrations are dropped."""

    WAITING = "waiting"
    ACKNOWLEDGED = "acknowledged"
    NEWER_SAMPLE = "newer_sample"


class LoggedDecision(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One decision; also its JSON form. Instants are microseconds, sizes bytes.

    ``decision`` is an advisory's kind, or ``forwarded`` for a ``reason``. ``record`` is waiting, acknowledged, or why
    it never left. An advisory is found at the hub by its ``event_id``, a registration by its ``origin``.
    """

    row_id: int
    stream: str
    sender_id: str
    decision: str
    at: int
    last_seen_at: int
    sequence: int
    record: str
    reason: str = ""
    size: int = 0
    ordinal: int = 0
    rebuilt: bool = False
    event_id: str = ""
    origin: str = ""


class DecisionFilter(msgspec.Struct, frozen=True):
    """Filter of decisions; ``after`` is a row id, ``sender`` a GLOB, ``stream`` "" for all."""

    stream: str = ""
    sender: str = "*"
    kinds: tuple[str, ...] = EVERY_DECISION
    since: int = 0
    after: int = 0


def last_decisions(database: sqlite3.Connection, wanted: DecisionFilter, limit: int) -> list[LoggedDecision]:
    """Read the last ``limit`` (0: all) decisions that pass, the oldest of them first."""
    blocks, incarnations = read_blocks(database, wanted.stream), read_incarnations(database)
    values = {
        "after": wanted.after,
        "since": wanted.since,
        "sender": wanted.sender,
        "kinds": msgspec.json.encode(wanted.kinds).decode(),
        "blocks": msgspec.json.encode(list(blocks)).decode(),
        "limit": limit or NO_LIMIT,
    }
    cursor = database.execute(LAST_DECISIONS, values)
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return [_decision(row, blocks[row["block"]], incarnations) for row in reversed(found)]


def _decision(row: dict[str, Any], block: KnownBlock, incarnations: dict[int, Incarnation]) -> LoggedDecision:
    is_advisory = row["lane"] == Lane.ADVISORIES
    return LoggedDecision(
        row_id=row["row_id"],
        stream=block.block_id.block,
        sender_id=row["sender_id"],
        decision=row["kind"],
        at=row["at"],
        last_seen_at=row["last_seen_at"],
        sequence=row["sequence"],
        record=row["fate"] or (Fate.WAITING if row["waits"] else Fate.ACKNOWLEDGED),
        reason=row["reason"],
        size=row["size"],
        ordinal=row["ordinal"],
        rebuilt=bool(row["rebuilt"]),
        event_id=_event_id(row, block, incarnations) if is_advisory else "",
        origin="" if is_advisory else _origin(row, block, incarnations),
    )


def _event_id(row: dict[str, Any], block: KnownBlock, incarnations: dict[int, Incarnation]) -> str:
    opening = incarnations[row["opening_incarnation"]], row["opening_sequence"]
    return advisory_event_id(block.block_id, opening, row["sender_id"], AdvisoryKind(row["kind"]), row["at"])


def _origin(row: dict[str, Any], block: KnownBlock, incarnations: dict[int, Incarnation]) -> str:
    return origin_header(block.block_id, incarnations[row["incarnation"]], row["sequence"])


POLL_INTERVAL = 0.5

_LINE = "{:20}  {:9}  {:12}  {:8}  {}"
_RECORDS = {Fate.WAITING: "waiting", Fate.ACKNOWLEDGED: "sent", Fate.NEWER_SAMPLE: "replaced"}

_BEFORE_NAME = len(_LINE.format("", "", "", "", ""))
_NARROWEST_NAME = 12

HEADING = _LINE.format("AT", "WHAT", "WHY", "RECORD", "SENDER")


def as_line(decided: LoggedDecision, width: int = UNWRAPPED) -> str:
    """Return the line of a decision; the sender's name comes last, cut if it is longer than a line of ``width``.

    >>> as_line(LoggedDecision(1, "nodes", "a.example.net", "stale", 720_000_000, 0, 5, "acknowledged"))
    '1970-01-01T00:12:00Z  stale      silent 12m    sent      a.example.net'
    """
    record = _RECORDS.get(Fate(decided.record), "") if decided.record in set(Fate) else "dropped"
    name = cut(visible(decided.sender_id), max(_NARROWEST_NAME, width - _BEFORE_NAME))
    return _LINE.format(moment(decided.at), decided.decision, _why(decided), record, name)


def _why(decided: LoggedDecision) -> str:
    if decided.decision == FORWARDED:
        return decided.reason
    if decided.decision == AdvisoryKind.NEW:
        return "rebuilt" if decided.rebuilt else "first heard"
    silence = rough(decided.at - decided.last_seen_at)
    return f"after {silence}" if decided.decision == AdvisoryKind.RECOVERED else f"silent {silence}"


def follow(path: Path, wanted: DecisionFilter, tell: Callable[[str], None]) -> Iterator[LoggedDecision]:
    """Yield matching decisions as they are made, indefinitely; ``tell`` is called when another store has begun."""
    while True:
        with store_reader(path) as database:
            # What is committed between the two looks would be shown now, and once more the next time.
            database.execute("BEGIN")
            newest = last_row_id(database)
            if newest < wanted.after:
                tell("the store was made anew")
                wanted = msgspec.structs.replace(wanted, after=0)
            found = last_decisions(database, wanted, limit=0) if newest > wanted.after else []
        yield from found
        wanted = msgspec.structs.replace(wanted, after=max(newest, wanted.after))
        time.sleep(POLL_INTERVAL)

"""Print the log of decisions, one line each, and go on with what is decided while one looks."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from edge_agent.inspection.decisions import FORWARDED, Decided, DecisionFilter, Fate, last_decisions, last_row_id
from edge_agent.inspection.moments import moment, rough
from edge_agent.store.read_only import reading
from shared.identifiers import AdvisoryKind
from shared.tables import visible

POLL_INTERVAL = 0.5

_LINE = "{:20}  {:9}  {:12}  {:8}  {}"
_RECORDS = {Fate.WAITING: "waiting", Fate.ACKNOWLEDGED: "sent", Fate.NEWER_SAMPLE: "replaced"}

HEADING = _LINE.format("AT", "WHAT", "WHY", "RECORD", "SENDER")


def as_line(decided: Decided) -> str:
    """Lay a decision out; the sender's name, however long, comes last.

    >>> as_line(Decided(1, "nodes", "a.example.net", "stale", 720_000_000, 0, 5, "acknowledged"))
    '1970-01-01T00:12:00Z  stale      silent 12m    sent      a.example.net'
    """
    record = _RECORDS.get(Fate(decided.record), "") if decided.record in set(Fate) else "dropped"
    return _LINE.format(moment(decided.at), decided.decision, _why(decided), record, visible(decided.sender_id))


def _why(decided: Decided) -> str:
    if decided.decision == FORWARDED:
        return decided.reason
    if decided.decision == AdvisoryKind.NEW:
        return "rebuilt" if decided.rebuilt else "first heard"
    silence = rough(decided.at - decided.last_seen_at)
    return f"after {silence}" if decided.decision == AdvisoryKind.RECOVERED else f"silent {silence}"


def follow(path: Path, wanted: DecisionFilter, tell: Callable[[str], None]) -> Iterator[Decided]:
    """Give every decision that passes as it is taken, for ever; ``tell`` hears that another store has begun."""
    while True:
        with reading(path) as database:
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

"""File of intervals in which senders were up, to be played again: a real history instead of a script.

CSV with a first line ``site,sender,up_from,up_to``, RFC 3339; an empty ``up_to`` never ends. So
``muster-aggregator sql --format csv`` writes it, out of imported history or out of Muster's own.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from edge_agent.simulator.fleet import FOREVER, Lifetime, Span
from edge_agent.simulator.random_outages import union
from shared.identifiers import InvalidIdentifier, validated_token
from shared.instants import InvalidInstant, parse_instant

_COLUMNS = ("site", "sender", "up_from", "up_to")

UpSpans = Mapping[str, Mapping[str, list[Span]]]
"""Of each site and sender when it was up, in microseconds since the Unix epoch, in order."""


class IntervalsUnreadable(Exception):
    """The file of intervals cannot be read. The text is one line: the file, the line and the fault."""


def read_intervals(path: Path) -> UpSpans:
    """Read the whole file; raise IntervalsUnreadable."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return _read(path, csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else "not CSV in UTF-8"
        raise IntervalsUnreadable(f"{path}: {reason}") from error


def lifetimes(up_spans: Mapping[str, list[Span]], started_at: int, duration: int) -> list[Lifetime]:
    """Return the senders that are up at any time of the history, which begins at ``started_at`` of the file.

    Before its first time up a sender does not exist yet; after its last it is down indefinitely, not gone.
    """
    found = []
    for sender, spans in sorted(up_spans.items()):
        cut = [(max(0, begin - started_at), end - started_at) for begin, end in spans]
        within = [(begin, end) for begin, end in cut if begin < min(end, duration)]
        if within:
            ends = [*(begin for begin, _ in within[1:]), FOREVER]
            outages = [(end, back) for (_, end), back in zip(within, ends, strict=True) if end < duration]
            found.append(Lifetime(sender_id=sender, rack=1, born_at=within[0][0], outages=outages))
    return found


def first_instant(up_spans: UpSpans) -> int:
    """Return when the first sender came up."""
    return min(spans[0][0] for senders in up_spans.values() for spans in senders.values())


def _read(path: Path, rows: "csv.DictReader[str]") -> UpSpans:
    if tuple(rows.fieldnames or ()) != _COLUMNS:
        raise IntervalsUnreadable(f"{path}: the first line must be {','.join(_COLUMNS)}")
    found: dict[str, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        try:
            site, sender, begin, end = _interval([row[name] or "" for name in _COLUMNS])
        except (InvalidIdentifier, InvalidInstant, ValueError) as error:
            raise IntervalsUnreadable(f"{path}, line {rows.line_num}: {error}") from error
        found[site][sender].append((begin, end))
    if not found:
        raise IntervalsUnreadable(f"{path}: nobody was ever up")
    return {site: {sender: union(spans) for sender, spans in of_site.items()} for site, of_site in found.items()}


def _interval(fields: Iterable[str]) -> tuple[str, str, int, int]:
    site, sender, up_from, up_to = fields
    begin, end = parse_instant(up_from), parse_instant(up_to) if up_to else FOREVER
    if not sender or end <= begin:
        raise ValueError("a sender needs a name, and an interval must end after it starts")
    return validated_token(site, "site"), sender, begin, end

"""Define the truth file: what a simulated fleet's senders really did, to hold Muster's figures against.

JSON lines, appended as things happen, so that a simulator that is killed leaves what happened until then:

- a ``header`` first, and again, with ``ended_at_us`` set, as the last line of an orderly end;
- an ``up`` line when a sender comes up (``up_to_us`` null), and the same line with ``up_to_us`` set when it goes down:
  of the lines of one sender and ``up_from_us`` the last one counts;
- a ``through`` mark from time to time: everything before its instant is in the file.

"Up" is what the sender does (it publishes on its interval), not what a server took from it. Nothing is read or
written here: readers hand in lines, writers take them.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from shared.decoding import Decoder, WireError

TRUTH_PROTOCOL: Final = "muster:truth:1"


class TruthError(ValueError):
    """A line is not one of a truth file."""


class TruthHeader(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="header"):
    """Say how the fleet was made. ``registration_interval`` and ``jitter`` are in microseconds.

    A sender that is up lets no more than ``registration_interval + jitter`` pass between two registrations.
    ``script`` is the text of the outage script. ``ended_at_us`` is null until the orderly end.
    """

    protocol: Literal["muster:truth:1"] = TRUTH_PROTOCOL
    seed: int
    registration_interval: int
    jitter: int
    started_at_us: int
    ended_at_us: int | None
    script: str


class UpInterval(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="up"):
    """Say that a sender was up in ``[up_from_us, up_to_us)``; null: still up at the end.

    ``gone`` is true where the sender never came back on purpose: it retired, or took another name.
    """

    site: str
    sender: str
    up_from_us: int
    up_to_us: int | None
    gone: bool = False


class TruthThrough(msgspec.Struct, frozen=True, kw_only=True, tag_field="record", tag="through"):
    """Vouch that everything before ``at_us`` has been written."""

    at_us: int


TruthLine = TruthHeader | UpInterval | TruthThrough
Span = tuple[int, int]

_encoder = msgspec.json.Encoder()
_truth_line: Decoder[TruthLine] = Decoder(TruthLine, "a line of a truth file")


class Truth:
    """What one truth file says, and what follows from it. All instants and durations are microseconds."""

    def __init__(self, header: TruthHeader, through: int, intervals: Iterable[UpInterval]) -> None:
        self.header = header
        self.through = through
        self._intervals: dict[tuple[str, str], list[UpInterval]] = {}
        for interval in sorted(intervals, key=lambda interval: interval.up_from_us):
            self._intervals.setdefault((interval.site, interval.sender), []).append(interval)

    @property
    def senders(self) -> list[tuple[str, str]]:
        """Give every (site, sender) that was ever up, in order."""
        return sorted(self._intervals)

    def intervals(self, site: str, sender: str) -> list[UpInterval]:
        """Give a sender's up intervals in the order of time, as they stand in the file; none for a stranger."""
        return self._intervals.get((site, sender), [])

    def up_spans(self, site: str, sender: str, started_at: int, ended_at: int) -> list[Span]:
        """Give the parts of ``[started_at, ended_at)`` in which the sender was up, in order, none of them empty.

        Nothing is known past ``through``: ``ended_at`` must not lie beyond it.
        """
        if ended_at > self.through:
            raise ValueError(f"the truth is known through {self.through} only, not {ended_at}")
        clipped = (
            (max(interval.up_from_us, started_at), min(ended_at if to is None else to, ended_at))
            for interval in self.intervals(site, sender)
            for to in (interval.up_to_us,)
        )
        return [span for span in clipped if span[0] < span[1]]

    def down_spans(self, site: str, sender: str, started_at: int, ended_at: int) -> list[Span]:
        """Give the rest of ``[started_at, ended_at)``, in order: before the first word and after the last too."""
        edges = [started_at]
        for span in self.up_spans(site, sender, started_at, ended_at):
            edges.extend(span)
        edges.append(ended_at)
        return [
            (down_from, down_to)
            for down_from, down_to in zip(edges[::2], edges[1::2], strict=True)
            if down_from < down_to
        ]


def encode_line(line: TruthLine) -> bytes:
    return _encoder.encode(line) + b"\n"


def read_truth(lines: Iterable[bytes | str]) -> Truth:
    """Read the lines of a truth file, whole or cut short; raise TruthError with the line's number.

    A last line that does not read was being written when the simulator was killed, and is passed over.
    """
    header: TruthHeader | None = None
    intervals: dict[tuple[str, str, int], UpInterval] = {}
    through = 0
    for line in _decode_lines(lines):
        if isinstance(line, TruthHeader):
            header = line
            through = max(through, line.started_at_us, line.ended_at_us or 0)
        elif header is None:
            raise TruthError("line 1: a truth file begins with its header")
        elif isinstance(line, TruthThrough):
            through = max(through, line.at_us)
        else:
            intervals[line.site, line.sender, line.up_from_us] = line
    if header is None:
        raise TruthError("line 1: there is no header, so this is not a truth file")
    return Truth(header, through, intervals.values())


def _decode_lines(lines: Iterable[bytes | str]) -> Iterator[TruthLine]:
    torn: TruthError | None = None
    for number, text in enumerate(lines, start=1):
        if torn is not None:
            raise torn
        try:
            yield _truth_line(text)
        except WireError as error:
            torn = TruthError(f"line {number}: {error}")

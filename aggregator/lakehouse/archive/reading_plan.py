"""Decide which sequences a run reads, or refuse with the remedy. Pure: what the tables stand for and what streams hold.

The report stream is a mirror of the archive: the same sequences in both. What neither holds any more is lost, and only
an operator may give it up. A mirror of what the archive was before it was created again or restored is refused as far
as states tell; messages that are read tell the rest (``mirror.py``).
"""

import re
from collections.abc import Collection

import msgspec

from aggregator.archive.reader import StreamContents
from aggregator.lakehouse.archive.mirror import another_past
from aggregator.lakehouse.tables.position import HubPosition
from shared.instants import format_instant

_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
RESTORED_REMEDY = (
    "restore the archive that was read, or set [lakehouse] path to a new directory and roll up from the start"
)
"""What helps where the archive has another past than the tables."""


class Refused(RuntimeError):
    """A run would make tables that cannot be trusted. The text is one line: what is wrong, and what to do."""


class Span(msgspec.Struct, frozen=True):
    """Sequences ``first`` to ``last``, both included; none where ``last`` lies before ``first``."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> "Span":
        """Read ``LO..HI``; raise ValueError for anything else."""
        match = _RANGE.fullmatch(text.strip())
        if match is None or int(match[1]) > int(match[2]):
            raise ValueError(f"not a range of sequences: {text!r}, write LO..HI, for example 1001..2000")
        return cls(int(match[1]), int(match[2]))

    @property
    def count(self) -> int:
        return max(0, self.last - self.first + 1)

    def __str__(self) -> str:
        return f"{self.first}..{self.last}"


class ReadingPlan(msgspec.Struct, frozen=True):
    """What to read, and what was lost before it."""

    wanted: Span
    lost: Span | None = None


def check_mirror(report: StreamContents, archive: StreamContents) -> None:
    """Raise Refused where the stream that is read is neither the archive nor a mirror of it: its numbers are others."""
    if archive.name not in (report.name, report.mirror_of):
        what = f"mirrors {report.mirror_of}" if report.mirror_of else "is a stream of its own"
        raise Refused(
            f"[lakehouse] report_stream: {report.name} is no mirror of {archive.name}, but {what}: name a mirror of it,"
            f" which muster-aggregator apply makes, or {archive.name} itself"
        )


def plan_reading(
    positions: Collection[HubPosition], archive: StreamContents, report: StreamContents, accepted: Span | None = None
) -> ReadingPlan:
    """Say what to read; raise Refused.

    ``positions`` are the bronze tables': none before the first run, which begins with what there is. ``report`` is
    without holes that ``archive`` does not fill (``mirror.in_one_piece``).
    """
    for position in positions:
        _check_past(position, archive)
    done = reached(positions)
    _check_mirror(report, archive, done)
    kept_from = min(archive.first_kept, report.first_kept)
    first = done + 1
    lost = None
    if first < kept_from and positions:
        lost = Span(first, kept_from - 1)
        if accepted is None or accepted.first > lost.first or accepted.last < lost.last:
            raise Refused(
                f"{archive.name} and {report.name} no longer hold {lost}, which the tables lack; if another mirror of"
                f" {archive.name} does, name it in [lakehouse] report_stream for one rollup, else give them up for ever"
                f" with --accept-loss {lost}: the time they stood for will be unknown"
            )
    elif accepted is not None:
        raise Refused(f"nothing is lost (the tables stand at {done}): leave --accept-loss out")
    last = report.last_sequence if report.last_sequence >= done else archive.last_sequence
    return ReadingPlan(Span(max(first, kept_from), max(last, done)), lost)


def reached(positions: Collection[HubPosition]) -> int:
    """Give the sequence through which all tables have what was read, 0 before the first run."""
    return min((position.sequence for position in positions), default=0)


def _check_past(position: HubPosition, archive: StreamContents) -> None:
    if position.stream != archive.name:
        raise Refused(
            f"the tables were made from {position.stream}, the settings say {archive.name}: set [lakehouse]"
            " archive_stream back, or path to a new directory"
        )
    if position.created_at != archive.created_at:
        raise Refused(
            f"{archive.name} is not the stream that was read through {position.sequence}: it was created again, and its"
            f" {_held(archive)} are not in the tables; {RESTORED_REMEDY}"
        )
    if position.sequence > archive.last_sequence:
        again = Span(archive.last_sequence + 1, position.sequence)
        raise Refused(
            f"{archive.name} ends at {archive.last_sequence}, but was read through {position.sequence}: it was restored"
            f" from an older copy, and will give {again} to other messages; {RESTORED_REMEDY}"
        )


def _check_mirror(report: StreamContents, archive: StreamContents, done: int) -> None:
    """Refuse what cannot be a mirror of this archive; ``report`` was asked before ``archive``."""
    if report.last_sequence > archive.last_sequence:
        raise Refused(
            f"{report.name} ends at {report.last_sequence}, beyond {archive.name}, which ends at"
            f" {archive.last_sequence}: {another_past(report.name, archive.name)}"
        )
    alone = Span(max(done + 1, report.first_sequence), min(archive.first_kept - 1, report.last_sequence))
    # Only of an archive made as a copy, which has the times of another one, this proves nothing: but none proves more.
    if alone.count and report.message_count and report.first_at < archive.created_at:
        raise Refused(
            f"{report.name} alone holds {alone}, and begins at {format_instant(report.first_at)}, before"
            f" {archive.name} was made: {another_past(report.name, archive.name)}"
        )


def _held(stream: StreamContents) -> str:
    return f"messages {Span(stream.first_sequence, stream.last_sequence)}" if stream.message_count else "next messages"

"""Parse one row of another system's file into an interval of a sender, or a named reason why it is none. Pure."""

import difflib
from collections.abc import Callable, Sequence
from collections.abc import Mapping as Dict
from enum import StrEnum
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from aggregator.lakehouse.imports.mapping import ImportRefused, Mapping
from aggregator.lakehouse.imports.name_shape import InvalidShape, NameShape
from aggregator.lakehouse.imports.times import (
    EARLIEST,
    NOTHING,
    NOTHING_BUT_ZERO,
    AmbiguousTime,
    latest,
    length_reader,
    time_reader,
)
from aggregator.lakehouse.tables.imports import ABSENT

_REMEMBERED = 1 << 17


class ImportReason(StrEnum):
    """The reason for which a row is quarantined."""

    NOT_A_ROW = "not_a_row"
    WRONG_COLUMN_COUNT = "wrong_column_count"
    NO_SENDER = "no_sender"
    NOT_TEXT = "not_text"
    NAME_NOT_OF_SHAPE = "name_not_of_shape"
    UNKNOWN_STATE = "unknown_state"
    UNREADABLE_START = "unreadable_start"
    UNREADABLE_STOP = "unreadable_stop"
    UNREADABLE_DURATION = "unreadable_duration"
    AMBIGUOUS_TIME = "ambiguous_time"
    NO_STOP = "no_stop"
    IMPLAUSIBLE_INSTANT = "implausible_instant"
    STOPS_BEFORE_START = "stops_before_start"


class SenderName(NamedTuple):
    """The sender that a key names."""

    region: str
    site: str
    sender_id: str
    groups: Dict[str, str]


class ImportedSpan(NamedTuple):
    """One row that could be parsed; instants in microseconds."""

    sender: SenderName
    state: str
    started_at: int
    ended_at: int


class Unreadable(NamedTuple):
    """One row that could not; ``detail`` is the text at fault."""

    reason: ImportReason
    detail: str


class RowReader:
    """Parser for the rows of one file with known columns."""

    def __init__(self, mapping: Mapping, columns: Sequence[str], now: int) -> None:
        """Find the columns; raise ImportRefused if the mapping does not fit them, or contradicts itself.

        ``now`` is in microseconds: rows with later instants are quarantined.
        """
        self._mapping = mapping
        self._latest = latest(now)
        self._column_count = len(columns)
        self._sender = [_position(name, columns) for name in mapping.sender]
        self._start = itemgetter(_position(mapping.start, columns))
        self._end = self._end_column(mapping, columns)
        self._state = None if mapping.state is None else _position(mapping.state, columns)
        if (mapping.state is None) == (mapping.always is None):
            raise ImportRefused("say which column has the state (--state), or that every row has the same (--always)")
        if mapping.always is not None and (mapping.unknown or mapping.gone):
            raise ImportRefused(
                "--always says that every row is the same: leave --unknown and --gone out, or name the column with the"
                " state (--state)"
            )
        self._states: dict[str, str] = {}
        meant = (("up", mapping.up), ("down", mapping.down), ("unknown", mapping.unknown), (ABSENT, mapping.gone))
        for state, values in meant:
            for value in values:
                if self._states.setdefault(value.lower(), state) != state:
                    raise ImportRefused(
                        f"the value {value!r} cannot mean both {self._states[value.lower()]} and {state}"
                    )
        try:
            self._read_time = time_reader(mapping.time, mapping.zone, mapping.epoch)
            self._shape = NameShape(mapping.shape) if mapping.shape else None
        except (ValueError, InvalidShape) as error:
            raise ImportRefused(str(error)) from error
        self._read_length = length_reader(mapping.unit)
        # An outage may well have lasted for 0 seconds, and a trace that counts from its own epoch has an instant 0.
        self._no_end = NOTHING_BUT_ZERO if mapping.duration is not None or mapping.epoch else NOTHING
        self._sender_of = lru_cache(_REMEMBERED)(self._named)
        # The end of each sender's last row: --ambiguous order needs it, and nothing else does.
        self._ends: dict[tuple[str, str, str], int] = {}
        self.ambiguous_count = 0

    def read(self, fields: Sequence[str]) -> ImportedSpan | Unreadable:
        if len(fields) != self._column_count and (
            len(fields) < self._column_count or any(field.strip() for field in fields[self._column_count :])
        ):
            return Unreadable(ImportReason.WRONG_COLUMN_COUNT, f"{len(fields)} columns instead of {self._column_count}")
        sender = self._sender_of(*[fields[index] for index in self._sender])
        if isinstance(sender, Unreadable):
            return sender
        state = self._mapping.always if self._state is None else self._states.get(fields[self._state].strip().lower())
        if state is None:
            return Unreadable(ImportReason.UNKNOWN_STATE, fields[self._state or 0].strip())
        return self._timed(fields, sender, state)

    def has_start(self, fields: Sequence[str]) -> bool:
        """Return True if the start is an instant, be it a plausible one or not."""
        try:
            self._read_time(self._start(fields))
        except AmbiguousTime:
            return True
        except (ValueError, OverflowError):
            return False
        return True

    def _timed(self, fields: Sequence[str], sender: SenderName, state: str) -> ImportedSpan | Unreadable:
        text, key = self._start(fields), (sender.region, sender.site, sender.sender_id)
        try:
            started_at = self._instant(text, self._ends.get(key, EARLIEST))
        except (ValueError, OverflowError) as error:
            return _unreadable(error, ImportReason.UNREADABLE_START, text)
        text = self._end(fields)
        try:
            ended_at = self._ended_at(text, started_at)
        except (ValueError, OverflowError) as error:
            of_end = ImportReason.UNREADABLE_DURATION if self._mapping.duration else ImportReason.UNREADABLE_STOP
            return _unreadable(error, ImportReason.NO_STOP if text.strip().lower() in self._no_end else of_end, text)
        if not EARLIEST <= started_at <= self._latest or ended_at > self._latest:
            return Unreadable(ImportReason.IMPLAUSIBLE_INSTANT, f"{self._start(fields)} to {text}".strip())
        if ended_at < started_at:
            return Unreadable(ImportReason.STOPS_BEFORE_START, f"{self._start(fields)} to {text}".strip())
        if self._mapping.ambiguous == "order":
            if len(self._ends) >= _REMEMBERED:
                self._ends.clear()
            self._ends[key] = ended_at
        return ImportedSpan(sender, state, started_at, ended_at)

    def _instant(self, text: str, not_before: int) -> int:
        """Parse an instant as ``ambiguous`` says; raise ValueError, AmbiguousTime if the row is to be quarantined."""
        try:
            return self._read_time(text)
        except AmbiguousTime as found:
            self.ambiguous_count += 1
            wanted = self._mapping.ambiguous
            if wanted == "quarantine":
                raise
            is_later = wanted == "later" or (wanted == "order" and found.earlier < not_before)
            return found.later if is_later else found.earlier

    def _ended_at(self, text: str, started_at: int) -> int:
        """Return the end of an interval from the text of its column; raise ValueError."""
        if self._mapping.tells_changes:
            return started_at
        if text.strip().lower() in self._no_end:
            if self._mapping.until is None:
                raise ValueError("it has no end")
            return self._mapping.until
        if self._mapping.duration is not None:
            return started_at + self._read_length(text)
        ended_at = self._instant(text, started_at)
        # An end that is still to come is none yet; a length that reaches there is a mistake of units.
        if ended_at > self._latest and self._mapping.until is not None:
            return self._mapping.until
        return ended_at

    def _end_column(self, mapping: Mapping, columns: Sequence[str]) -> Callable[[Sequence[str]], str]:
        if mapping.stop is not None and mapping.duration is not None:
            raise ImportRefused("say when a row ends (--stop) or how long it lasts (--duration), not both")
        if mapping.tells_changes and mapping.always:
            raise ImportRefused("rows that tell changes need --state; else say when they end: --stop or --duration")
        name = mapping.start if mapping.tells_changes else mapping.stop or mapping.duration
        assert name is not None
        if mapping.stop == mapping.start:
            raise ImportRefused(
                f"the column {name!r} is both start and end: where a row holds until the next one of its sender, leave"
                " --stop out"
            )
        return itemgetter(_position(name, columns))

    def _named(self, *key: str) -> SenderName | Unreadable:
        parts = [part.strip() for part in key]
        name = self._mapping.joined_by.join(parts)
        if not all(parts):
            return Unreadable(ImportReason.NO_SENDER, name)
        if not all(map(_is_text, key)):
            return Unreadable(ImportReason.NOT_TEXT, name)
        if self._shape is None:
            return SenderName(self._mapping.region, self._mapping.site, name, {})
        found = self._shape.parts(name)
        if found is None:
            return Unreadable(ImportReason.NAME_NOT_OF_SHAPE, name)
        groups = dict(found)
        region, site = groups.pop("region", self._mapping.region), groups.pop("site", self._mapping.site)
        return SenderName(region, site, groups.pop("sender", name), groups)


def _unreadable(error: Exception, reason: ImportReason, text: str) -> Unreadable:
    if isinstance(error, AmbiguousTime):
        return Unreadable(ImportReason.AMBIGUOUS_TIME, str(error))
    return Unreadable(reason, text.strip())


def _position(name: str, columns: Sequence[str]) -> int:
    """Find a column by its name, else, from 1, by its number."""
    for candidates in (list(columns), [column.lower() for column in columns]):
        wanted = name if candidates == list(columns) else name.lower()
        if candidates.count(wanted) > 1:
            if name.isdigit():
                # A first line that is a row: its numbers name nothing.
                break
            raise ImportRefused(f"there are several columns {name!r}: give the number of the one you mean, from 1")
        if wanted in candidates:
            return candidates.index(wanted)
    if name.isdigit() and 1 <= int(name) <= len(columns):
        return int(name) - 1
    near = difflib.get_close_matches(name, columns, n=1)
    meant = f", did you mean {near[0]}?" if near else f"; there are {', '.join(columns)}"
    raise ImportRefused(f"there is no column {name!r}{meant}")


def _is_text(text: str) -> bool:
    """Return True if all of it was UTF-8, without control characters."""
    plain = text.isascii() and text.isprintable()
    return plain or not any("\ud800" <= each <= "\udfff" or each < " " for each in text)

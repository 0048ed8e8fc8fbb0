"""The mapping from the rows of another system's file to intervals of senders. Pure."""

from typing import Annotated, Literal

import msgspec

from aggregator.lakehouse.tables.imports import BLOCK_PREFIX

Known = Literal["up", "down"]
Unit = Literal["us", "ms", "s", "m", "h", "d", "ns"]
State = Literal["up", "down", "unknown"]
Ambiguous = Literal["quarantine", "earlier", "later", "order"]


class Mapping(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """The meaning of the columns. A column is named by its header or, from 1, by its number.

    A row ends at the instant of ``stop``, or after the ``duration`` (a number of ``unit``, or hours:minutes:seconds);
    without either it says what its sender became, and holds until the sender's next row that says otherwise.

    ``sender`` names the columns of the sender's key, joined by ``joined_by``. ``shape`` finds groups in that key.
    ``state`` is the column with the state, whose values ``up``, ``down``, ``unknown`` and ``gone`` (then the sender is
    absent) list in lower case; without one, every row has the state ``always``. ``gaps`` is what a sender was between
    two of its rows; also before its first from ``since`` on, and after its last up to ``until``, where these
    (microseconds) say when the source began and ceased to watch. A row without an end, or with one that is still to
    come, lasts until ``until``. ``time`` is auto, s, ms, us, ns or a pattern of strptime; numbers count from ``epoch``
    (microseconds), and where it is None from 1970: then auto takes no small ones. ``zone`` holds where a time does not
    say its own; ``ambiguous`` says what to take there of a local time that names two instants, or none: by the
    ``order`` of a sender's rows the earlier, unless what was before lies behind it. ``region`` and ``site`` are those
    of senders whose key does not tell. ``overlaps`` says what happens where intervals of one sender overlap: nothing is
    imported, or those of the same state count as one.
    """

    source: Annotated[str, msgspec.Meta(min_length=1)]
    sender: tuple[str, ...]
    joined_by: str = "/"
    start: str
    stop: str | None = None
    duration: str | None = None
    unit: Unit = "s"
    state: str | None = None
    up: tuple[str, ...] = ("up", "1")
    down: tuple[str, ...] = ("down", "0")
    unknown: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    always: Known | None = None
    gaps: State = "unknown"
    since: int | None = None
    until: int | None = None
    overlaps: Literal["refuse", "join"] = "refuse"
    shape: str = ""
    region: str = "imported"
    site: str = "imported"
    time: str = "auto"
    epoch: int | None = None
    zone: str = "UTC"
    ambiguous: Ambiguous = "quarantine"
    separator: str = "auto"
    columns: tuple[str, ...] = ()

    @property
    def block(self) -> str:
        return BLOCK_PREFIX + self.source

    @property
    def tells_changes(self) -> bool:
        """True if rows have the begin of a state, and no end."""
        return self.stop is None and self.duration is None

    @property
    def named_columns(self) -> tuple[str, ...]:
        return (
            *self.sender,
            *(name for name in (self.start, self.stop, self.duration, self.state) if name is not None),
        )


class ImportRefused(RuntimeError):
    """The import of nothing, for a reason that a person can correct. The text is one line: reason, place, remedy."""

"""File of the truth: senders that came up and went down, in the order of time, flushed at every step."""

from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from edge_agent.simulator.fleet import Fleet, Transition
from shared.truth import TruthHeader, TruthLine, TruthThrough, UpInterval, encode_line


class TruthExists(Exception):
    """The truth file is there already, and would be mixed up with another fleet's."""


class TruthFile:
    """Append to a truth file; ``path`` None writes nothing. Virtual time counts from ``header.started_at_us``.

    A context manager: leaving it without an error writes the closing header.
    """

    def __init__(self, path: Path | None, header: TruthHeader) -> None:
        self._header = header
        self._through = 0
        try:
            self._file = path.open("xb") if path else None
        except FileExistsError:
            raise TruthExists(f"{path} exists: move it away, or choose another file for the truth") from None
        self._append([header])
        self.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None:
            ended_at = self._header.started_at_us + self._through
            self._append([msgspec.structs.replace(self._header, ended_at_us=ended_at)])
        if self._file is not None:
            self._file.close()

    def write_change(self, fleet: Fleet, change: Transition) -> None:
        """Write that one of a fleet's senders came up or went down."""
        started_at = self._header.started_at_us
        line = UpInterval(
            site=fleet.settings.site,
            sender=fleet.sender_ids[change.sender_index],
            up_from_us=started_at + change.up_from,
            up_to_us=None if change.comes_up else started_at + change.at,
            gone=change.gone,
        )
        self._append([line])

    def record_coverage(self, at: int, *, mark: bool) -> None:
        """Note that every change before an instant of virtual time is written; ``mark`` says so in the file."""
        self._through = max(self._through, at)
        if mark:
            self._append([TruthThrough(at_us=self._header.started_at_us + self._through)])

    def flush(self) -> None:
        """Flush the file to the system, which keeps it if this process is killed."""
        if self._file is not None:
            self._file.flush()

    def _append(self, lines: list[TruthLine]) -> None:
        if self._file is not None:
            self._file.writelines(map(encode_line, lines))


class FleetChanges:
    """Walk through one fleet's transitions, writing them as virtual time passes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._transitions = iter(fleet.transitions())
        self._next: Transition | None = next(self._transitions, None)
        self.up_count = 0

    @property
    def next_at(self) -> int | None:
        """Return the virtual time at which the next sender comes up or goes down, None if none ever does."""
        return self._next.at if self._next else None

    def write_until(self, at: int, truth: TruthFile) -> None:
        """Write every change up to and including an instant of virtual time."""
        while self._next is not None and self._next.at <= at:
            truth.write_change(self._fleet, self._next)
            self.up_count += 1 if self._next.comes_up else -1
            self._next = next(self._transitions, None)

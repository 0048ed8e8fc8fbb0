"""Check the thresholds that decide about senders: the agent's settings and the hub's policy obey the same rules.

Durations are microseconds.
"""

from typing import Annotated, Self

import msgspec
from msgspec import Meta

from shared.identifiers import LARGEST_NUMBER
from shared.instants import format_duration


class InvalidThresholds(ValueError):
    """Thresholds contradict each other, or are none. The text is one line."""


class Thresholds(msgspec.Struct, frozen=True, omit_defaults=True):
    """Those that are set; None leaves a threshold to whoever speaks more generally, at last to the settings file."""

    sample_interval: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None = None
    stale_after: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None = None
    retire_after: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None = None
    blind_after: Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)] | None = None

    @property
    def given(self) -> dict[str, int]:
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value is not None}

    def overlaid(self, other: Self) -> Self:
        return msgspec.structs.replace(self, **other.given)

    def check(self) -> None:
        """Raise InvalidThresholds where those that are set cannot stand together."""
        if any(value <= 0 for value in (self.sample_interval, self.stale_after) if value is not None):
            raise InvalidThresholds("sample_interval and stale_after must be longer than 0s")
        stale_after, retire_after, blind_after = self.stale_after, self.retire_after, self.blind_after
        if stale_after is not None and retire_after is not None and stale_after >= retire_after:
            raise InvalidThresholds(
                f"stale_after ({format_duration(stale_after)}) must be shorter than "
                f"retire_after ({format_duration(retire_after)})"
            )
        if blind_after is not None and blind_after <= 0:
            raise InvalidThresholds("blind_after must be longer than 0s: without it, it is a quarter of stale_after")
        if blind_after is not None and stale_after is not None and 2 * blind_after >= stale_after:
            raise InvalidThresholds(
                f"blind_after ({format_duration(blind_after)}) must be shorter than half of "
                f"stale_after ({format_duration(stale_after)})"
            )

"""Hold the thresholds that the tracker decides by. All durations are microseconds, sizes bytes."""

import zlib

import msgspec

SPREAD_STEPS = 1 << 16
MAX_SENDERS = 2_000_000
"""Twice the largest fleet that Muster is made for, in some 400 MB of memory: room for a year's replacements."""


class Policy(msgspec.Struct, frozen=True):
    """The thresholds of one stream block.

    ``revision`` counts what the hub has sent (0: the settings file alone). ``max_age`` 0 forwards however old. Beyond
    ``max_senders`` nobody is new.
    """

    sample_interval: int
    stale_after: int
    retire_after: int
    blind_after: int
    size_trigger: int = 0
    max_age: int = 0
    revision: int = 0
    max_senders: int = MAX_SENDERS

    @property
    def retired_after_stale(self) -> int:
        """Give the observed time between a sender's stale instant and its retirement."""
        return self.retire_after - self.stale_after

    def interval_of(self, sender_id: str, *, is_first: bool) -> int:
        """Give how long after a sender was forwarded its next sighting is due; the first time that is sooner."""
        return self.first_interval(sender_id) if is_first else self.sample_interval

    def first_interval(self, sender_id: str) -> int:
        """Shorten a sender's first interval by a stable hash, so that a fleet does not forward in step."""
        step = zlib.crc32(sender_id.encode()) % SPREAD_STEPS + 1
        return self.sample_interval * step // SPREAD_STEPS

"""Hold the thresholds that the tracker decides by, and which revisions of the hub's policy a block has applied.

All durations are microseconds, sizes bytes.

What is said for a smaller scope (a block, a site, a region) outranks what is said for a larger one. A stream that was
recreated is another past: its thresholds replace all earlier ones, and of its orders about senders only those count
that were given since.
"""

import zlib

import msgspec

from shared.identifiers import BlockId
from shared.policy import Revision, Scope, SetThresholds, scopes_of
from shared.thresholds import Thresholds

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
        return self.retire_after - self.stale_after

    def stale_at(self, last_seen_at: int, since: int, policy_at: int) -> int:
        """Say when a sender that is not heard again falls stale; ``since``: from when on the stream has been watched.

        No deadline that this policy moved falls before ``policy_at``, from when on it holds.
        """
        return max(max(last_seen_at, since) + self.stale_after, policy_at)

    def retired_at(self, stale_observed_at: int, blind_total: int, since: int, policy_at: int) -> int:
        """Say when a stale sender that is not heard again is retired; ``stale_observed_at`` is by the observed clock.

        What other thresholds moved to before a blind span falls at its end: nothing is decided within it.
        """
        return max(stale_observed_at + blind_total + self.retired_after_stale, policy_at, since)

    def interval_of(self, sender_id: str, *, is_first: bool) -> int:
        """Give how long after a sender was forwarded its next sighting is due; the first time that is sooner."""
        return self.first_interval(sender_id) if is_first else self.sample_interval

    def first_interval(self, sender_id: str) -> int:
        """Shorten a sender's first interval by a stable hash, so that a fleet does not forward in step."""
        step = zlib.crc32(sender_id.encode()) % SPREAD_STEPS + 1
        return self.sample_interval * step // SPREAD_STEPS


class PolicyRevisions(msgspec.Struct, frozen=True):
    """Through which revision, and in which past of the hub's stream (0: nothing was said yet).

    ``given_at`` is the latest that the hub's clock was at any revision of that past, before the first one the site's
    when the block's store began (0 in one that an earlier version made); orders about senders that were given at
    ``floor`` or before are void.
    ``thresholds`` are the last for each scope, by its name. Instants are microseconds.
    """

    stream_created_at: int = 0
    revision: int = 0
    given_at: int = 0
    floor: int = 0
    thresholds: dict[str, Thresholds] = {}
    knows_latest: bool = False
    """Whether ``given_at`` is the latest: an earlier version kept that of the last revision, whatever came before."""

    def has(self, revision: Revision) -> bool:
        """Tell whether a revision has been taken.

        A hub whose stream was restored from an older copy uses numbers again: later is what was given later.
        """
        if revision.stream_created_us != self.stream_created_at or revision.revision > self.revision:
            return False
        return revision.given_at_us <= self.given_at or not self.knows_latest

    def after(self, scope: Scope, revision: Revision, began_at: int) -> "PolicyRevisions":
        """Take the next revision; ``began_at`` is about when the block's store began, where nothing else says so."""
        before, given_at = self, revision.given_at_us
        if revision.stream_created_us != self.stream_created_at:
            before = PolicyRevisions(revision.stream_created_us, floor=self.given_at or began_at, knows_latest=True)
        else:
            given_at = max(given_at, self.given_at)
        thresholds = before.thresholds
        if isinstance(revision.order, SetThresholds):
            thresholds = {**thresholds, str(scope): revision.order.thresholds}
        return msgspec.structs.replace(before, revision=revision.revision, given_at=given_at, thresholds=thresholds)

    def thresholds_of(self, block_id: BlockId) -> list[tuple[Scope, Thresholds]]:
        """List the thresholds that are said for a block, those of the larger scope first."""
        scopes = scopes_of(block_id)
        return [(scope, self.thresholds[str(scope)]) for scope in scopes if str(scope) in self.thresholds]

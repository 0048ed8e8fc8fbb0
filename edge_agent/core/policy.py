"""Thresholds of the tracker, and the revisions of the hub's policy that a block has applied.

All durations are microseconds, sizes bytes.

Thresholds for a smaller scope (a block, a site, a region) outrank those for a larger one. A recreated policy stream is
another past: its thresholds replace all earlier ones, and of its orders about senders only those count that were given
since.
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

    ``revision`` is the hub's last one (0: the settings file alone). ``max_age`` 0 forwards registrations of any age.
    Beyond ``max_senders`` registrations of unknown senders are rejected.
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
        """Return the instant at which a sender falls stale; ``since`` is the block's ``observed_since``.

        No deadline that this policy moved falls before ``policy_at``, when it took effect.
        """
        return max(max(last_seen_at, since) + self.stale_after, policy_at)

    def retired_at(self, stale_observed_at: int, blind_total: int, since: int, policy_at: int) -> int:
        """Return the instant at which a stale sender is retired; ``stale_observed_at`` is by the observed clock.

        A deadline that other thresholds moved into or before a blind span falls at its end, ``since``.
        """
        return max(stale_observed_at + blind_total + self.retired_after_stale, policy_at, since)

    def interval_of(self, sender_id: str, *, is_first: bool) -> int:
        """Return how long after a forward the sender's next sighting is due; the first interval is shorter."""
        return self.first_interval(sender_id) if is_first else self.sample_interval

    def first_interval(self, sender_id: str) -> int:
        """Return a sender's first interval, shortened by a stable hash so that a fleet does not forward in step."""
        step = zlib.crc32(sender_id.encode()) % SPREAD_STEPS + 1
        return self.sample_interval * step // SPREAD_STEPS


class PolicyRevisions(msgspec.Struct, frozen=True):
    """The last applied revision, and the past of the hub's stream that it belongs to (0: none was applied yet).

    ``given_at`` is the hub's latest clock of any revision of that past; before the first one, the site's clock when the
    block's store began (0 in a store of an earlier version). Orders about senders given at ``floor`` or before are
    void.
    ``thresholds`` are the last for each scope, by its name. Instants are microseconds.
    """

    stream_created_at: int = 0
    revision: int = 0
    given_at: int = 0
    floor: int = 0
    thresholds: dict[str, Thresholds] = {}
    knows_latest: bool = False
    """Whether ``given_at`` is the latest of all revisions: an earlier version kept that of the last one."""

    def has(self, revision: Revision) -> bool:
        """Return True if a revision has been applied.

        A hub whose stream was restored from an older copy uses numbers again: then the later instant is newer.
        """
        if revision.stream_created_us != self.stream_created_at or revision.revision > self.revision:
            return False
        return revision.given_at_us <= self.given_at or not self.knows_latest

    def after(self, scope: Scope, revision: Revision, began_at: int) -> "PolicyRevisions":
        """Return a copy with the next revision; ``began_at`` is about when the block's store began, if unknown here."""
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
        """Return the thresholds that apply to a block, those of the larger scope first."""
        scopes = scopes_of(block_id)
        return [(scope, self.thresholds[str(scope)]) for scope in scopes if str(scope) in self.thresholds]

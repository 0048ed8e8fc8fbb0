"""Tracker of senders: which are new, stale, recovered or retired, and which registrations are forwarded.

The rules, in this order:

1. A sighting first settles the deadlines strictly earlier than it, then counts as a sighting.
2. An unknown sender is ``new``, a stale one ``recovered``; both are forwarded. Otherwise a sighting is forwarded when
   ``sample_interval`` has passed since the last forward, when the size moved by ``size_trigger`` since then, when
   the digest changed, when forced.
3. ``stale`` falls at max(last seen, observed_since) + ``stale_after``: a blind observer accuses no sender. ``retired``
   falls when ``retire_after`` - ``stale_after`` of *observed* time has passed since the stale instant.
4. Time advances to proofs only: messages, and instants at which the reader was caught up. Two proofs more than
   ``blind_after`` apart enclose a blind span. Time never runs back: an earlier message counts at ``observed_through``.
5. Deadlines that fall on one instant are settled in the order of kinds (stale, retired), then of sender ids, so that
   decisions do not depend on batches or ticks.
6. No deadline that changed thresholds moved falls before the instant at which they took effect, or within a blind span
   that began there. An operator's order about a sender takes effect at ``observed_through``: its next sighting is
   forwarded, or it is ``retired``; a microsecond later if it was heard at that very instant.
7. While the stream refuses messages, time passes without being covered, even if other messages arrive, and nothing
   falls due. The same holds from when the stream takes less than before (subjects, sizes) until any sender is heard.
   After that every sender has the full time to be heard. A sender that was last heard before the stream took less is
   never ``stale``: at that deadline it is ``retired`` as unheard, since the stream may not take what it publishes. A
   sender that was stale already is retired as unheard at once: it may have come back.
8. A message that holds registrations of several senders and is read as one may hold those of any sender: behind it
   time passes without being covered, until ``stale_after`` has passed without another.
9. A span between two stored messages that is longer than probes leave a stream quiet (``edge_agent.core.unproven``) is
   unproven as a whole: the stream may have refused everything in it. The unproven parts of the ``stale_after`` before
   an instant may be as long as ``blind_after``, together. Where they are longer, time passes without being covered,
   until the stream has stored without such a span for ``blind_after``. A check of a quiet stream proves nothing while
   they would be longer if that quiet became such a span.
10. While the stream's clock is seen to be further ahead than other clocks allow, it is not followed: no time passes,
   messages count at ``observed_through``, and nothing falls due. When it is followed again, the time since is blind.
"""

from edge_agent.core.block_state import BlockState
from edge_agent.core.draft import DECISIONS_PER_DRAFT, Draft
from edge_agent.core.senders import SenderTable


class Tracker:
    """The senders and the state of one block, as of the last draft that was adopted."""

    def __init__(self, state: BlockState, senders: SenderTable | None = None) -> None:
        self.state = state
        self.senders = senders or SenderTable()

    def draft(self, *, decision_limit: int = DECISIONS_PER_DRAFT, detect_blind_spans: bool = True) -> Draft:
        """Return an empty draft. A replay applies recorded blind spans, and turns their detection off."""
        return Draft(self.state, self.senders, decision_limit, detect_blind_spans)

    def adopt(self, draft: Draft) -> None:
        """Make the result of a draft of the present state the state; its commit has begun."""
        changes = draft.changes()
        self.senders.adopt(changes.heard, changes.stale, changes.retired)
        self.state = draft.state()

    def sender_counts(self) -> dict[str, int]:
        return {"heard": self.senders.heard.count, "stale": self.senders.stale.count}

    def check_invariants(self) -> None:
        """Assert the invariants that hold between any two drafts; for tests."""
        state = self.state
        assert state.observed_since <= state.observed_through, "coverage ends before it starts"
        assert state.settling_at <= state.observed_through, "an instant left half settled lies ahead"
        assert state.observed_through == 0 or state.policy_at <= state.observed_through, "a policy from the future"
        self.senders.check_invariants()

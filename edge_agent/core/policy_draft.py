"""Let a draft obey operators: the thresholds they set, and what the hub's policy says of single senders.

Nothing of it falls before ``observed_through``, and each is a recorded input: in a straight run it is given again.
"""

from edge_agent.core.decisions import PolicyChanged, SenderAskedFor, SenderRetired
from edge_agent.core.draft import Draft
from edge_agent.core.policy import Policy
from edge_agent.core.policy_revisions import Standing
from edge_agent.core.senders import SenderState


class PolicyDraft(Draft):
    """A draft that an operator can speak to."""

    def change_policy(self, policy: Policy) -> bool:
        """Let other thresholds hold from ``observed_through`` on."""
        if not self._finish_settling():
            return False
        self._policy, self._policy_at = policy, self.observed_through
        self._quiet_until = self._next_deadline = 0
        self.recorded.append(PolicyChanged(self._policy_at, policy, self.position.sequence))
        return True

    def ask_for(self, sender_id: str) -> bool:
        """Let a sender's next sighting be forwarded; that of one who is not known will be, as its first."""
        if not self._finish_settling():
            return False
        if self._known(sender_id) is not None:
            self._asked_for.add(sender_id)
            self.recorded.append(SenderAskedFor(self.observed_through, sender_id, self.position.sequence))
        return True

    def retire(self, sender_id: str) -> bool:
        """End a sender's life at ``observed_through``, because an operator says that it is gone.

        Never at an instant at which it was heard: readers, who order what one instant brings by its kind, would put its
        end before its beginning. That instant is settled first, and time goes on by the least there is.
        """
        if len(self.decisions) >= self._decision_limit or not self._finish_settling():
            return False
        state = self._known(sender_id)
        if state is not None:
            if state.last_seen_at >= self.observed_through and not self._settle_through(self.observed_through):
                return False
            self._retire(sender_id, self.observed_through, by_operator=True)
            self.recorded.append(SenderRetired(self.observed_through, sender_id, self.position.sequence))
        return True

    def stand(self, standing: Standing, what: str) -> None:
        """Note how far the hub's policy has been taken, and count what was done."""
        self._standing = standing
        self._ledger.count("policy", what)

    def _known(self, sender_id: str) -> SenderState | None:
        state = self._touch(sender_id)
        if state is None or state.retired:
            self._ledger.count("policy", "unknown_sender")
            return None
        return state

"""Say when a sender falls due, and find what falls due next among the senders of the table and those touched since.

The senders that a draft has not touched were all seen (or fell silent) before those it has touched, so each queue is
the table's list, less the touched, followed by the draft's own; its head is what falls due next.
"""

from collections.abc import Callable, Iterator
from itertools import takewhile

from edge_agent.core.policy import Policy
from edge_agent.core.senders import NOBODY, DueOrder, SenderList, SenderState, SenderTable

NEVER = 1 << 62


def stale_at(last_seen_at: int, since: int, policy: Policy, policy_at: int) -> int:
    """Say when a sender that is not heard again falls stale; ``since``: from when on the stream has been watched."""
    return max(max(last_seen_at, since) + policy.stale_after, policy_at)


def retired_at(stale_observed_at: int, blind_total: int, since: int, policy: Policy, policy_at: int) -> int:
    """Say when a stale sender that is not heard again is retired; ``stale_observed_at`` is by the observed clock."""
    due = stale_observed_at + blind_total + policy.retired_after_stale
    # What other thresholds moved to before a blind span falls at its end: nothing is decided within it.
    return max(due, policy_at, since)


class DeadlineQueue:
    """One list of senders (the heard, or the stale) as a draft sees it, ordered by ``instants``."""

    def __init__(
        self, senders: SenderTable, listed: SenderList, touched: dict[str, SenderState], instants: str
    ) -> None:
        self._senders = senders
        self._sender_ids = senders.sender_ids
        self._listed = listed
        self._listed_instants = getattr(senders, instants)
        self._instant_name = instants
        self._touched = touched
        self._cursor = listed.head
        self.own: dict[str, SenderState] = {}

    def put_last(self, state: SenderState) -> None:
        """Queue a sender behind all others."""
        self.own.pop(state.sender_id, None)
        self.own[state.sender_id] = state

    def discard(self, sender_id: str) -> None:
        """Take a touched sender out; an untouched one leaves the queue by being touched."""
        self.own.pop(sender_id, None)

    def first_instant(self) -> int:
        """Give the instant of the sender at the head, NEVER where the queue is empty."""
        slot = self._cursor
        while slot != NOBODY and self._sender_ids[slot] in self._touched:
            slot = self._listed.after(slot)
        self._cursor = slot
        if slot != NOBODY:
            return int(self._listed_instants[slot])
        for state in self.own.values():
            return int(getattr(state, self._instant_name))
        return NEVER

    def due_together(self, due: Callable[[int], int], at: int, limit: int) -> list[str]:
        """List, in the order of their ids, the first of the senders at the head whose deadline is ``at``.

        After a blind span all silent senders share one. Where they are more than a commit carries, drafts that begin
        with them go on in an order that the first of them has made: each need not sort what is left.
        """
        if self._head_is_alone(due, at):
            return [self._sender_ids[self._cursor]]
        order = self._listed.order
        if self._touched or order is None or order.at != at:
            order = DueOrder(at, sorted(sender_id for sender_id, _ in takewhile(lambda each: due(each[1]) == at, self)))
        if not self._touched:
            self._listed.order = order if len(order.sender_ids) > limit else None
            order.skip(self._is_established)
        return order.sender_ids[order.first : order.first + limit]

    def _head_is_alone(self, due: Callable[[int], int], at: int) -> bool:
        """Tell whether the table's sender at the head certainly shares ``at`` with nobody, as most do."""
        slot = self._cursor
        following = NOBODY if slot == NOBODY else self._listed.after(slot)
        return following != NOBODY and due(self._listed_instants[following]) != at

    def _is_established(self, sender_id: str) -> bool:
        return not self._senders.is_in(sender_id, self._listed)

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Give every sender id and its instant, from the head on."""
        slot = self._cursor
        while slot != NOBODY:
            if self._sender_ids[slot] not in self._touched:
                yield self._sender_ids[slot], self._listed_instants[slot]
            slot = self._listed.after(slot)
        for sender_id, state in self.own.items():
            yield sender_id, getattr(state, self._instant_name)

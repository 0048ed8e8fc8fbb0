"""Effect of the hub's policy on one stream block, on top of its settings. No I/O.

A revision that contradicts the settings, or a revision for a larger scope, is refused as a whole and reported; the rest
holds. So the thresholds are a function of the settings and of the revisions.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import msgspec

from edge_agent.config.stream import PolicySettings, StreamSettings
from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy, PolicyRevisions
from shared.identifiers import BlockId
from shared.policy import ForwardSender, RetireSender, Revision, Scope, ScopedRevision
from shared.thresholds import InvalidThresholds

TOO_OLD = "too_old"


def apply_revision(draft: BlockDraft, revision: Revision, revisions: PolicyRevisions, policy: Policy) -> bool:
    """Apply a revision to a draft; ``revisions`` and ``policy`` hold after it. False, doing nothing, if it is full."""
    order, what = revision.order, str(revision.order.__struct_config__.tag)
    if isinstance(order, ForwardSender | RetireSender):
        if revision.given_at_us <= revisions.floor:
            what = TOO_OLD
        elif not (draft.retire if isinstance(order, RetireSender) else draft.ask_for)(order.sender_id):
            return False
    if not draft.change_policy(policy):
        return False
    draft.note_revisions(revisions, what)
    return True


class Effective(msgspec.Struct, frozen=True):
    """The thresholds in effect. ``origins``: the scope of each one from the hub; ``refused``: messages on refusals."""

    settings: PolicySettings
    origins: dict[str, str] = {}
    refused: tuple[str, ...] = ()

    def policy(self, revisions: PolicyRevisions) -> Policy:
        return msgspec.structs.replace(self.settings.policy(), revision=revisions.revision)


class OrderSource(Protocol):
    """Source of the revisions of one site, in their order."""

    def orders(self) -> list[ScopedRevision]:
        """Return all revisions read so far."""


def effective(block_id: BlockId, block: StreamSettings, revisions: PolicyRevisions) -> Effective:
    """Return a block's thresholds: its settings, overlaid with the hub's, the larger scope first."""
    holds, refused = block.policy, []
    origins: dict[str, str] = {}
    for scope, thresholds in revisions.thresholds_of(block_id):
        try:
            changed = holds.overlaid(thresholds)
            block.check_settle(changed)
        except InvalidThresholds as error:
            refused.append(f"policy for {scope}: {error}")
        else:
            holds = changed
            origins |= dict.fromkeys(thresholds.given, str(scope))
    return Effective(holds, origins, tuple(refused))


class PolicyOrders:
    """The revisions that one block has not applied. ``report`` is called with the refusals, "" if there are none."""

    def __init__(
        self, block_id: BlockId, block: StreamSettings, source: OrderSource, report: Callable[[str], None]
    ) -> None:
        self._block_id, self._block, self._source, self._report = block_id, block, source, report
        self._taken: tuple[list[ScopedRevision], int, PolicyRevisions] = [], 0, PolicyRevisions()

    def policy(self, revisions: PolicyRevisions) -> Policy:
        holds = effective(self._block_id, self._block, revisions)
        self._report("; ".join(holds.refused))
        return holds.policy(revisions)

    def inputs(self, state: BlockState) -> Iterator[Callable[[BlockDraft], bool]]:
        """Yield the inputs for drafts of ``state``, one for each revision that the block has not applied."""
        revisions, began_at = state.revisions, state.position.incarnation.epoch_ms * 1000
        orders, (applied, count, applied_revisions) = self._source.orders(), self._taken
        if orders is applied and len(orders) == count and revisions == applied_revisions:
            # Called between any two batches, with the revisions of years.
            return
        block = Scope(self._block_id.region, self._block_id.site, self._block_id.block)
        for scope, revision in orders:
            if scope.covers(block) and not revisions.has(revision):
                revisions = revisions.after(scope, revision, began_at)
                yield partial(apply_revision, revision=revision, revisions=revisions, policy=self.policy(revisions))
        self._taken = orders, len(orders), revisions

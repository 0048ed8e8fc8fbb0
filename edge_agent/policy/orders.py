"""Work out what the hub's policy means for one stream block, beside what its settings say. No I/O.

What contradicts the settings, or what is said for a larger scope, is refused as a whole and said to people; the rest
holds. So the thresholds are a function of the settings and of what was said.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

import msgspec

from edge_agent.config.stream import PolicySettings, StreamSettings
from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import Policy
from edge_agent.core.policy_revisions import PolicyRevisions
from shared.identifiers import BlockId
from shared.policy import ForwardSender, RetireSender, Revision, Said, Scope
from shared.thresholds import InvalidThresholds

TOO_OLD = "too_old"


def obey(draft: BlockDraft, revision: Revision, standing: PolicyRevisions, policy: Policy) -> bool:
    """Do it; ``standing`` and ``policy`` hold after it. False, having done nothing, where the draft is full."""
    order, what = revision.order, str(revision.order.__struct_config__.tag)
    if isinstance(order, ForwardSender | RetireSender):
        if revision.given_at_us <= standing.floor:
            what = TOO_OLD
        elif not (draft.retire if isinstance(order, RetireSender) else draft.ask_for)(order.sender_id):
            return False
    if not draft.change_policy(policy):
        return False
    draft.stand(standing, what)
    return True


class Effective(msgspec.Struct, frozen=True):
    """What holds. ``origins`` names the scope of each threshold that is the hub's; ``refused`` says what is not."""

    settings: PolicySettings
    origins: dict[str, str] = {}
    refused: tuple[str, ...] = ()

    def policy(self, standing: PolicyRevisions) -> Policy:
        """Give the core's thresholds."""
        return msgspec.structs.replace(self.settings.policy(), revision=standing.revision)


class Saying(Protocol):
    """Where revisions come from: those of one site, in their order."""

    def said(self) -> list[Said]:
        """Give all that have been heard of."""


def effective(block_id: BlockId, block: StreamSettings, standing: PolicyRevisions) -> Effective:
    """Lay what the hub has said over a block's settings, the larger scope first."""
    holds, refused = block.policy, []
    origins: dict[str, str] = {}
    for scope, thresholds in standing.said_of(block_id):
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
    """What one block is yet to be told. ``report`` hears what is refused, and "" where nothing is."""

    def __init__(self, block_id: BlockId, block: StreamSettings, saying: Saying, report: Callable[[str], None]) -> None:
        self._block_id, self._block, self._saying, self._report = block_id, block, saying, report
        self._taken: tuple[list[Said], int, PolicyRevisions] = [], 0, PolicyRevisions()

    def policy(self, standing: PolicyRevisions) -> Policy:
        """Give the thresholds that hold."""
        holds = effective(self._block_id, self._block, standing)
        self._report("; ".join(holds.refused))
        return holds.policy(standing)

    def inputs(self, state: BlockState) -> Iterator[Callable[[BlockDraft], bool]]:
        """Give what drafts of ``state`` are to be given, one for each revision that the block has not taken."""
        standing, began_at = state.standing, state.position.incarnation.epoch_ms * 1000
        said, (known, count, stood) = self._saying.said(), self._taken
        if said is known and len(said) == count and standing == stood:
            # Asked for between any two batches, and revisions of years may be known.
            return
        block = Scope(self._block_id.region, self._block_id.site, self._block_id.block)
        for scope, revision in said:
            if scope.covers(block) and not standing.has(revision):
                standing = standing.after(scope, revision, began_at)
                yield partial(_obeyed, revision=revision, standing=standing, policy=self.policy(standing))
        self._taken = said, len(said), standing


def _obeyed(draft: BlockDraft, revision: Revision, standing: PolicyRevisions, policy: Policy) -> bool:
    return obey(draft, revision, standing, policy)

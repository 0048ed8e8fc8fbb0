"""Let a draft do what a revision of the hub's policy says."""

from edge_agent.core.block_mode import BlockDraft
from edge_agent.core.policy import Policy
from edge_agent.core.policy_revisions import Standing
from shared.policy import ForwardSender, RetireSender, Revision

TOO_OLD = "too_old"


def obey(draft: BlockDraft, revision: Revision, standing: Standing, policy: Policy) -> bool:
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

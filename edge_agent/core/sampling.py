"""Decide whether a sighting of a sender that is heard is worth forwarding, against what was forwarded last."""

from edge_agent.core.observation import Observation
from edge_agent.core.policy import Policy
from edge_agent.core.senders import SenderState
from shared.wire import ForwardReason


def reason_to_forward(policy: Policy, state: SenderState, observation: Observation, at: int) -> ForwardReason | None:
    """Give the first reason that holds, None where there is none; ``state`` is as it was before the sighting."""
    if not state.last_forwarded_at:
        return ForwardReason.NEW
    # Policy.interval_of(), written out: a call for every sighting of a known sender is four in a hundred of its cost.
    interval = policy.first_interval(state.sender_id) if state.first_interval else policy.sample_interval
    if at - state.last_forwarded_at >= interval:
        return ForwardReason.INTERVAL
    moved = abs(len(observation.message.payload) - state.forwarded_size)
    if policy.size_trigger and moved >= policy.size_trigger:
        return ForwardReason.SIZE
    if observation.digest != state.forwarded_digest:
        return ForwardReason.CHANGED
    return ForwardReason.FORCED if observation.forced else None

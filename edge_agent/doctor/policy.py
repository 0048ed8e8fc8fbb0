"""Say which thresholds hold: the settings file's, and what the agent has taken of the hub's policy."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.policy import PolicyRevisions
from edge_agent.doctor.finding import Finding, good, warning
from edge_agent.inspection.blocks import read_blocks
from edge_agent.observability.conditions import POLICY_REFUSED
from edge_agent.policy.orders import Effective, effective
from edge_agent.store.read_only import StoreUnreadable, reading
from shared.instants import format_duration


class InForce(NamedTuple):
    """What holds for a block, and how far the hub's policy was taken."""

    holds: Effective
    revisions: PolicyRevisions


def policy_in_force(settings: AgentSettings, block: StreamSettings) -> InForce:
    """Lay what the store has of the hub's policy over the settings; without a store, the settings alone."""
    try:
        with reading(Path(settings.store.path)) as database:
            (known,) = read_blocks(database, block.name).values()
            revisions = known.state.revisions
    except StoreUnreadable:
        revisions = PolicyRevisions()
    return InForce(effective(settings.block_id(block), block, revisions), revisions)


def check_policy(block: StreamSettings, in_force: InForce) -> Iterator[Finding]:
    """Say what the hub has said, and what of it the settings do not let hold; nothing where it has said nothing."""
    (holds, revisions), name = in_force, f"policy of {block.name}"
    if not revisions.revision:
        return
    for refused in holds.refused:
        remedy = "change the settings file, or say otherwise at the hub (muster-aggregator policy set)"
        yield warning(name, f"refused, {refused}", remedy, POLICY_REFUSED)
    thresholds = holds.settings.thresholds.given
    said = ", ".join(f"{key} {format_duration(thresholds[key])} for {scope}" for key, scope in holds.origins.items())
    yield good(
        name, f"revision {revisions.revision} of the hub's: {said or 'it leaves every threshold to the settings'}"
    )

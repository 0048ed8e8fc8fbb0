"""Hold what the parts of one agent share."""

from typing import NamedTuple

from edge_agent.config.agent import AgentSettings
from edge_agent.delivery.fast_path import Passage
from edge_agent.modes import AgentIdentity
from edge_agent.observability.clocks import Clocks
from edge_agent.observability.status_board import StatusBoard
from edge_agent.policy.feed import PolicyFeed
from edge_agent.runtime.links import Links
from edge_agent.store.sqlite_store import SqliteStore


class AgentParts(NamedTuple):
    """One agent around one store, which took the place of a lost one where ``replaces_lost``."""

    settings: AgentSettings
    identity: AgentIdentity
    store: SqliteStore
    links: Links
    board: StatusBoard
    policy_feed: PolicyFeed
    passage: Passage
    clocks: Clocks
    replaces_lost: bool

"""Hold what the parts of one agent share."""

from typing import NamedTuple

from edge_agent.clocks import Clocks
from edge_agent.config import AgentSettings
from edge_agent.links import Links
from edge_agent.modes import AgentIdentity
from edge_agent.passage import Passage
from edge_agent.policy_feed import PolicyFeed
from edge_agent.status_board import StatusBoard
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

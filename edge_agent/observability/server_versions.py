"""Say what the settings need of a server that is too old for it, and what becomes of it there."""

from collections.abc import Iterator

import msgspec

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from shared.nats.server_version import RESETS_CONSUMERS, TAKES_BATCHES, Version


class Need(msgspec.Struct, frozen=True):
    """A setting that needs a server from a version on; ``otherwise`` says what becomes of it on an older one.

    ``is_essential``: the agent has no other way.
    """

    setting: str
    since: Version
    otherwise: str
    is_essential: bool

    def unmet(self, found: Version) -> str:
        """Say that a server is too old for it."""
        older = f"nats-server {_shown(found)} is older than {_shown(self.since)}"
        return f"{older}, which {self.setting} needs: {self.otherwise}"


def needs_of_source(block: StreamSettings, retention: str = "limits") -> Iterator[Need]:
    """Give what a block needs of its site's servers, where it reads a stream of that retention."""
    if not block.source.create_consumer:
        otherwise = "the consumer cannot be reset, nor made anew, and the stream is not read"
        yield Need("source.create_consumer = false", RESETS_CONSUMERS, otherwise, is_essential=True)
    elif retention == "interest":
        otherwise = "without its consumer the stream would drop what was not read, so it is not read"
        yield Need("a stream with interest retention (source.stream)", RESETS_CONSUMERS, otherwise, is_essential=True)


def needs_of_region(settings: AgentSettings) -> Iterator[Need]:
    """Give what the settings need of the region's servers."""
    copies = [block.name for block in settings.stream if block.mode == "copy"]
    if copies:
        otherwise = "copies leave one at a time, each after the answer to the one before"
        yield Need(f'mode = "copy" ({", ".join(copies)})', TAKES_BATCHES, otherwise, is_essential=False)


def _shown(version: Version) -> str:
    return ".".join(map(str, version))

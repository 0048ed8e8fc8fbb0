"""Refuse to go on with a store that was written under other names: what it knows would be told of the wrong ones."""

from collections.abc import Iterable
from pathlib import Path

from edge_agent.config.agent import AgentSettings
from edge_agent.core.block_state import BlockState
from edge_agent.store.files import StoreUnusable
from shared.identifiers import BlockId


def check_belonging(path: Path, settings: AgentSettings, known: Iterable[tuple[BlockId, BlockState]]) -> None:
    """Hold what the store knows against the settings; raise StoreUnusable, saying what to do.

    A block that the settings do not name any more is left alone: its records still leave.
    """
    blocks = {block.name: block for block in settings.stream}
    for block_id, state in known:
        if (block_id.region, block_id.site) != (settings.region, settings.site):
            raise StoreUnusable(
                f"store {path} belongs to site {block_id.site} of region {block_id.region}, the settings say site "
                f"{settings.site} of region {settings.region}: name them as before, or "
                f"move {path} and {path.name}.marker away to begin anew"
            )
        block = blocks.get(block_id.block)
        if block is None:
            continue
        for what, before, wanted in (
            ("stream", state.position.stream, block.source.stream),
            ("mode", state.mode, block.mode),
        ):
            if before != wanted:
                raise StoreUnusable(
                    f"block {block.name} had {what} {before} in store {path}, the settings say {wanted}: "
                    # Readers know its senders by these names: the marker has them told of the loss.
                    f"give it another name, or move {path} away, not its marker, to begin anew"
                )

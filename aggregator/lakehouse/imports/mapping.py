"""Say how the rows of another system's file are to be read. Pure: options in, refusals in words out."""

from typing import Annotated, Literal

import msgspec

BLOCK_PREFIX = "import:"
"""Begins the block of everything imported. No agent's block can be called so: a colon is no part of a subject token."""

Known = Literal["up", "down"]
State = Literal["up", "down", "unknown"]


class Mapping(msgspec.Struct, frozen=True, kw_only=True):
    """What the columns mean. A column is named by its header or, from 1, by its number.

    ``sender`` names the columns of the sender's key, joined by ``joined_by``. ``shape`` finds groups in that key.
    ``state`` is the column with the state, whose values ``up``, ``down`` and ``unknown`` list in lower case; without
    one, every row has the state ``always``. ``gaps`` is what a sender was between two of its rows. ``time`` is auto,
    ms, us, ns or a pattern of strptime; ``zone`` holds where a time does not say its own. ``region`` and ``site`` are
    those of senders whose key does not tell.
    """

    source: Annotated[str, msgspec.Meta(min_length=1)]
    sender: tuple[str, ...]
    joined_by: str = "/"
    start: str
    stop: str
    state: str | None = None
    up: tuple[str, ...] = ("up", "1")
    down: tuple[str, ...] = ("down", "0")
    unknown: tuple[str, ...] = ()
    always: Known | None = None
    gaps: State = "unknown"
    shape: str = ""
    region: str = "imported"
    site: str = "imported"
    time: str = "auto"
    zone: str = "UTC"
    separator: Literal["auto", "comma", "semicolon", "tab", "space"] = "auto"
    columns: tuple[str, ...] = ()

    @property
    def block(self) -> str:
        """Give the block under which these senders stand in the tables."""
        return BLOCK_PREFIX + self.source


class ImportRefused(RuntimeError):
    """Nothing was imported, for a reason that a person can mend. The text is one line: what, where, what to do."""

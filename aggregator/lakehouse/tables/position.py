"""Say through which message of the hub's archive a table is complete."""

import msgspec


class HubPosition(msgspec.Struct, frozen=True):
    """Say through which message of the hub's archive a table is complete.

    ``created_at`` is the stream's creation: which past its sequences count in. ``known_through`` is the hub's time of
    the last message read, where known time ends; ``hub_time`` is that of the last message about the fleet
    (``archive/hub_clock.py``). Instants in microseconds; 0 where nothing was read yet.
    """

    stream: str
    created_at: int
    sequence: int
    known_through: int
    hub_time: int = 0


NOWHERE = HubPosition("", 0, 0, 0)
"""Where tables stand that were made of imports alone."""

"""Read what the reply subject of a delivered message says: which it is, when it was stored, what waits behind it."""

import msgspec


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """What a delivered message's reply subject says: ``stored_at`` in microseconds, ``pending`` behind it."""

    consumer_sequence: int
    sequence: int
    stored_at: int
    pending: int


def delivery_of(reply: str) -> Delivery:
    """Read the reply subject of a delivery; raise ValueError where it is none."""
    return Delivery(*delivery_numbers(reply))


def delivery_numbers(reply: str) -> tuple[int, int, int, int]:
    """Read the reply subject of a delivery, as plain numbers: what a name for each costs shows.

    ``$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<ns>.<pending>``
    """
    tokens = reply.split(".")
    sequence, consumer_sequence, stored_at, pending = tokens[5:] if len(tokens) == 9 else tokens[7:11]
    return int(consumer_sequence), int(sequence), int(stored_at) // 1000, int(pending)

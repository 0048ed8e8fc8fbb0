"""Read what the reply subject of a delivered message says: which it is, when it was stored, what waits behind it."""

from collections.abc import Mapping

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


_HEARTBEAT_STATUS = "100"
_ENDED_STATUSES = ("404", "408")
# With max_bytes set, a pull that was served whole ends with a 409 as well.
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_ENDED_DESCRIPTIONS = ("Batch Completed", _TOO_LARGE)


class PullStatus(msgspec.Struct, frozen=True):
    """What a status message says: ``delivered`` by the consumer's own count, what a pull that ended has ``left``.

    Where it is neither an end nor a heartbeat, the server will serve no pull any more, for the reason ``text``.
    """

    text: str
    is_heartbeat: bool = False
    delivered: int = 0
    is_end: bool = False
    left: int = 0
    is_too_large: bool = False


def pull_status(headers: Mapping[str, str]) -> PullStatus:
    """Read a status message's headers; raise ValueError where a count is none."""
    status, description = headers.get("Status", ""), headers.get("Description", "")
    if status == _HEARTBEAT_STATUS:
        return PullStatus(description, is_heartbeat=True, delivered=int(headers.get("Nats-Last-Consumer", 0)))
    is_end = status in _ENDED_STATUSES or description in _ENDED_DESCRIPTIONS
    left = int(headers.get("Nats-Pending-Messages", 0)) if is_end else 0
    return PullStatus(f"{status} {description}", is_end=is_end, left=left, is_too_large=description == _TOO_LARGE)

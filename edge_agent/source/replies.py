"""Read what the reply subject of a delivered message says: which it is, when it was stored, what waits behind it."""

from collections.abc import Mapping

import msgspec

from shared.decoding import WireError
from shared.identifiers import LARGEST_NUMBER


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """What a delivered message's reply subject says: ``stored_at`` in microseconds, ``pending`` behind it."""

    consumer_sequence: int
    sequence: int
    stored_at: int
    pending: int


def delivery_of(reply: str) -> Delivery:
    """Return what the reply subject of a delivery says; raise WireError if it is the subject of none."""
    try:
        return Delivery(*delivery_numbers(reply))
    except ValueError as error:
        raise WireError(f"not a delivery: {reply[:100]!r}") from error


def delivery_numbers(reply: str) -> tuple[int, int, int, int]:
    """Return the numbers in the reply subject of a delivery, unnamed, as this is called for each message.

    Raise ValueError if it is the subject of none.

    ``$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<ns>.<pending>``
    """
    tokens = reply.split(".")
    sequence, consumer_sequence, stored_at, pending = tokens[5:] if len(tokens) == 9 else tokens[7:11]
    first, second, third, fourth = numbers = int(consumer_sequence), int(sequence), int(stored_at) // 1000, int(pending)
    most = LARGEST_NUMBER
    # The store keeps 64 bits.
    if 0 <= first <= most and 0 <= second <= most and 0 <= third <= most and 0 <= fourth <= most:
        return numbers
    raise ValueError(f"numbers outside 0 to 2^53: {numbers}")


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

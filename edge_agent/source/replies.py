"""Read the status messages by which a server answers pull requests."""

from collections.abc import Mapping

import msgspec

_HEARTBEAT_STATUS = "100"
_ENDED_STATUSES = ("404", "408")
# With max_bytes set, a pull that was served whole ends with a 409 as well.
_TOO_LARGE = "Message Size Exceeds MaxBytes"
_ENDED_DESCRIPTIONS = ("Batch Completed", _TOO_LARGE)


class PullStatus(msgspec.Struct, frozen=True):
    """A status message: ``delivered`` is the consumer's sequence, ``left`` the unserved messages of an ended pull.

    If it is neither an end nor a heartbeat, the server serves no further pull, for the reason ``text``.
    """

    text: str
    is_heartbeat: bool = False
    delivered: int = 0
    is_end: bool = False
    left: int = 0
    is_too_large: bool = False


def pull_status(headers: Mapping[str, str]) -> PullStatus:
    """Return the status in a message's headers; raise ValueError if a count is not a number."""
    status, description = headers.get("Status", ""), headers.get("Description", "")
    if status == _HEARTBEAT_STATUS:
        return PullStatus(description, is_heartbeat=True, delivered=int(headers.get("Nats-Last-Consumer", 0)))
    is_end = status in _ENDED_STATUSES or description in _ENDED_DESCRIPTIONS
    left = int(headers.get("Nats-Pending-Messages", 0)) if is_end else 0
    return PullStatus(f"{status} {description}", is_end=is_end, left=left, is_too_large=description == _TOO_LARGE)

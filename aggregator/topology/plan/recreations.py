"""Tell which streams are to be made, or made again, since the server would not change them or goes on wrongly. Pure."""

from collections.abc import Iterable

from aggregator.topology.desired.model import Desired, DesiredStream, StreamKey
from aggregator.topology.observed.state import Found, beyond
from aggregator.topology.plan.differences import FieldChange, differences


def streams_to_recreate(wanted: Iterable[Desired], found: Found) -> set[StreamKey]:
    """List the streams that are to be made, or made again: also mirrors that hold an origin's past.

    That is one which is to be made again here, or was made anew or restored by somebody else.
    """
    to_recreate: set[StreamKey] = set()
    for each in wanted:
        if isinstance(each, DesiredStream):
            holds = each.key in found.streams and found.streams[each.key].state.last_seq > 0
            mirrors_one = each.config.get("mirror") and any(at.key in to_recreate for at in each.origins)
            if _needs_recreation(each, found) or (holds and mirrors_one) or _holds_another_past(each, found):
                to_recreate.add(each.key)
    return to_recreate


def _needs_recreation(wanted: DesiredStream, found: Found) -> bool:
    if wanted.place in found.unreachable:
        return False
    current = found.streams.get(wanted.key)
    if current is not None and current.is_sealed:
        return False
    return current is None or any(needs_another_stream(each) for each in differences(wanted.config, current.config))


def _holds_another_past(wanted: DesiredStream, found: Found) -> bool:
    current = found.streams.get(wanted.key)
    if current is None or not wanted.config.get("mirror"):
        return False
    return any(beyond(current, found.streams.get(origin.key)) for origin in wanted.origins)


def needs_another_stream(change: FieldChange) -> bool:
    """Tell what needs a new stream.

    The server lets a mirror become a stream of its own, but not turn back, and changes limits to interest and back.
    """
    if change.field == "mirror":
        return change.after is not None
    if change.field in ("deny_delete", "deny_purge"):
        return not change.after
    if change.field == "retention":
        return "workqueue" in (change.before, change.after)
    return change.field == "storage"

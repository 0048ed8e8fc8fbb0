"""Compare a stream's managed fields with what was found, and say what changing them would lose. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from aggregator.topology.desired.confinement import filters_of, is_confined
from aggregator.topology.desired.model import Config, Desired, DesiredStream, StreamKey
from aggregator.topology.observed.state import Found, FoundStream, api_of, beyond, is_same_source

_BEYOND = {
    "max_age": "older than the new max_age",
    "max_bytes": "beyond the new max_bytes",
    "max_msgs": "beyond the new max_messages",
    "max_msgs_per_subject": "of subjects that hold more than the new max_messages_per_subject",
}
NEARLY_FULL = 0.8
"""From which share of ``max_bytes`` on a stream that refuses what is new is told of."""
ASIDE = "muster.aside"
"""What a stream listens to below this while all its sources are set aside. To one with neither sources nor subjects the
server gives its own name, on which anyone could publish into it."""


class FieldChange(msgspec.Struct, frozen=True):
    """One managed field, in JetStream's words and units; None is not set."""

    field: str
    before: Any
    after: Any


def differences(wanted: Config, current: Config) -> Iterator[FieldChange]:
    """List the managed fields that are not as wanted, each source for itself."""
    for field, after in wanted.items():
        before = current.get(field)
        if field == "sources":
            yield from _source_differences(after, before or [])
        elif not _agrees(after, before):
            yield FieldChange(field, before or ([] if isinstance(after, list) else before), after)


def ignored_fields(asked: Config, kept: Config) -> Iterator[FieldChange]:
    """List what a server that answered OK has not made so: ``before`` is what it keeps, ``after`` what was asked."""
    for field, after in asked.items():
        before = kept.get(field)
        if field == "metadata":
            is_taken = _without_the_servers_own(after) == _without_the_servers_own(before)
        else:
            is_taken = _agrees(after, before)
        if not is_taken:
            yield FieldChange(field, before, after)


def _without_the_servers_own(metadata: Config | None) -> Config:
    return {key: said for key, said in (metadata or {}).items() if not key.startswith("_nats.")}


def fitting(wanted: Config, current: Config) -> Config:
    """Take along what nobody asked for and the server refuses beside what is wanted.

    That is a duplicate window longer than ``max_age``, and that a full subject refuses what is new where the stream
    lets go of what is old, or has no limit for a subject.
    """
    fitted, max_age = wanted, wanted.get("max_age", 0)
    if "duplicate_window" not in wanted and 0 < max_age < current.get("duplicate_window", 0):
        fitted = fitted | {"duplicate_window": max_age}
    merged = current | wanted
    refuses = merged.get("discard") == "new" and merged.get("max_msgs_per_subject", -1) > 0
    if current.get("discard_new_per_subject") and not refuses:
        fitted = fitted | {"discard_new_per_subject": False}
    return fitted


def source_pairs(wanted: list[Config], current: list[Config]) -> list[tuple[Config | None, Config | None]]:
    """Pair found sources with wanted ones, (found, wanted): None where there is no such one."""
    left = list(current)
    pairs: list[tuple[Config | None, Config | None]] = []
    for source in wanted:
        old = next((each for each in left if is_same_source(source, each)), None)
        if old is not None:
            left.remove(old)
        pairs.append((old, source))
    return [*pairs, *((each, None) for each in left)]


def losses(fields: Iterable[FieldChange], current: FoundStream) -> Iterator[str]:
    """Say what an update would lose now, not what it may let go of later."""
    fields = tuple(fields)
    after = current.config | {change.field: change.after for change in fields}
    yield from _refusals_when_full(after, current)
    for change in fields:
        if change.field.startswith("source ") and change.after is None:
            yield f"takes nothing more from {change.field.removeprefix('source ')}"
        elif change.field == "mirror" and change.after is None:
            yield f"takes nothing more from {change.before['name']} and goes its own way, for good"
        elif change.field == "subjects":
            gone = sorted(each for each in set(change.before) - set(change.after) if not each.startswith(f"{ASIDE}."))
            if gone:
                yield f"refuses messages on {', '.join(gone)}"
        elif _is_exceeded(change, current) and not _is_refused_instead(change, after):
            yield f"deletes messages {_BEYOND[change.field]}"


def _refusals_when_full(after: Config, current: FoundStream) -> Iterator[str]:
    """Tell that a stream which has more room, or lets go of its oldest, would soon refuse what is new."""
    before = current.config
    limit, limit_before = (each.get("max_bytes") or -1 for each in (after, before))
    is_eased = before.get("discard") == "new" and 0 < limit_before <= limit
    if after.get("discard") == "new" and not is_eased and 0 < limit * NEARLY_FULL < current.state.bytes:
        yield f"takes nothing more once it is full: {current.state.bytes / limit:.0%} of its new max_bytes is taken"


def _is_refused_instead(change: FieldChange, after: Config) -> bool:
    """Tell whether a stream beyond its limit takes nothing more, and lets go of nothing (nats-server 2.15)."""
    return change.field in ("max_bytes", "max_msgs") and after.get("discard") == "new"


def _is_exceeded(change: FieldChange, current: FoundStream) -> bool:
    """Tell whether a new limit is below what there is; what single subjects hold nobody says: taken to be so."""
    if change.field not in _BEYOND or change.after <= 0:
        return False
    if change.field == "max_age":
        return _reaches_back_further(current, change.after)
    if change.field == "max_msgs_per_subject":
        was_lower = change.before is not None and 0 < change.before < change.after
        return current.state.messages > 0 and not was_lower
    held = current.state.messages if change.field == "max_msgs" else current.state.bytes
    return bool(change.after < held)


def _source_differences(wanted: list[Config], current: list[Config]) -> Iterator[FieldChange]:
    """One change for each source that comes or goes, is confined, gets or loses its consumer.

    Where it starts counts for new ones alone.
    """
    for old, new in source_pairs(wanted, current):
        if old is None or new is None or not is_as_wanted(new, old):
            yield FieldChange(f"source {title(new or old or {})}", old, new)


def is_as_wanted(new: Config, old: Config) -> bool:
    """Tell whether a found source needs no change: where it starts is nothing that could be changed."""
    return (old.get("consumer") or None) == new.get("consumer") and not confines(new, old)


def confines(new: Config, old: Config) -> bool:
    """Tell whether a source shall be confined otherwise than it is, or for the first time.

    To the server that makes another source of it, which would take everything once more.
    """
    return is_confined(new) and new["subject_transforms"] != (old.get("subject_transforms") or [])


def title(source: Config) -> str:
    taken = ", ".join(filters_of(source))
    return f"{source['name']} of {api_of(source) or 'this domain'}{f' ({taken})' if taken else ''}"


def _agrees(after: Any, before: Any) -> bool:
    """Compare a managed value with the found one: nothing, empty and not set are the same."""
    if isinstance(after, dict) and isinstance(before, dict):
        return all(_agrees(value, before.get(key)) for key, value in after.items())
    if isinstance(after, list) and all(isinstance(each, str) for each in after):
        return sorted(after) == sorted(before or [])
    if isinstance(after, list) and isinstance(before, list) and len(after) == len(before):
        return all(_agrees(*each) for each in zip(after, before, strict=True))
    return bool(after == before or (not after and not before))


def _reaches_back_further(current: FoundStream, max_age: int) -> bool:
    if not current.state.messages:
        return False
    return current.state.first_ts < current.ts - max_age // 1000


def streams_to_recreate(wanted: Iterable[Desired], found: Found) -> set[StreamKey]:
    """List the streams that are to be made, or made again: also mirrors that hold an origin's past.

    That is an origin which is to be made again here, or was recreated or restored by others.
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
    """Return True if a change needs a new stream.

    The server lets a mirror become a stream of its own, but not turn back, and changes limits to interest and back.
    """
    if change.field == "mirror":
        return change.after is not None
    if change.field in ("deny_delete", "deny_purge"):
        return not change.after
    if change.field == "retention":
        return "workqueue" in (change.before, change.after)
    return change.field == "storage"

"""Compare what should be with what was found, and list the changes in their order. Pure.

A change that would lose messages, or cut a flow, says so in ``destroys``; whoever applies the plan refuses those
unless told otherwise. Only managed fields are compared; an update carries everything else back as it was found.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from aggregator.topology.desired import (
    DURABLE_SOURCING_LEVEL,
    Config,
    Desired,
    DesiredConsumer,
    DesiredStream,
    Place,
)
from aggregator.topology.found import Found, FoundStream, source_key
from shared.instants import parse_instant

_UNCHANGEABLE = ("storage", "retention", "mirror")
_UNCHANGEABLE_OF_CONSUMERS = ("ack_policy",)
_SET_BY_START = ("opt_start_seq", "opt_start_time", "filter_subject", "subject_transforms")


class Action(StrEnum):
    """What is done to a stream or consumer."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"


class FieldChange(msgspec.Struct, frozen=True):
    """One managed field, in JetStream's words and units; None is not set."""

    field: str
    before: Any
    after: Any


class Change(msgspec.Struct, frozen=True):
    """One step. ``config`` is what is sent, whole; ``consumer`` is "" where the stream itself is meant."""

    action: Action
    place: Place
    stream: str
    consumer: str
    fields: tuple[FieldChange, ...]
    config: Config
    destroys: str = ""


class Plan(msgspec.Struct, frozen=True):
    """The steps from found to desired, and for each place that cannot be planned for, why."""

    changes: tuple[Change, ...]
    problems: dict[Place, str]

    @property
    def destructive(self) -> tuple[Change, ...]:
        """The steps that lose messages or cut a flow."""
        return tuple(change for change in self.changes if change.destroys)


def plan(wanted: Iterable[Desired], found: Found) -> Plan:
    """List what is to be done, origins first, deletions last; a place that does not answer is left alone."""
    problems = dict(found.unreachable)
    changes: list[Change] = []
    for each in wanted:
        if each.place in problems:
            continue
        if isinstance(each, DesiredStream):
            changes.extend(_stream_changes(each, found))
        elif each.wanted and found.levels.get(each.place, 0) < DURABLE_SOURCING_LEVEL:
            problems[each.place] = (
                "its nats-server is too old for durable sourcing (2.14 has it):"
                ' update it, or set sourcing = "plain" in [archive]'
            )
        else:
            changes.extend(_consumer_changes(each, found))
    return Plan(tuple(sorted(changes, key=lambda change: change.action is Action.DELETE)), problems)


def _stream_changes(wanted: DesiredStream, found: Found) -> Iterator[Change]:
    current = found.streams.get((wanted.place, wanted.name))
    if current is None:
        config = {key: value for key, value in wanted.config.items() if value != []}
        fields = tuple(FieldChange(key, None, value) for key, value in config.items() if key != "name")
        yield Change(Action.CREATE, wanted.place, wanted.name, "", fields, config)
        return
    fields = tuple(_differences(wanted.config, current.config))
    if not fields:
        return
    if any(change.field in _UNCHANGEABLE for change in fields):
        config = {key: value for key, value in wanted.config.items() if value != []}
        loss = f"deletes its {current.state.messages:,} messages" if current.state.messages else ""
        yield Change(Action.REPLACE, wanted.place, wanted.name, "", fields, config, loss)
        return
    config = current.config | wanted.config
    if "sources" in wanted.config:
        config["sources"] = _merged_sources(wanted.config["sources"], current, found)
    losses = ", ".join(_losses(fields, current))
    yield Change(Action.UPDATE, wanted.place, wanted.name, "", fields, config, losses)


def _consumer_changes(wanted: DesiredConsumer, found: Found) -> Iterator[Change]:
    current = found.consumers.get((wanted.place, wanted.stream, wanted.name))
    if current is None:
        if wanted.wanted:
            config = wanted.config | _start(wanted, found)
            fields = tuple(FieldChange(key, None, value) for key, value in config.items())
            yield Change(Action.CREATE, wanted.place, wanted.stream, wanted.name, fields, config)
        return
    if not wanted.wanted:
        yield Change(Action.DELETE, wanted.place, wanted.stream, wanted.name, (), {})
        return
    fields = tuple(_differences(wanted.config, current.config))
    if any(change.field in _UNCHANGEABLE_OF_CONSUMERS for change in fields):
        config = wanted.config | _start(wanted, found)
        yield Change(Action.REPLACE, wanted.place, wanted.stream, wanted.name, fields, config)
    elif fields:
        config = current.config | wanted.config
        yield Change(Action.UPDATE, wanted.place, wanted.stream, wanted.name, fields, config)


def _start(wanted: DesiredConsumer, found: Found) -> Config:
    """Say where the archive's consumer starts: behind what a plain source has taken already, else with everything.

    A source that gets a consumer is a new one to the server: without this, it would take everything once more.
    """
    archive = found.streams.get(wanted.archive)
    key = (wanted.stream, wanted.place.api)
    if archive is None or any(source_key(each) == key and each.get("consumer") for each in _sources(archive)):
        return {"deliver_policy": "all"}
    taken = found.taken(archive, key)
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": taken + 1} if taken else {"deliver_policy": "all"}


def _sources(stream: FoundStream) -> list[Config]:
    return stream.config.get("sources") or []


def _merged_sources(wanted: list[Config], current: FoundStream, found: Found) -> list[Config]:
    """Lay the wanted sources over the found ones, keeping what an operator added to them.

    A source that loses its consumer starts behind what it had taken; one that gets one must not say where to start.
    """
    before = {source_key(source): source for source in _sources(current)}
    merged = []
    for source in wanted:
        key = source_key(source)
        old = dict(before.get(key, {}))
        if "consumer" in source:
            old = {name: value for name, value in old.items() if name not in _SET_BY_START}
        elif old.pop("consumer", None):
            old["opt_start_seq"] = found.taken(current, key) + 1
        external = (old.get("external") or {}) | source.get("external", {})
        merged.append(old | source | ({"external": external} if external else {}))
    return merged


def _differences(wanted: Config, current: Config) -> Iterator[FieldChange]:
    for field, after in wanted.items():
        before = current.get(field)
        if field == "sources":
            yield from _source_differences(after, before or [])
        elif isinstance(after, dict) and isinstance(before, dict):
            if any(before.get(key) != value for key, value in after.items()):
                yield FieldChange(field, before, after)
        elif isinstance(after, list) and sorted(after) != sorted(before or []):
            yield FieldChange(field, before or [], after)
        elif not isinstance(after, list) and after != before and (after or before):
            yield FieldChange(field, before, after)


def _source_differences(wanted: list[Config], current: list[Config]) -> Iterator[FieldChange]:
    """One change for each source that comes, goes, or gets or loses its consumer."""
    before = {source_key(source): source for source in current}
    after = {source_key(source): source for source in wanted}
    for key in [*after, *(key for key in before if key not in after)]:
        old, new = before.get(key), after.get(key)
        if old is None or new is None or (old.get("consumer") or None) != new.get("consumer"):
            yield FieldChange(f"source {key[0]} of {key[1] or 'this domain'}", old, new)


def _losses(fields: Iterable[FieldChange], current: FoundStream) -> Iterator[str]:
    """Say what an update would lose now, not what it may let go of later."""
    for change in fields:
        if change.field.startswith("source ") and change.after is None:
            yield f"takes nothing more from {change.field.removeprefix('source ')}"
        elif change.field == "subjects":
            gone = sorted(set(change.before) - set(change.after))
            if gone:
                yield f"refuses messages on {', '.join(gone)}"
        elif change.field == "max_age" and _reaches_back_further(current, change.after):
            yield "deletes messages older than the new max_age"
        elif change.field == "max_bytes" and 0 < change.after < current.state.bytes:
            yield "deletes messages beyond the new max_bytes"


def _reaches_back_further(current: FoundStream, max_age: int) -> bool:
    if not max_age or not current.state.messages:
        return False
    return parse_instant(current.state.first_ts) < parse_instant(current.ts) - max_age // 1000

"""Decide which copies are durable, and say what that makes of them. Pure.

A durable copy reads through a consumer that was made for it at its origin: this keeps its place while the link is down,
and is back within seconds (ADR-60, nats-server 2.14). Where to start and what to take then belong to that consumer, and
the server refuses them in the source itself. Where a server is older, the copy is plain.
"""

from collections.abc import Iterable

import msgspec

from aggregator.topology.desired.model import Config, Copying, Desired, DesiredConsumer, DesiredStream, StreamKey
from aggregator.topology.observed.state import (
    Found,
    consumer_name_of,
    copies_of,
    is_same_source,
    origin_place,
    sources_of,
)
from aggregator.topology.plan.differences import source_pairs, streams_to_recreate

LEVEL = 4
"""JetStream's API level that knows durable sourcing."""

_OF_THE_CONSUMER = ("opt_start_seq", "opt_start_time", "filter_subject")


def with_durable_sources(wanted: Iterable[Desired], found: Found) -> tuple[Desired, ...]:
    """Decide for each copy whether it is durable, by what the servers know, and lay that down in both its ends."""
    wanted = tuple(wanted)
    made = {each.key for each in wanted if isinstance(each, DesiredStream)}
    decided = [
        msgspec.structs.replace(each, wanted=_is_durable(each, each.copying, made, found))
        if isinstance(each, DesiredConsumer) and each.copying is not None
        else each
        for each in wanted
    ]
    durable: dict[StreamKey, list[DesiredConsumer]] = {}
    for each in decided:
        if isinstance(each, DesiredConsumer) and each.copying is not None and each.wanted:
            durable.setdefault(each.copying.key, []).append(each)
    return tuple(
        _with_consumers(each, durable.get(each.key, [])) if isinstance(each, DesiredStream) else each
        for each in decided
    )


def undecided(wanted: Iterable[Desired], found: Found) -> tuple[Desired, ...]:
    """Leave what is copied as it was found, consumer and transforms, where its origin's place does not answer.

    Its consumer can be neither made nor moved now. Were the source changed without, it would read through one that
    nobody makes, and a later plan would take that for its own: all that the origin holds would come once more. That is
    right for a stream which is made again, and begins as it is told.
    """
    wanted = tuple(wanted)
    left = [_as_found(each, found) if isinstance(each, DesiredStream) else each for each in wanted]
    to_recreate = streams_to_recreate(left, found)
    return tuple(
        each if isinstance(each, DesiredStream) and each.key in to_recreate else as_found
        for each, as_found in zip(wanted, left, strict=True)
    )


def _as_found(stream: DesiredStream, found: Found) -> DesiredStream:
    current = found.streams.get(stream.key)
    if current is None:
        return stream
    config = dict(stream.config)
    if config.get("sources"):
        config["sources"] = [
            old if old is not None and origin_place(stream.place, new) in found.unreachable else new
            for old, new in source_pairs(config["sources"], sources_of(current))
            if new is not None
        ]
    new, old = config.get("mirror"), current.config.get("mirror")
    if new and old and is_same_source(new, old) and consumer_name_of(new) != consumer_name_of(old):
        config["mirror"] = old if origin_place(stream.place, new) in found.unreachable else new
    return msgspec.structs.replace(stream, config=config)


def _is_durable(wanted: DesiredConsumer, copying: Copying, made: set[StreamKey], found: Found) -> bool:
    """Tell whether a copy is to be durable; what cannot be decided now stays as it is."""
    if not wanted.wanted:
        return False
    answered = found.levels.keys() - found.unreachable.keys()
    levels = [found.levels[place] for place in (wanted.place, copying.place) if place in answered]
    if any(level < LEVEL for level in levels):
        return False
    stream, origin = found.streams.get(copying.key), wanted.stream_key
    copies = copies_of(stream.config) if stream is not None else []
    current = next((each for each in copies if is_same_source(copying.source, each)), None)
    # Without its origin there is nothing at which to make a consumer; a plain source waits for one.
    is_there = wanted.place in found.unreachable or origin in made or origin in found.streams
    if current is not None and (len(levels) < 2 or not is_there):
        return bool(current.get("consumer"))
    return is_there


def _with_consumers(stream: DesiredStream, consumers: list[DesiredConsumer]) -> DesiredStream:
    config = dict(stream.config)
    for each in consumers:
        assert each.copying is not None
        plain = each.copying.source
        if config.get("mirror") == plain:
            config["mirror"] = _durable(plain, each)
        else:
            config["sources"] = [_durable(plain, each) if it == plain else it for it in config["sources"]]
    return msgspec.structs.replace(stream, config=config)


def _durable(plain: Config, consumer: DesiredConsumer) -> Config:
    """Give the durable form of a source: a filter becomes a transform without a destination, which only filters.

    It could be left out; but with it the server tells sources of one origin apart in what it reports.
    """
    form = {key: None if key in _OF_THE_CONSUMER else value for key, value in plain.items()}
    if plain.get("filter_subject"):
        form["subject_transforms"] = [{"src": plain["filter_subject"], "dest": ""}]
    return form | {"consumer": {"name": consumer.name, "deliver_subject": consumer.config["deliver_subject"]}}

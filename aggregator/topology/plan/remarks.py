"""Say what else to know before a stream is changed: what comes once more, what it copies that is not there. Pure."""

from collections.abc import Iterable, Iterator

from aggregator.topology.desired.confinement import is_confined, number_of
from aggregator.topology.desired.model import Config, Desired, DesiredStream, StreamKey
from aggregator.topology.observed.state import (
    Found,
    FoundStream,
    api_of,
    consumer_name_of,
    copies_of,
    origin_place,
    sources_of,
)
from aggregator.topology.plan.differences import is_as_wanted, source_pairs
from shared.nats.jetstream_api import domain_of

_TWICE = "what comes in while this is applied may be taken twice"


def remarks(wanted: DesiredStream, current: FoundStream, found: Found) -> str:
    """Put them into one line, "" where nothing was taken yet."""
    pairs = source_pairs(wanted.config.get("sources") or [], sources_of(current)) if current.state.last_seq else ()
    said = (_remark(wanted, old, new, found) for old, new in pairs if new is not None)
    return "; ".join(dict.fromkeys(filter(None, said)))


def absences(wanted: Iterable[Desired], found: Found) -> Iterator[tuple[StreamKey, str]]:
    """List the streams that shall copy what nobody has or makes: servers accept that, and a name may be mistyped."""
    streams = [each for each in wanted if isinstance(each, DesiredStream)]
    answered = found.levels.keys() - found.unreachable.keys()
    known = found.streams.keys() | {each.key for each in streams}
    for stream in streams:
        absent = [
            f"there is no {origin.name} at {origin.place}"
            for origin in stream.origins
            if origin.place in answered and origin.key not in known
        ]
        if absent:
            yield stream.key, f"{', '.join(absent)}: it takes nothing from there until there is"


def silent_origins(wanted: DesiredStream, found: Found) -> str:
    """Name the places without an answer at which a stream that is made reads through a consumer.

    One that is left there from a stream before it has been acknowledged what that took, and gives it to nobody again.
    """
    copies = copies_of(wanted.config)
    places = (origin_place(wanted.place, each) for each in copies if consumer_name_of(each))
    return ", ".join(str(place) for place in dict.fromkeys(places) if place in found.unreachable)


def _remark(wanted: DesiredStream, old: Config | None, new: Config, found: Found) -> str:
    origin_name = f"{new['name']} of {domain_of(api_of(new)) or api_of(new) or wanted.place}"
    restored = f"{origin_name} was restored: all that it holds comes once more"
    if old is not None and found.is_wanted_again(wanted.key, old):
        return f"all that {origin_name} holds comes once more"
    if _number(new) > (_number(old) if old is not None else 1):
        return restored
    if old is None or is_as_wanted(new, old):
        return ""
    origin = found.origin(wanted.key, old)
    is_empty = origin is not None and not origin.state.last_seq
    if is_empty or found.resumes_behind(wanted.key, old):
        return _TWICE
    if found.taken(wanted.key, old):
        return restored
    return f"it is not known how much of {origin_name} was taken: all that it holds comes once more"


def _number(source: Config) -> int:
    return number_of(source) if is_confined(source) else 1

"""Refuse copies that NATS accepts and does not keep its word on, unless the settings say ``allow = true``. Pure.

Source: "Source and Mirror Streams" of the NATS documentation, sections on WorkQueue and Interest retention. The server
itself refuses nothing.

Refused, too, is to begin with a region whose FLEET gathers another region of the file: the archive stores whatever
comes from a region below that region, and would hold the other's records under a name that is not theirs. Of what else
a FLEET gathers, and of a region that is copied already, there is only a warning: a region, whom nobody has to trust,
must not keep the hub from being changed by a source that it adds.
"""

from collections.abc import Iterable, Iterator

from aggregator.topology.desired.confinement import confinement_of, is_confined, taken_subjects
from aggregator.topology.desired.model import Config, Desired, DesiredStream
from aggregator.topology.observed.state import Found, is_same_source, origin_place, sources_of
from aggregator.topology.plan.differences import title

_REMEDY = "give it retention limits, or say allow = true where it is copied"


def refusals(wanted: Iterable[Desired], found: Found) -> Iterator[str]:
    """Say, one line each, which copies are refused and why."""
    streams = [each for each in wanted if isinstance(each, DesiredStream)]
    retentions = {(each.place.domain, each.name): each.config["retention"] for each in streams}
    for stream in streams:
        for origin in stream.origins:
            existing = found.streams.get(origin.key)
            retention = existing.config.get("retention") if existing is not None else None
            retention = retentions.get((origin.place.domain, origin.name), retention)
            why = "" if origin.allow else _why(retention, stream.place.domain != origin.place.domain)
            if why:
                yield f"{stream.place}: {stream.name} shall copy {origin.name} of {origin.place}, {why}: {_REMEDY}"
        yield from _conflicts(stream, found, refused=True)


def gatherings(wanted: Iterable[Desired], found: Found) -> Iterator[str]:
    """Say, one line each, what regions gather besides that, which is no reason to change nothing."""
    for stream in wanted:
        if isinstance(stream, DesiredStream):
            yield from _conflicts(stream, found, refused=False)


def _conflicts(stream: DesiredStream, found: Found, *, refused: bool) -> Iterator[str]:
    for source in stream.config.get("sources") or ():
        for each in _gathered(stream, source, found, refused=refused):
            yield _conflict_text(stream, source, each)


def _gathered(stream: DesiredStream, source: Config, found: Found, *, refused: bool) -> Iterator[Config]:
    """Look for what a region's stream gathers from elsewhere and does not store below that region."""
    own = confinement_of(source)
    origin = found.origin(stream.key, source) if own else None
    if origin is None:
        return
    place = origin_place(stream.place, source)
    regions = [each for each in stream.config["sources"] if confinement_of(each) and each != source]
    others = {(origin_place(stream.place, each), each["name"]) for each in regions}
    is_copied = _is_copied(stream, source, found)
    for each in sources_of(origin):
        stored = [kept or taken for taken, kept in taken_subjects(each)] or [confinement_of(each)]
        is_refused = not is_copied and (origin_place(place, each), each["name"]) in others
        if is_refused is refused and not all(f"{subject}.".startswith(f"{own}.") for subject in stored):
            yield each


def _is_copied(stream: DesiredStream, source: Config, found: Found) -> bool:
    """Tell whether a region is copied already, and confined."""
    current = found.streams.get(stream.key)
    sources = sources_of(current) if current is not None else []
    return any(is_same_source(source, each) and is_confined(each) for each in sources)


def _conflict_text(stream: DesiredStream, source: Config, gathered: Config) -> str:
    own = confinement_of(source)
    return (
        f"{stream.place}: {stream.name} shall copy {title(source)}, which itself takes {title(gathered)}:"
        f" {stream.name} stores all of that below {own}: let it take only {own}.> there, and give where the rest comes"
        " from a [[region]] of its own"
    )


def _why(retention: str | None, crosses_a_leaf_link: bool) -> str:
    if retention == "interest":
        return "whose retention is interest: what comes while nobody reads, the copy included, is lost"
    if retention == "workqueue" and crosses_a_leaf_link:
        return (
            "a workqueue behind a leaf link: while the link is down others may take and remove what the copy then lacks"
        )
    return ""

"""Refuse copies that NATS accepts and does not keep its word on, unless the settings say ``allow = true``. Pure.

Source: "Source and Mirror Streams" of the NATS documentation, sections on WorkQueue and Interest retention. The server
itself refuses nothing.

Refused, too, is a FLEET that somebody lets gather other regions': the archive stores whatever comes from a region below
that region, and would hold the others' records under a name that is not theirs.
"""

from collections.abc import Iterable, Iterator

from aggregator.topology.confinement import confinement_of
from aggregator.topology.differences import title
from aggregator.topology.found import Found, sources_of, taken_subjects
from aggregator.topology.words import Config, Desired, DesiredStream, Origin

_REMEDY = "give it retention limits, or say allow = true where it is copied"


def refusals(wanted: Iterable[Desired], found: Found) -> Iterator[str]:
    """Say, one line each, which copies are refused and why."""
    streams = [each for each in wanted if isinstance(each, DesiredStream)]
    retentions = {(each.place.domain, each.name): each.config["retention"] for each in streams}
    for stream in streams:
        for origin in stream.origins:
            existing = found.streams.get((origin.place, origin.name))
            retention = existing.config.get("retention") if existing is not None else None
            retention = retentions.get((origin.place.domain, origin.name), retention)
            why = "" if origin.allow else _why(retention, _crosses_a_leaf_link(stream, origin))
            if why:
                yield f"{stream.place}: {stream.name} shall copy {origin.name} of {origin.place}, {why}: {_REMEDY}"
        for source in stream.config.get("sources") or ():
            yield from _gathered(stream, source, found)


def _gathered(stream: DesiredStream, source: Config, found: Found) -> Iterator[str]:
    """Look for what a region's stream gathers from elsewhere and does not store below that region."""
    own = confinement_of(source)
    origin = found.origin((stream.place, stream.name), source) if own else None
    for each in sources_of(origin) if origin is not None else ():
        stored = [kept or taken for taken, kept in taken_subjects(each)] or [confinement_of(each)]
        if not all(f"{subject}.".startswith(f"{own}.") for subject in stored):
            yield (
                f"{stream.place}: {stream.name} shall copy {title(source)}, which itself takes {title(each)}:"
                f" {stream.name} would store all of that below {own}: let it take only {own}.> there, and give where"
                " the rest comes from a [[region]] of its own"
            )


def _why(retention: str | None, crosses: bool) -> str:
    if retention == "interest":
        return "whose retention is interest: what comes while nobody reads, the copy included, is lost"
    if retention == "workqueue" and crosses:
        return (
            "a workqueue behind a leaf link: while the link is down others may take and remove what the copy then lacks"
        )
    return ""


def _crosses_a_leaf_link(stream: DesiredStream, origin: Origin) -> bool:
    return stream.place.domain != origin.place.domain

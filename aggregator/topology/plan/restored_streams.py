"""Take a region's FLEET anew that was restored from an older copy, or of which the archive lost something. Pure.

Restored, it uses sequences again that its archive has taken. The server takes what stands there for old, and leaves it
out until FLEET has grown past it: no error, no lag (tried on 2.15.1). Nor does it ever go back for what the archive
lost. A source with other transforms is another one to it; one of the same effect, whose consumer begins from the start,
brings all that FLEET holds once more, which readers count once.

While such a source is set aside, the archive's metadata says which it is. An apply may end there; the next one takes up
that one, whose consumer begins from the start: the server would know the others, and go on where they were.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.desired.confinement import confinement_of, is_confined, number_of, numbered
from aggregator.topology.desired.model import Config, Desired, DesiredConsumer, DesiredStream, StreamKey
from aggregator.topology.observed.state import Found, FoundStream, is_same_source, origin_place, sources_of
from shared.subjects import ROOT

_NUMBER_KEY = "muster.anew."


def copies_to_restart(wanted: Iterable[Desired], found: Found) -> Iterator[Desired]:
    """Lay down how each region is confined: as found, or anew where its source is ahead or it is wanted again."""
    for each in wanted:
        if isinstance(each, DesiredStream) and each.config.get("sources"):
            yield msgspec.structs.replace(each, config=each.config | _laid_down_all(each, found))
        elif isinstance(each, DesiredConsumer) and each.copying is not None:
            source = _laid_down(each.copying.key, each.copying.source, found)
            yield msgspec.structs.replace(each, copying=msgspec.structs.replace(each.copying, source=source))
        else:
            yield each


def not_copied(found: Found) -> Iterator[str]:
    """Say, one line each, what was wanted again and cannot be taken so: its source is not there, as when set aside.

    A stream that is not there either begins from the start.
    """
    for copier, (place, name) in sorted(found.again):
        current = found.streams.get(copier)
        if current is None or copier[0] in found.unreachable or place in found.unreachable:
            continue
        if (place, name) not in {(origin_place(copier[0], each), each["name"]) for each in sources_of(current)}:
            yield f"{copier[0]}: {copier[1]} does not copy {name} of {place}: apply first, then once more with --again"


def mark_of(source: Config) -> Config:
    """Give what a stream's metadata says of a confined source that is set aside."""
    return {_key_of(source): str(number_of(source))}


def marked(stream: FoundStream, source: Config) -> int:
    """Give the number under which a missing source is to be taken up, from the start; 0 where nothing says so."""
    if not is_confined(source) or any(_is_confined_alike(source, each) for each in sources_of(stream)):
        return 0
    said = str((stream.config.get("metadata") or {}).get(_key_of(source), ""))
    return int(said) if said.isdecimal() else 0


def unmarked(metadata: Config, sources: Iterable[Config]) -> Config:
    """Leave out what metadata says of sources that are there again."""
    keys = {_key_of(each) for each in sources if is_confined(each)}
    return {key: value for key, value in metadata.items() if key not in keys}


def _laid_down_all(stream: DesiredStream, found: Found) -> Config:
    current = found.streams.get(stream.key)
    ready = [
        source
        for source in stream.config["sources"]
        # Its consumer, which has to begin from the start, cannot be made while its region does not answer.
        if current is None or not marked(current, source) or origin_place(stream.place, source) not in found.unreachable
    ]
    sources = [_laid_down(stream.key, source, found) for source in ready]
    if current is not None and not sources:
        return {"sources": sources, "subjects": current.config.get("subjects") or []}
    return {"sources": sources}


def _laid_down(copier: StreamKey, source: Config, found: Found) -> Config:
    stream = found.streams.get(copier)
    if stream is None or not is_confined(source):
        return source
    number = marked(stream, source) or 1
    for current in sources_of(stream):
        if _is_confined_alike(source, current):
            is_recreation = found.ahead(copier, current) or found.is_wanted_again(copier, current)
            number = number_of(current) + bool(is_recreation)
    return source | {"subject_transforms": numbered(source, number)}


def _is_confined_alike(source: Config, current: Config) -> bool:
    return confinement_of(current) == confinement_of(source) and is_same_source(source, current)


def _key_of(source: Config) -> str:
    return _NUMBER_KEY + confinement_of(source).removeprefix(f"{ROOT}.")

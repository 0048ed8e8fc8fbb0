"""Name what somebody set on our streams that breaks what they promise, and how it is mended. Pure.

Records lie under their own subjects, all of them, until they are too old, and nobody writes them but those who may.
What else is set by hand does no harm, and is not looked at: placement, descriptions, protection from deletes.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from aggregator.topology.desired.confinement import is_confined, taken_subjects
from aggregator.topology.desired.model import HUB, Config, Desired, DesiredStream
from aggregator.topology.observed.state import Found, copies_of, origin_place, sources_of
from aggregator.topology.plan.differences import source_pairs, title
from shared.instants import format_duration
from shared.policy import EVERY_REVISION
from shared.sizes import format_size
from shared.subjects import ROOT, covers, overlap

_DEFAULT_WINDOW = 120 * 10**9
"""In nanoseconds."""
_LARGEST_RECORD = 1 << 20
"""What a server takes unless its ``max_payload`` says otherwise."""
_MOST_PENDING = 1000
"""What the consumers of durable copies ask for."""
_TAKEN_FOR_OURS = (f"{ROOT}.>", EVERY_REVISION, "muster.probe.>")


class Harm(NamedTuple):
    """What is wrong of a stream, as a sentence that begins with its name.

    ``mended`` is what apply sets, {} where only a person can; ``loses``: records are lost, hidden or forged.
    """

    field: str
    text: str
    mended: Config
    loses: bool = True


def harms(wanted: DesiredStream, config: Config) -> Iterator[Harm]:
    """List what is wrong of one of our streams; of one that is freely laid out nothing is."""
    if not wanted.carries:
        return
    is_at_site = wanted.place.connection != HUB
    transform, again = config.get("subject_transform"), config.get("republish")
    if transform and any(overlap(transform.get("src") or ">", each) for each in wanted.carries):
        how = f"{transform.get('src') or '>'} as {transform['dest']}"
        text = f"stores what it takes under other subjects ({how}), where nobody looks for it"
        # At a site it may be meant so, and its agent be told.
        yield Harm("subject_transform", text, {} if is_at_site else {"subject_transform": None}, not is_at_site)
    if again and any(overlap(_as_pattern(again["dest"]), each) for each in _TAKEN_FOR_OURS):
        text = f"publishes what it stores once more as {again['dest']}, where that is taken for another's word"
        yield Harm("republish", text, {"republish": None})
    if not is_at_site:
        yield from _of_ours(wanted, config)
        yield from _of_copies(wanted, config)


def found_harms(wanted: Iterable[Desired], found: Found) -> Iterator[tuple[DesiredStream, Harm]]:
    """List what is wrong of all streams that were found, but what is said of a region that is confined anyhow."""
    streams = [each for each in wanted if isinstance(each, DesiredStream)]
    confined = {
        (origin_place(each.place, source), source["name"])
        for each in streams
        for source in each.config.get("sources") or ()
        if is_confined(source)
    }
    for each in streams:
        current = found.streams.get(each.key)
        for harm in harms(each, current.config) if current is not None else ():
            if harm.field != "sources" or each.key not in confined:
                yield each, harm
        for source, new in source_pairs(each.config.get("sources") or [], sources_of(current) if current else []):
            if source and new is None and each.carries and "sources" in each.config:
                yield each, Harm("sources", f"takes {title(source)} besides", {"sources": None}, loses=False)


def _of_ours(wanted: DesiredStream, config: Config) -> Iterator[Harm]:
    listens, size = bool(wanted.config.get("subjects")), config.get("max_msg_size") or -1
    if listens and config.get("no_ack"):
        yield Harm("no_ack", "acknowledges nothing, so that nobody knows what it stored", {"no_ack": False})
    if 0 < size < _LARGEST_RECORD and listens:
        text = f"takes nothing larger than {format_size(size)}: larger records stay at their sites"
        yield Harm("max_msg_size", text, {}, loses=False)
    elif 0 < size < _LARGEST_RECORD:
        text = f"takes nothing larger than {format_size(size)}, and copies nothing that comes behind a larger message"
        yield Harm("max_msg_size", text, {"max_msg_size": -1})
    if (most := config.get("max_msgs_per_subject") or -1) > 0:
        text = f"keeps {most:,} messages of a subject, which all advisories of a kind of a block share"
        yield Harm("max_msgs_per_subject", text, {"max_msgs_per_subject": -1})
    if config.get("allow_rollup_hdrs"):
        text = "lets one message remove all before it (Nats-Rollup)"
        yield Harm("allow_rollup_hdrs", text, {"allow_rollup_hdrs": False}, loses=False)
    yield from _of_lifetimes(wanted, config)
    if (most := config.get("max_consumers") or -1) > 0:
        text = f"has no more than {most:,} consumers (max_consumers): those of copies and readers are refused"
        yield Harm("max_consumers", text, {"max_consumers": -1}, loses=False)
    limits = config.get("consumer_limits") or {}
    if limits.get("inactive_threshold") or 0 < limits.get("max_ack_pending", 0) < _MOST_PENDING:
        text = "limits its consumers (consumer_limits): those of copies go while nobody reads, or are refused"
        yield Harm("consumer_limits", text, {"consumer_limits": None}, loses=False)


def _of_lifetimes(wanted: DesiredStream, config: Config) -> Iterator[Harm]:
    """List what lets single records go, or not come, by themselves."""
    if config.get("allow_msg_ttl"):
        text = "lets a message say when it goes (Nats-TTL), and no server takes that back"
        yield Harm("allow_msg_ttl", text, {}, loses=False)
    if config.get("subject_delete_marker_ttl"):
        text = "puts markers of its own among the records when old ones go (subject_delete_marker_ttl)"
        yield Harm("subject_delete_marker_ttl", text, {"subject_delete_marker_ttl": 0}, loses=False)
    if (most := config.get("max_msgs") or -1) > 0 and config.get("discard") != "new":
        text = f"keeps its newest {most:,} messages (max_msgs), and lets go of others whoever has yet to read them"
        yield Harm("max_msgs", text, {}, loses=False)
    # Servers before 2.14 give every stream their default, whatever is asked for.
    if wanted.config.get("sources") and config.get("duplicate_window", 0) not in (0, _DEFAULT_WINDOW):
        window = format_duration(config["duplicate_window"] // 1_000)
        text = f"takes no message whose id it has seen within {window} (duplicate_window), also of another region"
        yield Harm("duplicate_window", text, {"duplicate_window": 0})


def _of_copies(wanted: DesiredStream, config: Config) -> Iterator[Harm]:
    for copied in copies_of(config):
        renamed = [f"{taken} as {kept}" for taken, kept in taken_subjects(copied) if kept not in ("", taken)]
        if renamed and not wanted.config.get("subjects"):
            text = f"stores what it copies of {copied['name']} under other subjects ({', '.join(renamed)})"
            yield Harm("subject_transforms", f"{text}, where nobody looks for it", {})
    if "sources" not in wanted.config and not wanted.config.get("mirror"):
        for source in config.get("sources") or ():
            stored = [kept or taken for taken, kept in taken_subjects(source)] or [">"]
            if not all(any(covers(own, _as_pattern(each)) for own in wanted.carries) for each in stored):
                yield Harm("sources", f"takes {title(source)} besides, which is not its own", {}, loses=False)


def _as_pattern(destination: str) -> str:
    """Write a transform's destination as what it can come to: ``{{wildcard(1)}}`` and ``$1`` stand for any token."""
    return ".".join("*" if each.startswith(("{{", "$")) else each for each in destination.split("."))

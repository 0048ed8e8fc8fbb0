"""Compare what should be with what was found, and list the changes in their order. Pure.

A change that would lose messages, or cut a flow, says so in ``destroys``; whoever applies the plan refuses those
unless told otherwise. Only managed fields are compared; an update carries everything else back as it was found.

Consumers that apply once made and that serve no reader any more are known by their content, not by their names alone: a
site's shows just that site's policy, a relay's names the relay in its metadata, and a copy's delivers to a subject that
names the copy. A copy that is not in the settings keeps its consumer as long as it reads through it; where its place
does not answer, that is not observable, and the consumer goes only when ordered.
"""

from collections import ChainMap
from collections.abc import Iterable, Iterator
from enum import StrEnum

import msgspec

from aggregator.topology.desired.confinement import is_confined, number_of
from aggregator.topology.desired.durable_copies import OURS, copier_of, named_copier
from aggregator.topology.desired.model import (
    Config,
    ConsumerKey,
    Desired,
    DesiredConsumer,
    DesiredStream,
    Place,
    StreamKey,
)
from aggregator.topology.desired.streams import FOR_A_RELAY
from aggregator.topology.observed.state import (
    Found,
    FoundConsumer,
    FoundStream,
    api_of,
    consumer_name_of,
    copies_of,
    is_same_source,
    origin_place,
    sources_of,
)
from aggregator.topology.plan.differences import (
    ASIDE,
    FieldChange,
    confines,
    differences,
    fitting,
    is_as_wanted,
    losses,
    needs_another_stream,
    source_pairs,
    streams_to_recreate,
    title,
)
from aggregator.topology.plan.durable_sources import undecided, with_durable_sources
from aggregator.topology.plan.harmful_fields import found_harms, harms
from aggregator.topology.plan.old_servers import server_doubts, unusable_servers, without_unknown_fields
from aggregator.topology.plan.refusals import gatherings, refusals
from aggregator.topology.plan.restored_streams import copies_to_restart, mark_of, marked, not_copied, unmarked
from shared.nats.jetstream_api import domain_of
from shared.policy import STREAM, Scope, consumer_name, parse_policy_subject, subjects_of_site

_UNCHANGEABLE_OF_CONSUMERS = ("ack_policy",)
_STARTS = ("opt_start_seq", "opt_start_time")
_OF_A_CONSUMER = (*_STARTS, "filter_subject", "subject_transforms")


class Action(StrEnum):
    """What is done to a stream or consumer."""

    CREATE = "create"
    UPDATE = "update"
    REPLACE = "replace"
    DELETE = "delete"


class Change(msgspec.Struct, frozen=True):
    """One step. ``config`` is what is sent, whole; ``consumer`` is "" where the stream itself is meant.

    ``remark`` is what else to know before it is done.
    """

    action: Action
    place: Place
    stream: str
    consumer: str
    fields: tuple[FieldChange, ...]
    config: Config
    destroys: str = ""
    remark: str = ""

    @property
    def key(self) -> ConsumerKey:
        return self.place, self.stream, self.consumer


class Plan(msgspec.Struct, frozen=True):
    """The steps from found to desired, and for each place that cannot be planned for, why.

    With ``refused`` lines, nothing of it may be carried out; ``warnings`` hinder nothing. ``left`` are consumers to
    remove where nobody answers. ``sealed`` streams are not as wanted, and cannot be changed.
    """

    changes: tuple[Change, ...]
    problems: dict[Place, str]
    refused: tuple[str, ...] = ()
    left: tuple[Change, ...] = ()
    warnings: tuple[str, ...] = ()
    sealed: tuple[StreamKey, ...] = ()

    @property
    def destructive(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.destroys)


def plan(wanted: Iterable[Desired], found: Found) -> Plan:
    """List what is to be done, origins first, deletions last; a place that does not answer is left alone.

    Before all of it, streams that take messages of another size, copies first.
    """
    decided = with_durable_sources(copies_to_restart(without_unknown_fields(wanted, found), found), found)
    wanted = undecided(decided, found)
    to_recreate, left = streams_to_recreate(wanted, found), orphans(wanted, found)
    problems = dict(found.unreachable)
    changes: list[Change] = []
    made: list[DesiredConsumer] = []
    absent = dict(absences(wanted, found))
    sealed = {key for each in wanted if (key := _copier_of(each)) in found.streams and found.streams[key].is_sealed}
    for each in wanted:
        # To a change of one that is sealed the server answers OK, and makes none.
        if each.place in problems or _copier_of(each) in sealed:
            continue
        if isinstance(each, DesiredStream):
            steps = _stream_changes(each, found, to_recreate=each.key in to_recreate)
            changes.extend(_remarked(step, absent.get((step.place, step.stream), "")) for step in steps)
        elif each.copying is None or each.copying.place not in problems:
            # Its source must be told, too: set aside before, and taken up behind that. Without, it is never told again.
            # A stream that is made again takes its consumers with it.
            copier = each.copying.key if each.copying is not None else None
            is_recreation = copier in to_recreate or each.stream_key in to_recreate
            todo = tuple(_consumer_changes(each, found, to_recreate=is_recreation))
            changes.extend(todo)
            made.extend(each for change in todo if change.action in (Action.CREATE, Action.REPLACE))
    aside, back = _taken_up_again(made, changes, found)
    kept = {each.key for each in wanted if isinstance(each, DesiredConsumer) and each.wanted}
    # What a source that goes reads through may be wanted for the one that comes in its place.
    changes = [each for each in changes if each.action is not Action.DELETE or each.key not in kept]
    changes = [*aside, *changes, *back]
    gone = {each.key for each in changes if each.action is Action.DELETE}
    changes.extend(Change(Action.DELETE, *each.key, (), {}, each.destroys) for each in left if each.key not in gone)
    silent = {*problems, *found.away}
    by_hand = (f"{each.place}: {each.name} {harm.text}" for each, harm in found_harms(wanted, found) if not harm.mended)
    in_order = sorted(changes, key=lambda change: change.action is Action.DELETE)
    larger = [change for change in in_order if _takes_other_sizes(change)]
    in_order = [*reversed(larger), *(change for change in in_order if change not in larger)]
    return Plan(
        tuple(change for change in in_order if change.place not in silent),
        problems,
        (*(f"{place}: {why}" for place, why in unusable_servers(found)), *refusals(decided, found)),
        tuple(change for change in in_order if change.place in silent and change.action is Action.DELETE),
        (
            *(f"{place}: {why}" for place, why in server_doubts(decided, found)),
            *gatherings(decided, found),
            *by_hand,
            *not_copied(found),
        ),
        tuple(sorted(key for key in sealed if key[0] not in problems)),
    )


def _takes_other_sizes(change: Change) -> bool:
    """Tell whether a stream, which goes on copying as it did, takes messages of another size.

    Copies come before their origins then: what a mirror refuses by its size, it leaves out for good.
    """
    fields = {each.field for each in change.fields}
    return change.action is Action.UPDATE and "max_msg_size" in fields and fields.isdisjoint({"sources", "mirror"})


def _copier_of(wanted: Desired) -> StreamKey | None:
    """Name the stream that is wanted, or that copies through a consumer that is."""
    if isinstance(wanted, DesiredStream):
        return wanted.key
    return wanted.copying.key if wanted.copying is not None else None


def _remarked(change: Change, remark: str) -> Change:
    said = "; ".join(filter(None, (change.remark, remark)))
    return change if change.consumer else msgspec.structs.replace(change, remark=said)


def _stream_changes(wanted: DesiredStream, found: Found, *, to_recreate: bool) -> Iterator[Change]:
    current = found.streams.get(wanted.key)
    if current is None:
        config = _creation_request(wanted.config)
        fields = tuple(FieldChange(key, None, value) for key, value in config.items() if key != "name")
        silent = silent_origins(wanted, found)
        lacking = f"if it was copied before, {wanted.name} will lack what was taken then; better wait for it"
        remark = f"{silent} gives no answer: {lacking}" if silent else ""
        yield Change(Action.CREATE, *wanted.key, "", fields, config, remark=remark)
        return
    mended = [each.mended for each in harms(wanted, current.config)]
    managed = fitting(dict(ChainMap(*mended, wanted.config)), current.config)
    fields = tuple(differences(managed, current.config))
    if to_recreate and not any(map(needs_another_stream, fields)):
        # A mirror goes on at its own last sequence, whatever its new origin holds before that.
        fields = (*fields, FieldChange("holds", "what its origin was before", "its origin"))
    if not fields:
        return
    if to_recreate:
        config = _creation_request(wanted.config)
        loss = f"deletes its {current.state.messages:,} messages" if current.state.messages else ""
        away = [str(origin.place) for origin in wanted.origins if origin.place in found.unreachable]
        if loss and away:
            loss += f", also what {', '.join(away)} will not send again: wait until it answers"
        elif not loss and (silent := silent_origins(wanted, found)):
            loss = f"begins without what {silent} will not send again: wait until it answers"
        yield Change(Action.REPLACE, *wanted.key, "", fields, config, loss)
        return
    config = current.config | managed
    if "sources" in managed:
        config["sources"] = _merged_sources(wanted, current, found)
        if current.config.get("metadata"):
            config["metadata"] = unmarked(current.config["metadata"], config["sources"])
    lost = ", ".join(losses(fields, current))
    remark = remarks(wanted, current, found)
    yield Change(Action.UPDATE, *wanted.key, "", fields, _update_request(config), lost, remark)
    yield from _consumers_left(wanted, current)


def _creation_request(config: Config) -> Config:
    return {key: value for key, value in _update_request(config).items() if value != []}


def _update_request(config: Config) -> Config:
    """Leave out what is not set, in the stream and in what it copies."""
    body = _without_nulls(config)
    for key in ("mirror", "placement"):
        if key in body:
            body[key] = _without_nulls(body[key])
    if "sources" in body:
        body["sources"] = [_without_nulls(source) for source in body["sources"]]
    return body


def _without_nulls(config: Config) -> Config:
    return {key: value for key, value in config.items() if value is not None}


def _merged_sources(wanted: DesiredStream, current: FoundStream, found: Found) -> list[Config]:
    """Lay the wanted sources over the found ones, keeping what an operator added to them, and where they started.

    A source that loses its consumer, or is confined, starts behind what it had taken; one that gets a consumer must not
    say where to start.
    """
    merged = []
    for before, source in source_pairs(wanted.config["sources"], sources_of(current)):
        if source is None:
            continue
        old, new = dict(before or {}), dict(source)
        if new.get("consumer"):
            old = {name: value for name, value in old.items() if name not in _OF_A_CONSUMER}
        elif before is not None:
            starts = {name: start for name in _STARTS if (start := new.pop(name, None))}
            if old.pop("consumer", None) or confines(source, before):
                behind = found.resumes_behind(wanted.key, before)
                old = {name: value for name, value in old.items() if name not in _STARTS}
                old |= starts if starts and not behind else {"opt_start_seq": behind + 1}
        external = (old.get("external") or {}) | (new.get("external") or {})
        merged.append(old | new | ({"external": external} if external else {}))
    return merged


def _consumers_left(wanted: DesiredStream, current: FoundStream) -> Iterator[Change]:
    """Remove, with a durable copy or for the sake of another consumer, the one that it had at its origin."""
    pairs = source_pairs(wanted.config.get("sources") or [], sources_of(current))
    left = [old for old, new in pairs if new is None or (old and _reads_through_another(old, new))]
    mirror = current.config.get("mirror")
    if mirror and "mirror" in wanted.config and not wanted.config["mirror"]:
        left.append(mirror)
    for source in left:
        if source and source.get("consumer") and (domain_of(api_of(source)) or not api_of(source)):
            origin = origin_place(wanted.place, source)
            yield Change(Action.DELETE, origin, source["name"], source["consumer"]["name"], (), {})


def _reads_through_another(old: Config, new: Config) -> bool:
    """Tell whether a source shall change its consumer for one of another name, as where a place was renamed."""
    before, after = consumer_name_of(old), consumer_name_of(new)
    return bool(after) and before.startswith(OURS) and before != after


def _taken_up_again(
    made: Iterable[DesiredConsumer], changes: list[Change], found: Found
) -> tuple[list[Change], list[Change]]:
    """Set sources aside before their consumers are made again, and take them up again behind that.

    A source that has not noticed yet ignores as old what a stream that was made anew counts from 1, or takes some of it
    twice; and where the new consumer has delivered as many as the old one, the server never looks again (2.15.1).
    """
    aside, back = [], []
    copied: dict[StreamKey, list[DesiredConsumer]] = {}
    for each in made:
        if each.copying is not None:
            copied.setdefault(each.copying.key, []).append(each)
    for key, own in copied.items():
        current = found.streams.get(key)
        todo = {change.action for change in changes if change.key == (*key, "")}
        sources = sources_of(current) if current else []
        again = [each for each in sources if any(_reads_through(consumer, each) for consumer in own)]
        if current is None or not again or todo - {Action.UPDATE}:
            continue
        rest = [each for each in sources_of(current) if each not in again]
        gone = (FieldChange(title(each), "through the old consumer", "set aside") for each in again)
        listening = current.config.get("subjects") or ([] if rest else [f"{ASIDE}.{key[0]}.{key[1]}"])
        alone = current.config | {"sources": rest, "subjects": listening}
        marks = [mark_of(each.copying.source) for each in own if each.copying and _is_to_be_marked(each, found)]
        if marks:
            alone["metadata"] = dict(ChainMap(*marks, current.config.get("metadata") or {}))
        aside.append(Change(Action.UPDATE, *key, "", tuple(gone), alone))
        if not todo:
            there = (FieldChange(title(each), "set aside", "through the new consumer") for each in again)
            back.append(Change(Action.UPDATE, *key, "", tuple(there), {"subjects": []} | current.config))
    return aside, back


def _found_source(wanted: DesiredConsumer, found: Found) -> Config | None:
    """Find the source that shall read through a consumer, as it is."""
    stream = found.streams.get(wanted.copying.key) if wanted.copying is not None else None
    if wanted.copying is None or stream is None:
        return None
    return next((each for each in sources_of(stream) if is_same_source(wanted.copying.source, each)), None)


def _is_to_be_marked(wanted: DesiredConsumer, found: Found) -> bool:
    """Tell whether what is taken up again is not simply the source that was set aside, or the first of its region."""
    assert wanted.copying is not None
    source = wanted.copying.source
    return is_confined(source) and (number_of(source) > 1 or _found_source(wanted, found) is None)


def _reads_through(wanted: DesiredConsumer, source: Config) -> bool:
    assert wanted.copying is not None
    key = origin_place(wanted.copying.place, source), source["name"], consumer_name_of(source)
    return key == wanted.key


def _begins_whole(wanted: DesiredConsumer, found: Found) -> bool:
    """Tell whether a source that is not there comes with everything, where its consumer is there and was read through.

    By one in whose place it comes, or by one that an apply had set aside when it ended.
    """
    stream = found.streams.get(wanted.copying.key) if wanted.copying is not None else None
    if wanted.copying is None or stream is None:
        return False
    is_read = any(_reads_through(wanted, each) for each in sources_of(stream))
    return is_read or marked(stream, wanted.copying.source) > 0


def _begins_through(wanted: DesiredConsumer, source: Config) -> bool:
    """Tell whether a source shall read through a consumer as one that the server does not know yet."""
    assert wanted.copying is not None
    return not _reads_through(wanted, source) or confines(wanted.copying.source, source)


def _consumer_changes(wanted: DesiredConsumer, found: Found, *, to_recreate: bool) -> Iterator[Change]:
    """Make, mend or remove a consumer.

    ``to_recreate``: its copy is to be made, or made again. A consumer that is there already has been acknowledged what
    a stream before it had, and would not give it to this one. Nor does one that nothing reads through yet know what its
    source has taken since it was made, by an apply that ended between the two.
    """
    current = found.consumers.get(wanted.key)
    source = None if to_recreate else _found_source(wanted, found)
    waits = _begins_through(wanted, source) if source is not None else not to_recreate and _begins_whole(wanted, found)
    start = _start(wanted, source, found) if source is not None and waits else wanted.start
    if current is None:
        if wanted.wanted:
            config = wanted.config | start
            fields = tuple(FieldChange(key, None, value) for key, value in config.items())
            yield Change(Action.CREATE, *wanted.key, fields, config)
        return
    if not wanted.wanted:
        yield Change(Action.DELETE, *wanted.key, (), {})
        return
    fields = tuple(differences(wanted.config, current.config))
    if to_recreate or waits:
        begins = "as it is told" if start is wanted.start else "behind what was taken"
        begins = "with everything" if start["deliver_policy"] == "all" else begins
        fields = (*fields, FieldChange("starts", "where it was", begins))
    if to_recreate or waits or any(change.field in _UNCHANGEABLE_OF_CONSUMERS for change in fields):
        config = wanted.config | start
        yield Change(Action.REPLACE, *wanted.key, fields, config)
    elif fields:
        config = current.config | wanted.config
        if "metadata" in wanted.config:
            config["metadata"] = (current.config.get("metadata") or {}) | wanted.config["metadata"]
        yield Change(Action.UPDATE, *wanted.key, fields, config)


def _start(wanted: DesiredConsumer, source: Config, found: Found) -> Config:
    """Say where a consumer starts through which a source shall read that has not yet: behind what that has taken.

    A source that gets a consumer, or another one, is a new one to the server: it would take everything once more.
    """
    assert wanted.copying is not None
    taken = found.resumes_behind(wanted.copying.key, source)
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": taken + 1} if taken else wanted.start


class Orphan(msgspec.Struct, frozen=True):
    """A consumer to remove; ``destroys`` names the reader that this cuts off, if there may still be one."""

    key: ConsumerKey
    destroys: str = ""


def orphans(wanted: Iterable[Desired], found: Found) -> Iterator[Orphan]:
    """Yield the consumers without a reader, in the order of their names."""
    wanted = tuple(wanted)
    consumers = [each for each in wanted if isinstance(each, DesiredConsumer)]
    # Where a region names no sites, its agents may have made their consumers themselves.
    regions = {site.region for each in consumers if (site := _site(each.name, each.config.get("filter_subjects")))}
    for key, consumer in sorted(found.orphans.items()):
        if key[0] in found.unreachable:
            continue
        site = _site(key[2], consumer.config.get("filter_subjects"))
        relay = (consumer.config.get("metadata") or {}).get(FOR_A_RELAY)
        if relay:
            yield Orphan(key, f"lets the relay {relay} read nothing more")
        elif site is not None and site.region in regions:
            yield Orphan(key, f"tells {site.site} nothing more of the policy")
        elif site is None:
            yield from _of_a_copy(key, consumer, found, {each.place for each in wanted})


def _site(name: str, subjects: object) -> Scope | None:
    """Return the site of a consumer of a site's policy; None for any other consumer."""
    first = parse_policy_subject(subjects[0]) if isinstance(subjects, list) and subjects else None
    site = name.removeprefix(consumer_name(""))
    if first is None or subjects != list(subjects_of_site(first.region, site)):
        return None
    return Scope(first.region, site)


def _of_a_copy(key: ConsumerKey, consumer: FoundConsumer, found: Found, wanted: set[Place]) -> Iterator[Orphan]:
    place, stream, name = key
    known = [each for each in (*found.levels, *found.unreachable) if each.connection == place.connection]
    copier, named = copier_of(consumer.config, known), named_copier(consumer.config)
    if named is not None and stream == named[1] == STREAM and (copier is None or copier[0] not in wanted):
        # A region that was removed shall hear nothing more, even if it listens.
        yield Orphan(key, f"tells {named[0]} nothing more of the policy")
        return
    if named is not None and copier is None:
        yield Orphan(key, f"gives {named[1]} of {named[0]} nothing more")
    if copier is None or copier[0] in found.unreachable or (*copier, "") in found.silent:
        return
    current = found.streams.get(copier)
    copied = copies_of(current.config) if current is not None else []
    if not any((each["name"], consumer_name_of(each)) == (stream, name) for each in copied):
        yield Orphan(key)


_TWICE = "what comes in while this is applied may be taken twice"


def remarks(wanted: DesiredStream, current: FoundStream, found: Found) -> str:
    """Return, in one line, the messages that a changed stream takes once more; "" where nothing was taken yet."""
    pairs = source_pairs(wanted.config.get("sources") or [], sources_of(current)) if current.state.last_seq else ()
    said = (_remark(wanted, old, new, found) for old, new in pairs if new is not None)
    return "; ".join(dict.fromkeys(filter(None, said)))


def absences(wanted: Iterable[Desired], found: Found) -> Iterator[tuple[StreamKey, str]]:
    """Yield the streams that shall copy a stream that does not exist: servers accept that, a name may be mistyped."""
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
    """Return the places without an answer at which a stream that is made reads through a consumer.

    A consumer left there by an earlier stream does not deliver again the messages which that stream acknowledged.
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

"""Find the consumers that apply once made and that are for nobody any more. Pure.

They are known by what they are, not by their names alone: a site's shows just that site's policy, a relay's says in its
metadata whose it is, and a copy's delivers to a subject that names the copy. A copy that the settings do not speak of
keeps its consumer as long as it reads through it; where its place does not answer, nobody knows, and the consumer goes
only when told to.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.desired.durable_copies import copier_of, named_copier
from aggregator.topology.desired.model import ConsumerKey, Desired, DesiredConsumer, Place
from aggregator.topology.desired.streams import FOR_A_RELAY
from aggregator.topology.observed.state import Found, FoundConsumer, consumer_name_of, copies_of
from shared.policy import STREAM, Scope, consumer_name, parse_policy_subject, subjects_of_site


class Orphan(msgspec.Struct, frozen=True):
    """A consumer to remove; ``destroys`` says whom that cuts off, where it may still be somebody."""

    key: ConsumerKey
    destroys: str = ""


def orphans(wanted: Iterable[Desired], found: Found) -> Iterator[Orphan]:
    """List them, in the order of their names."""
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
    """Read from a consumer whose policy it shows; None where it shows something else."""
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

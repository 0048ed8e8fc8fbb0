"""Find the consumers that apply once made and that are for nobody any more. Pure.

They are known by what they are, not by their names alone: a site's shows just that site's policy, and a copy's delivers
to a subject that names the copy. A copy that the settings do not speak of keeps its consumer as long as it reads
through it.
"""

from collections.abc import Iterable, Iterator

import msgspec

from aggregator.topology.found import ConsumerKey, Found, FoundConsumer, sources_of
from aggregator.topology.sourcing import copier_of
from aggregator.topology.words import Desired, DesiredConsumer, Place
from shared.policy import STREAM, Scope, consumer_name, parse_policy_subject, subjects_of_site


class Stray(msgspec.Struct, frozen=True):
    """A consumer to remove; ``destroys`` says whom that cuts off, where it may still be somebody."""

    place: Place
    stream: str
    name: str
    destroys: str = ""


def strays(wanted: Iterable[Desired], found: Found) -> Iterator[Stray]:
    """List them, in the order of their names."""
    consumers = [each for each in wanted if isinstance(each, DesiredConsumer)]
    # Where a region names no sites, its agents may have made their consumers themselves.
    regions = {site.region for each in consumers if (site := _site(each.name, each.config.get("filter_subjects")))}
    for key, consumer in sorted(found.strays.items()):
        site = _site(key[2], consumer.config.get("filter_subjects"))
        if site is not None and site.region in regions:
            yield Stray(*key, f"tells {site.site} nothing more of the policy")
        elif site is None:
            yield from _of_a_copy(key, consumer, found)


def _site(name: str, subjects: object) -> Scope | None:
    """Read from a consumer whose policy it shows; None where it shows something else."""
    first = parse_policy_subject(subjects[0]) if isinstance(subjects, list) and subjects else None
    site = name.removeprefix(consumer_name(""))
    if first is None or subjects != list(subjects_of_site(first.region, site)):
        return None
    return Scope(first.region, site)


def _of_a_copy(key: ConsumerKey, consumer: FoundConsumer, found: Found) -> Iterator[Stray]:
    _, stream, name = key
    copier = copier_of(consumer.config, (place for place in found.levels if place.connection == key[0].connection))
    if copier is None:
        region = name.rpartition("@")[2]
        if stream == STREAM and f".{region}.{STREAM}." in consumer.config.get("deliver_subject", ""):
            yield Stray(*key, f"tells {region} nothing more of the policy")
        return
    if copier[0] in found.unreachable:
        return
    current = found.streams.get(copier)
    copied = [*sources_of(current), *filter(None, [current.config.get("mirror")])] if current is not None else []
    if not any((each["name"], (each.get("consumer") or {}).get("name")) == (stream, name) for each in copied):
        yield Stray(*key)

"""Name the consumer through which a durable copy reads, and read such a name back. Pure."""

from collections.abc import Iterable

from aggregator.topology.desired.confinement import taken_subjects
from aggregator.topology.desired.model import EVERYTHING, Config, Copying, DesiredConsumer, Place, StreamKey
from shared.blake2 import blake2b

OURS = "muster-"
DELIVERIES = "muster.source"
_HEARTBEAT = 1_000_000_000
_MOST_UNACKNOWLEDGED = 10_000


def consumer_of(copier: StreamKey, origin: StreamKey, source: Config, *, wanted: bool) -> DesiredConsumer:
    """Give the consumer through which a stream copies another, under a name that says for whom it is.

    ``source`` is the plain form. Its filter and transforms stand in the name: with others it is another source.
    """
    (place, stream), (origin_place, origin_name) = copier, origin
    subjects = taken_subjects(source)
    told_apart = blake2b(repr(subjects).encode(), digest_size=4).hexdigest() if subjects else ""
    name = OURS + "-".join(filter(None, (stream, told_apart))) + f"@{place}"
    deliver = ".".join(filter(None, (DELIVERIES, str(origin_place), origin_name, str(place), stream, told_apart)))
    return through_consumer(copier, origin, source, name, deliver, wanted=wanted)


def through_consumer(
    copier: StreamKey, origin: StreamKey, source: Config, name: str, deliver_subject: str, *, wanted: bool
) -> DesiredConsumer:
    """Give the consumer of a copy under a name that is known. Its fields are those of ADR-60."""
    config: Config = {
        "durable_name": name,
        "deliver_subject": deliver_subject,
        "ack_policy": "flow_control",
        "flow_control": True,
        "idle_heartbeat": _HEARTBEAT,
        "max_ack_pending": _MOST_UNACKNOWLEDGED,
        "max_deliver": -1,
    }
    subjects = taken_subjects(source)
    if subjects:
        config["filter_subjects"] = [subject for subject, _ in subjects]
    copying = Copying(*copier, source, deliver_subject)
    return DesiredConsumer(*origin, name, config, _start(source), copying, wanted)


def _start(source: Config) -> Config:
    if source.get("opt_start_seq"):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": source["opt_start_seq"]}
    if source.get("opt_start_time"):
        return {"deliver_policy": "by_start_time", "opt_start_time": source["opt_start_time"]}
    return dict(EVERYTHING)


def copier_of(consumer: Config, places: Iterable[Place]) -> StreamKey | None:
    """Read from a consumer's configuration which stream copies through it; None where that is in no known place."""
    named = named_copier(consumer)
    known = {str(place): place for place in places}
    return (known[named[0]], named[1]) if named is not None and named[0] in known else None


def named_copier(consumer: Config) -> tuple[str, str] | None:
    """Read which place and stream a consumer's configuration names; None where it was not made for a copy."""
    tokens = consumer.get("deliver_subject", "").split(".")
    if ".".join(tokens[:2]) != DELIVERIES or len(tokens) not in (6, 7):
        return None
    return tokens[4], tokens[5]

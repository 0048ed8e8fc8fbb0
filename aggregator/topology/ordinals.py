"""Find advisories that a watermark counts and the archive does not hold: ordinals count them from 1, without holes.

First only what came lately is read, for all blocks at once; a block that looks as if it had a hole there is read from
the archive's start, since what arrived late or twice may stand anywhere.
"""

from collections.abc import Iterable
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client

from aggregator.topology.found import FoundStream, StreamKey
from aggregator.topology.jetstream import REQUEST_DEADLINE
from shared import wire
from shared.identifiers import BlockId
from shared.instants import format_instant
from shared.jetstream_api import RequestFailed, request_json
from shared.subjects import ROOT, parse_subject

EVERY_ADVISORY = f"{ROOT}.*.*.*.advisory.*"
_BATCH = 1_000
_FORGOTTEN_AFTER = 60_000_000_000

Life = tuple[BlockId, str]
Ordinals = dict[Life, set[int]]


class _Created(msgspec.Struct, frozen=True):
    name: str
    num_pending: int = 0


def advisories_of(block: BlockId) -> str:
    """Give the subjects of a block's advisories."""
    return f"{ROOT}.{block}.advisory.*"


async def read_ordinals(client: Client, archive: StreamKey, subject: str, since: int | None) -> Ordinals:
    """Read the ordinals of the advisories on ``subject`` since an instant, or of all; raise RequestFailed, ApiError."""
    place, stream = archive
    config: dict[str, Any] = {
        "filter_subject": subject,
        "ack_policy": "none",
        "mem_storage": True,
        "inactive_threshold": _FORGOTTEN_AFTER,
        "deliver_policy": "all" if since is None else "by_start_time",
    }
    if since is not None:
        config["opt_start_time"] = format_instant(since)
    body = {"stream_name": stream, "config": config}
    api = f"{place.api}.CONSUMER"
    created = await request_json(client, f"{api}.CREATE.{stream}", body, _Created, deadline=REQUEST_DEADLINE)
    try:
        return await _ordinals(client, archive, created)
    except (nats.errors.Error, TimeoutError) as error:
        raise RequestFailed(f"{stream}: reading advisories took too long: {error}") from error
    finally:
        delete = f"{api}.DELETE.{stream}.{created.name}"
        await request_json(client, delete, None, dict[str, Any], deadline=REQUEST_DEADLINE)


async def _ordinals(client: Client, archive: StreamKey, consumer: _Created) -> Ordinals:
    found: Ordinals = {}
    left = consumer.num_pending
    if not left:
        return found
    jetstream = client.jetstream(domain=archive[0].domain or None)
    subscription = await jetstream.pull_subscribe_bind(consumer.name, archive[1])
    while left > 0:
        for message in await subscription.fetch(min(_BATCH, left), timeout=REQUEST_DEADLINE):
            left -= 1
            _note(message.subject, message.data, found)
    await subscription.unsubscribe()
    return found


def _note(subject: str, body: bytes, found: Ordinals) -> None:
    said = parse_subject(subject)
    try:
        advisory = wire.decode_advisory(body)
    except wire.WireError:
        return
    if said is not None and isinstance(advisory, wire.Advisory):
        found.setdefault((said.block_id, advisory.incarnation), set()).add(advisory.ordinal)


def looks_whole(seen: Iterable[int], issued: int) -> bool:
    """Tell whether what came lately has no hole up to the last one issued."""
    ordinals = set(seen)
    return bool(ordinals) and not missing_ranges(ordinals, min(ordinals), issued)


def missing_of_all(seen: set[int], issued: int, archive: FoundStream) -> tuple[tuple[int, int], ...]:
    """List the ranges that are missing among all that the archive holds; what it let go of itself is not missing."""
    is_whole = archive.state.first_seq <= 1
    first = 1 if is_whole else min(seen, default=issued + 1)
    return missing_ranges(seen, first, issued)


def missing_ranges(seen: set[int], first: int, last: int) -> tuple[tuple[int, int], ...]:
    """List the ranges between ``first`` and ``last``, both included, of which nothing was seen."""
    ranges = []
    expected = first
    for ordinal in sorted(each for each in seen if first <= each <= last):
        if ordinal > expected:
            ranges.append((expected, ordinal - 1))
        expected = ordinal + 1
    if expected <= last:
        ranges.append((expected, last))
    return tuple(ranges)

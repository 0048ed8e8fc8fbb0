"""Write the drawn history of a fleet as the messages of an archive, and say what every sender is at its end."""

import random
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from aggregator.live.fold.changes import Archived
from shared.identifiers import AdvisoryKind, BlockId
from shared.instants import HOUR, MINUTE, SECOND
from shared.subjects import advisory_subject, watermark_subject
from shared.wire import ADVISORY_PROTOCOL, CHORIA_EVENTS, Advisory, ChoriaAdvisory, Watermark, encode
from tests.support.lakehouse.random_fleet import (
    BlockHistory,
    Mark,
    ScopedRevision,
    _counting,
    _strokes,
    believed,
    disputes,
    is_known,
    known_spans,
)

REGION = "eu-west"


class SenderTruth(NamedTuple):
    """What a sender is at the end of the archive, and since when; ``state`` as the account of the tables calls it.

    ``has_lived``: any time passed before that in another state than absent.
    """

    state: str
    since: int
    has_lived: bool


def archived(
    draw: random.Random, histories: Iterable[BlockHistory], late: float = 0.1, *, steps: bool = False
) -> list[Archived]:
    """Give the messages in the order in which the hub stored them: some late, some twice; its clock takes ``steps``."""
    stored: list[tuple[int, int, str, bytes]] = []
    for history in histories:
        for subject, body, at in (*_advisories(history), *_watermarks(history)):
            delays = [draw.choice((0, draw.randrange(0, 20 * MINUTE))) if draw.random() < late else 0]
            if draw.random() < 0.05:
                delays.append(draw.randrange(0, 20 * MINUTE))
            stored += [(at + delay, draw.randrange(1 << 30), subject, body) for delay in delays]
    stored.sort()
    clock = drawn_clock(draw, stored[0][0], stored[-1][0]) if steps else []
    return [
        Archived(sequence, subject.encode(), at + next((ahead for since, ahead in clock if since <= at), 0), body)
        for sequence, (at, _, subject, body) in enumerate(stored, start=1)
    ]


def drawn_clock(draw: random.Random, start: int, end: int) -> list[tuple[int, int]]:
    """Draw since when the hub's clock is how far ahead (behind: negative), the last first: set back, forward, right."""
    found = [(start, 0)]
    for _ in range(draw.randrange(1, 5)):
        size = draw.choice((5 * SECOND, 28 * SECOND, 10 * MINUTE, draw.randrange(1, 4 * HOUR)))
        found.append((draw.randrange(start, end), draw.choice((-size, -size, size, 0))))
    return sorted(found, reverse=True)


class Stored(NamedTuple):
    """A message's time at the hub: the largest stamp up to it; ``lowest`` is the smallest stamp since that one."""

    at: int
    stamp: int
    lowest: int

    @property
    def is_under_step(self) -> bool:
        return self.at - self.lowest >= SECOND


def hub_times(messages: Iterable[Archived]) -> list[Stored]:
    """Give the hub's time of each message."""
    found = [Stored(0, 0, 0)]
    for stamp in (each.archived_at for each in messages):
        at, _, lowest = found[-1]
        found.append(Stored(stamp, stamp, stamp) if stamp >= at else Stored(at, stamp, min(lowest, stamp)))
    return found[1:]


def unknown_times(messages: Iterable[Archived]) -> list[tuple[int, int]]:
    """Give the spans between the stamps around each step back of a second or more that the clock has made up for."""
    stored = hub_times(messages)
    return [(one.at, other.at) for one, other in pairwise(stored) if one.is_under_step and not other.is_under_step]


def sender_truths(history: BlockHistory, known_through: int) -> dict[str, SenderTruth]:
    """Say what each sender of a block is at the end, as far as anybody told."""
    counting, stores = _counting(believed(history))
    found = {}
    for sender_id in sorted({each.sender_id for each in counting}):
        own = [each for each in counting if each.sender_id == sender_id]
        # Each stroke is painted over all before it.
        painted = [(at, state) for at, state in _strokes(own, stores) if at <= known_through]
        since, state = painted[-1] if painted else (0, "absent")
        has_lived = any(state != "absent" and until > at for (at, state), (until, _) in pairwise(painted))
        found[sender_id] = SenderTruth(state, since, has_lived)
    return found


def archived_at_once(draw: random.Random, history: BlockHistory, at: int) -> list[Archived]:
    """Give the messages that an archive got ``at`` once, after it all."""
    return [each._replace(archived_at=at + each.sequence) for each in archived(draw, [history])]


def as_arrived(history: BlockHistory, messages: Iterable[Archived]) -> BlockHistory:
    """Give a history as the hub got it."""
    arrived: dict[bytes, Stored] = {}
    messages = list(messages)
    for message, stored in zip(messages, hub_times(messages), strict=True):
        arrived.setdefault(message.payload, stored)
    said = zip(history.said, _advisories(history), strict=True)
    marks = zip(history.marks, _watermarks(history), strict=True)
    return history._replace(
        said=[
            each._replace(archived_at=arrived[body].at, is_under_step=arrived[body].is_under_step)
            for each, (_, body, _) in said
        ],
        marks=[
            each._replace(archived_at=arrived[body].at, is_under_step=arrived[body].is_under_step)
            for each, (_, body, _) in marks
        ],
    )


def known_until(history: BlockHistory, losses: Sequence[tuple[int, int]] = ()) -> int:
    """Say until when a block is known, where nothing is of the time of ``losses``; 0: never."""
    spans = known_spans(believed(history), list(losses))
    edges = sorted({at for span in spans for at in span[:2]})
    return max((end for begin, end in pairwise(edges) if is_known(spans, begin)), default=0)


def has_disputes(history: BlockHistory) -> bool:
    """Tell whether two agents spoke at once."""
    return bool(disputes(believed(history)))


def _advisories(history: BlockHistory) -> Iterable[tuple[str, bytes, int]]:
    block_id = BlockId(REGION, history.site, history.block)
    for each in history.said:
        body = encode(_advisory(block_id, each)) if each.ordinal is not None else _plain(block_id, each)
        yield advisory_subject(block_id, each.kind), body, each.archived_at or each.at


def _advisory(block_id: BlockId, said: ScopedRevision) -> Advisory:
    return Advisory(
        event_id=said.event_id,
        inspect_field="sender",
        value=said.sender_id,
        age=0,
        seen=0,
        replicator=block_id.site,
        timestamp=0,
        event=CHORIA_EVENTS[said.kind],  # type: ignore[arg-type]
        kind=said.kind,
        region=block_id.region,
        site=block_id.site,
        block=block_id.block,
        at_us=said.at,
        last_seen_us=said.last_seen_at,
        stream="REGISTRATION",
        incarnation=f"1-{said.incarnation}",
        sequence=said.at if said.kind in (AdvisoryKind.NEW, AdvisoryKind.RECOVERED) else said.last_seen_at,
        opening_sequence=said.opened_at,
        ordinal=said.ordinal or 0,
        rebuilt=said.rebuilt,
        by_operator=True if said.by_operator else UNSET,
        unheard_until_us=UNSET if said.unheard_until is None else said.unheard_until,
    )


def _plain(block_id: BlockId, said: ScopedRevision) -> bytes:
    return msgspec.json.encode(
        ChoriaAdvisory(
            ADVISORY_PROTOCOL, said.event_id, "sender", said.sender_id, 0.0, said.last_seen_at // 1_000_000,
            block_id.site, said.at // 1_000_000, CHORIA_EVENTS[said.kind],  # type: ignore[arg-type]
        )
    )  # fmt: skip


def _watermarks(history: BlockHistory) -> Iterable[tuple[str, bytes, int]]:
    block_id = BlockId(REGION, history.site, history.block)
    for each in history.marks:
        yield watermark_subject(block_id), encode(_watermark(block_id, each)), each.archived_at or each.through


def _watermark(block_id: BlockId, mark: Mark) -> Watermark:
    return Watermark(
        region=block_id.region,
        site=block_id.site,
        block=block_id.block,
        agent="agent",
        observed_since_us=mark.since,
        observed_through_us=mark.through,
        stream="REGISTRATION",
        incarnation=f"1-{mark.incarnation}",
        sequence=0,
        advisory_ordinal=mark.ordinal,
        senders={},
        outbox={},
        counters={},
        stale_after=12 * MINUTE,
        retire_after=1440 * MINUTE,
        blind_after=3 * MINUTE,
        policy_revision=0,
        version="0",
        boot_id="boot",
        rebuilt_at_us=mark.rebuilt_at,
        store_began_us=mark.store or UNSET,
    )

"""Writer of outbox rows for decisions: subject, headers, body and message id, ready to be published as they are."""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum, StrEnum
from functools import cache, partial

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, CloseCoverage, Counters, Decision, Forward
from shared import subjects, wire
from shared.identifiers import (
    AdvisoryKind,
    BlockId,
    Incarnation,
    SourcePosition,
    advisory_event_ids,
    message_id,
    message_ids,
)


class SizeLimit(StrEnum):
    """The limit that a message exceeds: the servers' or the stream's. Values are the names of their settings."""

    MAX_PAYLOAD = "max_payload"
    MAX_MSG_SIZE = "max_msg_size"


class TooLarge(msgspec.Struct, frozen=True):
    """A row that the target refuses: it would have to take messages of ``needed`` bytes, headers included."""

    limit: SizeLimit
    needed: int


RECORD_OVERHEAD = 256
"""Bytes of a record in addition to its payload and varying headers: row, subject and the agent's other headers."""

_HEADER_OVERHEAD = 4
CONTROL_HEADERS = "nats-"
_AGENTS_ONLY = (CONTROL_HEADERS, "muster-", wire.SOURCE_HEADER.lower())
# RFC 9110, 5.6.2: the characters of a header's name; clients refuse to send any other name.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Lane(IntEnum):
    """Advisories and watermarks leave first, copies last.

    Registrations alone may be replaced by a newer one, or dropped; unsent watermarks merge.
    """

    ADVISORIES = 0
    REGISTRATIONS = 1
    COPIES = 2


class OutboxRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One record in the outbox. ``sender_id`` is set if a newer row of the same sender may replace this one.

    Stores hold rows encoded, as arrays: fields are only ever added, at the end, with a default.

    ``watermark_since`` is a watermark's ``observed_since``, 0 for other records: unsent watermarks of the same coverage
    merge if no row of their block lies between. ``row_id`` is 0 until the store assigns one.

    ``headers_size`` is the approximate size of the message's own headers and the sender's, in bytes.
    """

    lane: Lane
    block: str
    subject: str
    headers: Mapping[str, str]
    payload: bytes
    sender_id: str = ""
    watermark_since: int = 0
    row_id: int = 0
    headers_size: int = 0

    @property
    def is_watermark(self) -> bool:
        """True for a watermark, which leaves only after all rows before it in its lane."""
        return self.watermark_since > 0

    @property
    def size(self) -> int:
        """The row's approximate size on the wire and on disk, in bytes."""
        return len(self.payload) + RECORD_OVERHEAD + self.headers_size


def size_of(rows: Sequence[OutboxRow]) -> int:
    return sum([len(row.payload) + row.headers_size for row in rows]) + RECORD_OVERHEAD * len(rows)


def headers_to_keep(headers: Mapping[str, str], *, by_agent: bool = True) -> dict[str, str]:
    """Return the headers that are forwarded with a message: none that the region's servers would obey.

    Unless a message is ``by_agent``, headers that only an agent may set are dropped too.
    """
    dropped = CONTROL_HEADERS if by_agent else _AGENTS_ONLY
    return {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith(dropped) and _TOKEN.fullmatch(name)
    }


def size_of_headers(headers: Mapping[str, str]) -> int:
    """Return the approximate size of headers on the wire and on disk, in bytes."""
    return sum([len(name) + len(value) for name, value in headers.items()]) + _HEADER_OVERHEAD * len(headers)


class Emitter(msgspec.Struct, frozen=True):
    """Writes a block's decisions as records.

    ``key`` is the site's secret for message ids; ``boot_id`` names this run of the agent. ``prefix`` replaces the
    site's own subjects' if records go below another.
    """

    block_id: BlockId
    agent: str
    boot_id: str
    version: str
    inspect_field: str
    key: bytes
    prefix: str = ""

    def rows(self, decisions: list[Decision], state: BlockState, watermark: "WatermarkContext") -> list[OutboxRow]:
        """Return every decision as a row, in order; closing watermarks are made of ``state`` and ``watermark``."""
        rows = []
        write_advisory = self._advisory_writer(state.position.stream)
        write_registration = self._registration_writer(state.position)
        for decision in decisions:
            match decision:
                case Advise():
                    rows.append(write_advisory(decision))
                case Forward():
                    rows.append(write_registration(decision))
                case CloseCoverage(since, through, ordinal, position):
                    closed = msgspec.structs.replace(
                        state,
                        observed_since=since,
                        observed_through=through,
                        advisory_ordinal=ordinal,
                        position=position,
                    )
                    rows.append(self.watermark(closed, watermark))
        return rows

    def watermark(self, state: BlockState, context: "WatermarkContext") -> OutboxRow:
        """Return the watermark of ``state``; at the instant of ``context.claim`` it claims the same as that.

        Readers keep one watermark of a run for each instant, and the message id of one that names a condition lets the
        region store another. Clamped messages and orders add advisories to an instant that was claimed already.
        """
        claim = context.claim
        if claim is not None and claim.observed_through == state.observed_through:
            state = msgspec.structs.replace(
                state,
                observed_since=claim.observed_since,
                advisory_ordinal=claim.advisory_ordinal,
                position=claim.position,
            )
        block_id, position, policy = self.block_id, state.position, state.policy
        record = wire.Watermark(
            region=block_id.region,
            site=block_id.site,
            block=block_id.block,
            agent=self.agent,
            observed_since_us=state.observed_since,
            observed_through_us=state.observed_through,
            stream=position.stream,
            incarnation=str(position.incarnation),
            sequence=position.sequence,
            advisory_ordinal=state.advisory_ordinal,
            senders=context.senders,
            outbox=context.outbox,
            counters={**state.counters, **context.outbox_counters},
            stale_after=policy.stale_after,
            retire_after=policy.retire_after,
            blind_after=policy.blind_after,
            policy_revision=policy.revision,
            version=self.version,
            boot_id=self.boot_id,
            rebuilt_at_us=state.rebuilt_at,
            condition=context.condition or msgspec.UNSET,
            conditions=context.conditions or msgspec.UNSET,
            store_began_us=state.store_began_at or msgspec.UNSET,
        )
        again = (context.condition, context.number) if context.condition else ()
        whose = (block_id.region, block_id.site, block_id.block, "watermark", self.agent, self.boot_id)
        identity = message_id(self.key, *whose, state.observed_through, *again)
        return OutboxRow(
            lane=Lane.ADVISORIES,
            block=block_id.block,
            subject=subjects.watermark_subject(block_id, self.prefix),
            headers={wire.MESSAGE_ID_HEADER: identity},
            payload=wire.encode(record),
            watermark_since=state.observed_since,
        )

    # A batch can have hundreds of thousands of records: the parts that they share are made once.

    def _advisory_writer(self, stream: str) -> Callable[[Advise], OutboxRow]:
        block_id, block, inspect_field = self.block_id, self.block_id.block, self.inspect_field
        id_of = message_ids(self.key, block_id.region, block_id.site, block, "advisory")
        encode, header, lane = wire.encode, wire.MESSAGE_ID_HEADER, Lane.ADVISORIES
        event_ids_of = cache(partial(advisory_event_ids, block_id))

        @cache
        def common(kind: AdvisoryKind, incarnation: Incarnation, rebuilt: bool) -> tuple[str, wire.Advisory, str]:
            subject = subjects.advisory_subject(block_id, kind, self.prefix)
            blank = wire.Advisory.blank(block_id, kind, inspect_field, stream, incarnation, rebuilt)
            return subject, blank, str(incarnation)

        def write(decision: Advise) -> OutboxRow:
            kind, sender_id, at, opening = decision.kind, decision.sender_id, decision.at, decision.opening_sequence
            subject, blank, incarnation = common(kind, decision.incarnation, decision.rebuilt)
            event_id = event_ids_of(decision.opening_incarnation)(opening, sender_id, kind, at)
            record = blank.filled(
                event_id, sender_id, (at, decision.last_seen_at), (decision.sequence, opening), decision.ordinal
            )
            if decision.by_operator:
                record = msgspec.structs.replace(record, by_operator=True)
            if decision.unheard_until:
                record = msgspec.structs.replace(record, unheard_until_us=decision.unheard_until)
            # The ordinal too: an older copy of a store issues the same advisory again under another ordinal.
            number = id_of(event_id, incarnation, decision.ordinal)
            return OutboxRow(lane, block, subject, {header: number}, encode(record))

        return write

    def _registration_writer(self, position: SourcePosition) -> Callable[[Forward], OutboxRow]:
        region, site, block = self.block_id.region, self.block_id.site, self.block_id.block
        subject = subjects.registration_subject(self.block_id, self.prefix)
        lane, stream, origin = Lane.REGISTRATIONS, position.stream, f"{self.block_id}.{position.incarnation}"
        id_of = message_ids(self.key, region, site, block, "registration", str(position.incarnation))
        source_header, sender_header = wire.source_header, wire.sender_header
        name_overhead = size_of_headers({wire.SENDER_HEADER: ""})

        def write(decision: Forward) -> OutboxRow:
            message = decision.message
            sequence = message.sequence
            headers = headers_to_keep(message.headers, by_agent=False) if message.headers else {}
            headers_size = size_of_headers(headers) if headers else 0
            if decision.sender_id:
                # Its size counts: a name can be as long as the rest of a record.
                headers[wire.SENDER_HEADER] = name = sender_header(decision.sender_id)
                headers_size += name_overhead + len(name)
            headers[wire.ORIGIN_HEADER] = f"{origin}.{sequence}"
            headers[wire.SOURCE_HEADER] = source_header(stream, sequence, site, block, message.stored_at)
            headers[wire.REASON_HEADER] = str(decision.reason)
            headers[wire.MESSAGE_ID_HEADER] = id_of(sequence)
            return OutboxRow(
                lane, block, subject, headers, message.payload, decision.sender_id, headers_size=headers_size
            )

        return write


class WatermarkContext(msgspec.Struct, frozen=True):
    """A watermark's fields besides the block's state: senders by phase, the outbox's depth by lane and counters.

    A watermark repeated for the ``number``-th time names the ``condition`` that keeps time from advancing.
    ``conditions`` are all current ones of the agent. ``claim`` is the state of the run's last watermark.
    """

    senders: dict[str, int]
    outbox: dict[str, int]
    outbox_counters: Counters
    condition: str = ""
    number: int = 0
    conditions: tuple[str, ...] = ()
    claim: BlockState | None = None

"""Turn decisions into outbox rows: subject, headers, body and message id, ready to be published as they are."""

import re
from collections.abc import Mapping
from enum import IntEnum

import msgspec

from edge_agent.core.block_state import BlockState, Counters
from edge_agent.core.decision import Advise, CloseCoverage, Decision, Forward
from shared import subjects, wire
from shared.identifiers import BlockId, message_id

RECORD_OVERHEAD = 256
CONTROL_HEADERS = "nats-"
# RFC 9110, 5.6.2: what a header's name may consist of, and what clients refuse to send where it does not.
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class Lane(IntEnum):
    """Advisories and watermarks leave first, copies last. Registrations alone may be replaced or dropped."""

    ADVISORIES = 0
    REGISTRATIONS = 1
    COPIES = 2


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """One record on its way. ``sender_id`` is set where a newer row of the same sender may replace this one.

    ``watermark_since`` is a watermark's ``observed_since``, 0 for other records: adjacent unsent watermarks of the
    same coverage merge. ``row_id`` is 0 until the store gives one.
    """

    lane: Lane
    block: str
    subject: str
    headers: Mapping[str, str]
    payload: bytes
    sender_id: str = ""
    watermark_since: int = 0
    row_id: int = 0

    @property
    def is_watermark(self) -> bool:
        """Tell a barrier from the rest."""
        return self.watermark_since > 0

    @property
    def size(self) -> int:
        """Give about what the row takes on the wire and on disk, in bytes."""
        return len(self.payload) + RECORD_OVERHEAD


def kept_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Give the headers that go on with a message: none that would be an order to the region's servers."""
    return {
        name: value
        for name, value in headers.items()
        if not name.lower().startswith(CONTROL_HEADERS) and _TOKEN.fullmatch(name)
    }


class Emitter(msgspec.Struct, frozen=True):
    """What stands in a block's records beside its decisions.

    ``key`` is the site's secret for message ids; ``boot_id`` names this run of the agent. ``prefix`` stands for the
    site's own subjects where records go below another.
    """

    block_id: BlockId
    agent: str
    boot_id: str
    version: str
    inspect_field: str
    key: bytes
    prefix: str = ""

    def rows(self, decisions: list[Decision], state: BlockState, watermark: "WatermarkContext") -> list[OutboxRow]:
        """Write every decision as a row, in order; ``state`` and ``watermark`` stand in closing watermarks."""
        rows = []
        for decision in decisions:
            match decision:
                case Advise():
                    rows.append(self._advisory(decision, state.position.stream))
                case Forward():
                    rows.append(self._registration(decision, state))
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
        """Vouch for the coverage that ``state`` has reached."""
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
        )
        identity = self._message_id("watermark", self.agent, self.boot_id, state.observed_through)
        return OutboxRow(
            lane=Lane.ADVISORIES,
            block=block_id.block,
            subject=subjects.watermark_subject(block_id, self.prefix),
            headers={wire.MESSAGE_ID_HEADER: identity},
            payload=wire.encode(record),
            watermark_since=state.observed_since,
        )

    def _advisory(self, decision: Advise, stream: str) -> OutboxRow:
        record = wire.Advisory.of(
            self.block_id,
            decision.kind,
            sender_id=decision.sender_id,
            inspect_field=self.inspect_field,
            at=decision.at,
            last_seen_at=decision.last_seen_at,
            stream=stream,
            incarnation=decision.incarnation,
            sequence=decision.sequence,
            opening=(decision.opening_incarnation, decision.opening_sequence),
            ordinal=decision.ordinal,
            rebuilt=decision.rebuilt,
        )
        return OutboxRow(
            lane=Lane.ADVISORIES,
            block=self.block_id.block,
            subject=subjects.advisory_subject(self.block_id, decision.kind, self.prefix),
            headers={wire.MESSAGE_ID_HEADER: self._message_id("advisory", record.event_id)},
            payload=wire.encode(record),
        )

    def _registration(self, decision: Forward, state: BlockState) -> OutboxRow:
        message, position = decision.message, state.position
        headers = {
            **kept_headers(message.headers or {}),
            wire.ORIGIN_HEADER: wire.origin_header(self.block_id, position.incarnation, message.sequence),
            wire.SOURCE_HEADER: wire.source_header(
                position.stream, message.sequence, self.block_id.site, self.block_id.block, message.stored_at
            ),
            wire.REASON_HEADER: str(decision.reason),
            wire.MESSAGE_ID_HEADER: self._message_id("registration", str(position.incarnation), message.sequence),
        }
        return OutboxRow(
            lane=Lane.REGISTRATIONS,
            block=self.block_id.block,
            subject=subjects.registration_subject(self.block_id, self.prefix),
            headers=headers,
            payload=message.payload,
            sender_id=decision.sender_id,
        )

    def _message_id(self, *identity: str | int) -> str:
        block_id = self.block_id
        return message_id(self.key, block_id.region, block_id.site, block_id.block, *identity)


class WatermarkContext(msgspec.Struct, frozen=True):
    """What a watermark tells beside the block's state: senders by phase, the outbox's depth by lane and counters."""

    senders: dict[str, int]
    outbox: dict[str, int]
    outbox_counters: Counters

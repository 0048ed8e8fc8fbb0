"""Relay mode: forward a fleet's registrations, sampled again by origin (region, site, block, sender).

For the upper levels of a tree. The rules:

1. Only registrations are relayed. Every other record is counted and not forwarded: advisories and watermarks travel by
   the streams' own sourcing, and stay those of the site that saw the senders.
2. An origin's first registration is forwarded, then one for each ``sample_interval`` of the stream's time; the first
   interval is shortened by a stable hash. Registrations between two samples are not forwarded.
3. A registration that is not newer, in its site's own stream, than the last forwarded one is a repetition: a record
   that arrives several times is forwarded once.
4. An origin that was not heard for ``retire_after`` is removed, and is new if it is heard again. Beyond
   ``max_senders`` no further origin is relayed.

A relay issues no advisories: from sampled registrations no sender can be found stale.
"""

from collections.abc import Mapping
from itertools import islice, takewhile

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Decision, Forward
from edge_agent.core.intake import Intake, is_usable
from edge_agent.core.observation import Observation, ProbeSighting, Rejected, RejectReason, SourceMessage
from edge_agent.core.payload import Deviations
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext, headers_to_keep, size_of_headers
from edge_agent.core.senders import NO_SLOT, SenderChanges, SenderPhase, SenderState, SenderTable
from edge_agent.core.untracked_draft import PositionDraft
from shared import wire
from shared.decoding import WireError
from shared.identifiers import BlockId, Incarnation, message_id
from shared.subjects import RecordType, parse_subject
from shared.wire import ForwardReason

FORGOTTEN_PER_DRAFT = 10_000


class RelayDraft(PositionDraft):
    """Registrations relayed, not yet adopted.

    Origins use the columns of senders: the position is that of the last forwarded record in its site's own stream.
    """

    def __init__(self, state: BlockState, origins: SenderTable) -> None:
        super().__init__(state)
        self._origins = origins
        self._touched: dict[str, SenderState] = {}
        self._new_count = 0

    def relay(self, origin: str, incarnation: Incarnation, sequence: int, observation: Observation) -> bool:
        """Forward a registration if its origin's sample is due; ``sequence`` is that in the site's own stream."""
        message = observation.message
        self._read(message)
        at = self._through
        state = self._touched.pop(origin, None) or self._load(origin)
        if state is None and len(self._origins) + self._new_count >= self._policy.max_senders:
            self._count("rejected", RejectReason.TOO_MANY_SENDERS)
            self._count("withheld", RejectReason.TOO_MANY_SENDERS)
            return True
        if observation.deviation is not None:
            self._count("tolerated", observation.deviation)
        if state is None or at - state.last_seen_at > self._policy.retire_after:
            # Removed at this instant, also if no draft has freed its slot since.
            slot = state.slot if state else NO_SLOT
            self._new_count += state is None
            reason: ForwardReason | None = ForwardReason.NEW
            state = SenderState(origin, slot, SenderPhase.HEARD, at, sequence, incarnation, sequence)
        else:
            reason = self._reason(state, incarnation, sequence, at)
        state.last_seen_at = at
        # Inserted at the end: touched origins stay in the order in which they were heard.
        self._touched[origin] = state
        if reason is not None:
            state.first_interval = not state.last_forwarded_at
            state.last_forwarded_at = at
            state.last_sequence = state.opening_sequence = sequence
            state.opening_incarnation = incarnation
            state.forwarded_size = len(message.payload)
            self._count("forwarded", reason)
            self.decisions.append(Forward(origin, message, reason))
        return True

    def pass_on(self, rejected: Rejected) -> bool:
        """Forward a registration without a sender, as its site did: it has no origin to sample by."""
        self._read(rejected.message)
        self._count("rejected", rejected.reason)
        self._count("forwarded", ForwardReason.COPY)
        self.decisions.append(Forward("", rejected.message, ForwardReason.COPY))
        return True

    @property
    def changes_nothing(self) -> bool:
        """True if only time advanced, and no origin is to be removed."""
        return super().changes_nothing and not self._forgotten()

    def changes(self) -> SenderChanges:
        """Return the touched origins and those to be removed; new ones get their slots here."""
        heard = list(self._touched.values())
        nameless = [state for state in heard if state.slot == NO_SLOT]
        for state, slot in zip(nameless, islice(self._origins.free_slots(), len(nameless)), strict=True):
            state.slot = slot
        return SenderChanges(heard, [], self._forgotten())

    def _load(self, origin: str) -> SenderState | None:
        slot = self._origins.slots.get(origin)
        return None if slot is None else self._origins.load(slot)

    def _reason(self, state: SenderState, incarnation: Incarnation, sequence: int, at: int) -> ForwardReason | None:
        if state.opening_incarnation == incarnation and sequence <= state.last_sequence:
            self._count("skipped", "repeated")
            return None
        interval = self._policy.interval_of(state.sender_id, is_first=state.first_interval)
        if at - state.last_forwarded_at >= interval:
            return ForwardReason.INTERVAL
        self._count("skipped", "sampled")
        return None

    def _forgotten(self) -> list[SenderState]:
        origins, oldest = self._origins, self._through - self._policy.retire_after
        silent = takewhile(lambda slot: origins.last_seen_at[slot] < oldest, origins.heard)
        due = (slot for slot in silent if origins.sender_ids[slot] not in self._touched)
        return [origins.load(slot) for slot in islice(due, FORGOTTEN_PER_DRAFT)]


class Relay:
    """State of a block that relays, as of the last draft that was adopted."""

    def __init__(self, state: BlockState, origins: SenderTable | None = None) -> None:
        self.state = state
        self.origins = origins or SenderTable()

    def draft(self) -> RelayDraft:
        return RelayDraft(self.state, self.origins)

    def adopt(self, draft: RelayDraft) -> None:
        changes = draft.changes()
        self.origins.adopt(changes.heard, changes.stale, changes.retired)
        self.state = draft.state()

    def sender_counts(self) -> dict[str, int]:
        """Return the number of origins in memory; none of them is tracked as a sender."""
        return {"heard": self.origins.heard.count}


class RelayIntake:
    """Selects registrations from other records; their origin is that of subject and header, which must agree."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.slow_count = 0

    def give(self, draft: RelayDraft, message: SourceMessage, *, too_old: bool) -> bool:
        found = parse_subject(message.subject)
        if found is None or found.record_type is not RecordType.REGISTRATION:
            return draft.skip(message, "skipped", str(found.record_type) if found else "other_record")
        headers = message.headers or {}
        try:
            block_id, incarnation, sequence = wire.parse_origin_header(headers[wire.ORIGIN_HEADER])
        except (KeyError, WireError):
            return draft.skip(message, "rejected", "no_origin")
        if block_id != found.block_id:
            # Permissions protect the subject and nothing protects the header: the origin is not certain.
            return draft.skip(message, "rejected", "origin_disagrees")
        if too_old:
            return draft.skip(message, "withheld", "max_age")
        sender_id = "" if self._intake.proof_cause(headers) else _sender_by_site(headers)
        deviations: Deviations = []
        # Older agents do not name the sender in a header.
        result = Observation(sender_id, message) if sender_id else self._intake.read(message, deviations)
        self.slow_count += bool(deviations)
        if isinstance(result, Observation) and not result.unopened:
            # The first three parts have no full stop: two origins never share a name.
            return draft.relay(f"{block_id}.{result.sender_id}", incarnation, sequence, result)
        # A message of several senders: its site sampled it, and a sample of one sender must not omit another.
        nameless = result if isinstance(result, Rejected) else Rejected(message, RejectReason.BATCH)
        return (
            draft.skip(message, "probes", result.cause)
            if isinstance(result, ProbeSighting)
            else draft.pass_on(nameless)
        )


def _sender_by_site(headers: Mapping[str, str]) -> str:
    """Return the sender that the site's agent named; "" if no agent could have sent that name."""
    sender_id = wire.parse_sender_header(headers.get(wire.SENDER_HEADER, ""))
    return sender_id if is_usable(sender_id) else ""


class RelayEmitter(msgspec.Struct, frozen=True):
    """Writes relayed registrations. ``key`` is the site's secret for message ids."""

    block_id: BlockId
    key: bytes

    def rows(self, decisions: list[Decision], _state: BlockState, _watermark: WatermarkContext) -> list[OutboxRow]:
        """Return every relayed registration as a row, in order; a newer one of its origin replaces an unsent row."""
        return [self._row(decision) for decision in decisions if isinstance(decision, Forward)]

    def watermark(self, _state: BlockState, _context: WatermarkContext) -> None:
        """Return None: the sites that saw the senders write the watermarks."""

    def _row(self, decision: Forward) -> OutboxRow:
        message, block_id = decision.message, self.block_id
        headers = headers_to_keep(message.headers or {})
        headers_size = size_of_headers(headers)
        identity = (block_id.region, block_id.site, block_id.block, "relay", headers[wire.ORIGIN_HEADER])
        headers[wire.MESSAGE_ID_HEADER] = message_id(self.key, *identity)
        return OutboxRow(
            Lane.REGISTRATIONS,
            block_id.block,
            message.subject,
            headers,
            message.payload,
            decision.sender_id,
            headers_size=headers_size,
        )

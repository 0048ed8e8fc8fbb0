"""Pass a fleet's registrations on, sampled again by their origin: (region, site, block, sender).

For the upper levels of a tree. The rules:

1. Only registrations are relayed. Every other record that is met is counted and goes no further: advisories and
   watermarks travel by the streams' own sourcing, and stay those of the site that saw the senders.
2. An origin's first registration goes on, and then one for each ``sample_interval`` of the stream's time; the first
   interval is shortened by a stable hash. What a site found worth sending between two samples ends here.
3. A registration that is not newer, in its site's own stream, than the one that went on last is a repetition: however
   often a record comes round, it goes on once.
4. An origin that was not heard for ``retire_after`` is forgotten, and then is as one that never was. Beyond
   ``max_senders`` no further origin is relayed.

Nothing is said about senders: what is sampled accuses nobody.
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
from edge_agent.core.senders import NOBODY, SenderChanges, SenderPhase, SenderState, SenderTable
from edge_agent.core.untracked_draft import PositionDraft
from shared import wire
from shared.decoding import WireError
from shared.identifiers import BlockId, Incarnation, message_id
from shared.subjects import RecordType, parse_subject
from shared.wire import ForwardReason

FORGOTTEN_PER_DRAFT = 10_000


class RelayDraft(PositionDraft):
    """Registrations relayed, not yet adopted.

    An origin stands in a sender's columns: the position there is that of the site's own record that went on last.
    """

    def __init__(self, state: BlockState, origins: SenderTable) -> None:
        super().__init__(state)
        self._origins = origins
        self._touched: dict[str, SenderState] = {}
        self._new_count = 0

    def relay(self, origin: str, incarnation: Incarnation, sequence: int, observation: Observation) -> bool:
        """Pass a registration on where its origin's sample is due; ``sequence`` is that in the site's own stream."""
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
            # Forgotten at this instant, whether or not a draft was adopted since that gave its place back.
            slot = state.slot if state else NOBODY
            self._new_count += state is None
            reason: ForwardReason | None = ForwardReason.NEW
            state = SenderState(origin, slot, SenderPhase.HEARD, at, sequence, incarnation, sequence)
        else:
            reason = self._reason(state, incarnation, sequence, at)
        state.last_seen_at = at
        # Put at the end: touched origins stay in the order in which they were heard.
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
        """Pass on a registration without a sender, as its site did: there is nothing to sample it by."""
        self._read(rejected.message)
        self._count("rejected", rejected.reason)
        self._count("forwarded", ForwardReason.COPY)
        self.decisions.append(Forward("", rejected.message, ForwardReason.COPY))
        return True

    @property
    def changes_nothing(self) -> bool:
        """Tell whether only time went on, and nobody is to be forgotten."""
        return super().changes_nothing and not self._forgotten()

    def changes(self) -> SenderChanges:
        """Give the touched origins, each with the slot that it keeps, and those to be forgotten."""
        heard = list(self._touched.values())
        nameless = [state for state in heard if state.slot == NOBODY]
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
    """A block that relays, as of the last draft that was adopted."""

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
        """Count the origins that are remembered; none of them is watched."""
        return {"heard": self.origins.heard.count}


class RelayIntake:
    """Tell registrations from other records, and where they come from: by subject and origin, which must agree."""

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
            # Permissions protect the subject, nothing the header: whose it is cannot be told.
            return draft.skip(message, "rejected", "origin_disagrees")
        if too_old:
            return draft.skip(message, "withheld", "max_age")
        named = "" if self._intake.what_else(headers) else _named_by_site(headers)
        deviations: Deviations = []
        # Older agents do not say whom they heard.
        result = Observation(named, message) if named else self._intake.read(message, deviations)
        self.slow_count += bool(deviations)
        if isinstance(result, Observation) and not result.unopened:
            # None of the first three parts holds a full stop: two origins never share a name.
            return draft.relay(f"{block_id}.{result.sender_id}", incarnation, sequence, result)
        # One of several senders: its site has sampled it, and the sample of one sender may not leave out another.
        nameless = result if isinstance(result, Rejected) else Rejected(message, RejectReason.BATCH)
        return (
            draft.skip(message, "probes", result.cause)
            if isinstance(result, ProbeSighting)
            else draft.pass_on(nameless)
        )


def _named_by_site(headers: Mapping[str, str]) -> str:
    """Give the sender as its site knows it; nothing where no agent could have sent that name."""
    sender_id = wire.parse_sender_header(headers.get(wire.SENDER_HEADER, ""))
    return sender_id if is_usable(sender_id) else ""


class RelayEmitter(msgspec.Struct, frozen=True):
    """Writes relayed registrations. ``key`` is the site's secret for message ids."""

    block_id: BlockId
    key: bytes

    def rows(self, decisions: list[Decision], _state: BlockState, _watermark: WatermarkContext) -> list[OutboxRow]:
        """Write every relayed registration as a row, in order; a newer one of its origin replaces it while unsent."""
        return [self._row(decision) for decision in decisions if isinstance(decision, Forward)]

    def watermark(self, _state: BlockState, _context: WatermarkContext) -> None:
        """Vouch for nothing: those who saw the senders do."""

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

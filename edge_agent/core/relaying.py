"""Read what a relay meets, and write what it passes on: the record's own subject, headers and bytes."""

from collections.abc import Mapping

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Decision, Forward
from edge_agent.core.intake import Intake, is_usable
from edge_agent.core.json_path import Met
from edge_agent.core.observation import Observation, Rejected, SourceMessage
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext, kept_headers, size_of_headers
from edge_agent.core.relay_mode import RelayDraft
from shared import wire
from shared.identifiers import BlockId, message_id
from shared.subjects import RecordType, parse_subject
from shared.wire import WireError


class RelayIntake:
    """Tell registrations from other records, and where they come from: by subject and origin, which must agree."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self.slow_count = 0

    def give(self, draft: RelayDraft, message: SourceMessage, *, too_old: bool) -> bool:
        """Give a message to a draft, which takes it always."""
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
        met: Met = []
        # Older agents do not say whom they heard.
        taken = Observation(named, message) if named else self._intake.read(message, met)
        self.slow_count += bool(met)
        if isinstance(taken, Observation):
            # None of the first three parts holds a full stop: two origins never share a name.
            return draft.relay(f"{block_id}.{taken.sender_id}", incarnation, sequence, taken)
        return draft.pass_on(taken) if isinstance(taken, Rejected) else draft.skip(message, "probes", taken.cause)


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
        headers = kept_headers(message.headers or {})
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

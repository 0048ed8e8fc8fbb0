"""Copy mode: copy every message of a stream, in its order, without sampling, senders or advisories.

A copy is never dropped and never replaced. Messages that cannot be copied, or that ``max_age`` withholds, are counted.
"""

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Copy, Decision
from edge_agent.core.observation import MARKER_HEADER, PROBE_HEADER, SourceMessage
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext, headers_to_keep, size_of_headers
from edge_agent.core.untracked_draft import PositionDraft
from shared import wire
from shared.identifiers import BlockId, message_ids
from shared.wire import ForwardReason

# In bytes: a server ends the connection of a client whose subject does not fit into its control line (4 KiB).
SUBJECT_LIMIT = 2048


class CopySubject(msgspec.Struct, frozen=True):
    """The target of copies: ``prefix``, then the message's subject without every occurrence of ``remove``.

    The peer's ``target_subject_prefix`` and ``target_subject_remove`` mean the same, except that it also removes from
    the prefix. As there, adjacent full stops become one.
    """

    prefix: str
    remove: str = ""

    def of(self, subject: str) -> str | None:
        """Return the copy's subject, None if no subject that can be published on is left."""
        kept = subject.replace(self.remove, "") if self.remove else subject
        target = f"{self.prefix}.{kept}"
        while ".." in target:
            target = target.replace("..", ".")
        try:
            size = len(target.encode())
        except UnicodeEncodeError:
            return None
        if target == f"{self.prefix}." or target.endswith(".") or size > SUBJECT_LIMIT:
            return None
        return target


class CopyDraft(PositionDraft):
    """Messages to be copied, not yet adopted."""

    def copy(self, message: SourceMessage, subject: str) -> bool:
        self._read(message)
        self.decisions.append(Copy(message, subject))
        return True

    def state(self) -> BlockState:
        """Return the block's state after the inputs; copies are counted here, once for all of them."""
        if self.decisions:
            self._counts["forwarded"] = {ForwardReason.COPY: len(self.decisions)}
        return super().state()


class Copier:
    """State of a block that copies, as of the last draft that was adopted."""

    def __init__(self, state: BlockState) -> None:
        self.state = state

    def draft(self) -> CopyDraft:
        return CopyDraft(self.state)

    def adopt(self, draft: CopyDraft) -> None:
        """Make a draft's result the state; its commit has begun, or its copies are on the fast path."""
        self.state = draft.state()

    def sender_counts(self) -> dict[str, int]:
        return {}


class CopyIntake:
    """Finds a message's target subject; does not read its body."""

    slow_count = 0

    def __init__(self, target: CopySubject) -> None:
        self._target = target

    def give(self, draft: CopyDraft, message: SourceMessage, *, too_old: bool) -> bool:
        """Add a message to a draft, which always takes it."""
        if message.headers and PROBE_HEADER in message.headers:
            return draft.skip(message, "skipped", "probe")
        if message.headers and MARKER_HEADER in message.headers:
            # Without its headers, which are not copied, it would be an empty message.
            return draft.skip(message, "skipped", "delete_marker")
        if too_old:
            return draft.skip(message, "withheld", "max_age")
        subject = self._target.of(message.subject)
        if subject is None:
            return draft.skip(message, "rejected", "subject_not_usable")
        return draft.copy(message, subject)


class CopyEmitter(msgspec.Struct, frozen=True):
    """Writes copies as records. ``key`` is the site's secret for message ids."""

    block_id: BlockId
    key: bytes

    def rows(self, decisions: list[Decision], state: BlockState, _watermark: WatermarkContext) -> list[OutboxRow]:
        """Return every copy as a row, in order; the parts that they share are made once."""
        block_id, stream, incarnation = self.block_id, state.position.stream, state.position.incarnation
        site, block, origin = block_id.site, block_id.block, f"{block_id}.{incarnation}"
        # Without the epoch: after the store was lost, the same message must get the same id again.
        id_of = message_ids(self.key, block_id.region, site, block, "copy", incarnation.created_at)
        rows = []
        for decision in decisions:
            assert isinstance(decision, Copy)
            message = decision.message
            sequence = message.sequence
            headers = headers_to_keep(message.headers) if message.headers else {}
            headers_size = size_of_headers(headers) if headers else 0
            headers[wire.ORIGIN_HEADER] = f"{origin}.{sequence}"
            headers[wire.SOURCE_HEADER] = wire.source_header(stream, sequence, site, block, message.stored_at)
            headers[wire.REASON_HEADER] = "copy"
            headers[wire.MESSAGE_ID_HEADER] = id_of(sequence, message.stored_at)
            rows.append(
                OutboxRow(Lane.COPIES, block, decision.subject, headers, message.payload, headers_size=headers_size)
            )
        return rows

    def watermark(self, _state: BlockState, _context: WatermarkContext) -> None:
        """Return None: a watermark would claim that senders were tracked."""

"""Months of one site in virtual time, played through the agent's own tracker; yields its agent's publishes.

Every registration of the schedule is a sighting that the tracker sees; nothing is decided here. Between sightings
come the agent's proofs that it has caught up, and, every ``watermark_interval``, its watermark. Bodies are made only
for what the tracker forwards: with neither size trigger nor digest it does not look at them.

While the agent is blind it sees nothing, and what was said then is lost: what remains of such a span is the time
between two proofs, from which the tracker draws its own conclusion. Nothing here reads a clock, publishes or writes.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, Decision, Forward
from edge_agent.core.draft import Draft
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, OutboxRow, WatermarkContext
from edge_agent.core.tracker import Tracker
from edge_agent.simulator.bodies import RegistrationBodies
from edge_agent.simulator.fleet import FOREVER, Fleet, Span
from shared.identifiers import AdvisoryKind, Incarnation, SourcePosition

_NO_LIMIT = 1 << 60
_PHASE_CHANGES = {
    AdvisoryKind.NEW: (1, 0),
    AdvisoryKind.STALE: (-1, 1),
    AdvisoryKind.RECOVERED: (1, -1),
    AdvisoryKind.RETIRED: (0, -1),
}
"""What an advisory adds to the number of heard and of stale senders."""


class HistorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Names in a site's records, in addition to its fleet.

    ``started_at`` (Unix) and all durations are microseconds; ``policy`` has neither size trigger nor maximal age.
    """

    emitter: Emitter
    policy: Policy
    stream: str
    started_at: int
    watermark_interval: int


class SiteHistory:
    """One site, from the start of virtual time on; ``advance_to`` continues from the end of the last call.

    ``blind_spans`` say when the agent is blind, in order, none of them overlapping.
    """

    def __init__(
        self, fleet: Fleet, settings: HistorySettings, bodies: RegistrationBodies, blind_spans: Sequence[Span]
    ) -> None:
        self.fleet = fleet
        self.sighting_count = 0
        self._settings = settings
        self._bodies = bodies
        self._blind = iter([*blind_spans, (FOREVER, FOREVER)])
        self._blind_from, self._blind_to = next(self._blind)
        self._registrations = chain(fleet.registrations(), [(FOREVER, 0)])
        self._next_due, self._next_sender = next(self._registrations)
        incarnation = Incarnation(settings.started_at, settings.started_at // 1_000)
        position = SourcePosition(settings.stream, incarnation, 0)
        self._tracker = Tracker(BlockState(position, settings.policy))
        # Proofs come often enough that a quiet stream is never taken for a blind agent.
        per_watermark = -(-settings.watermark_interval // (settings.policy.blind_after // 2))
        self._proof_interval = settings.watermark_interval // per_watermark
        self._proofs_per_watermark = per_watermark
        self._proof_number = 0
        self._heard = self._stale = 0

    def advance_to(self, ended_at: int) -> list[OutboxRow]:
        """Advance virtual time to ``ended_at``, in one draft; return the rows of that time in order.

        Of what falls on ``ended_at`` itself, registrations belong to the next call, proof and watermark to this one.
        """
        draft = self._tracker.draft(decision_limit=_NO_LIMIT)
        rows: list[OutboxRow] = []
        emitted = 0
        while (proof_at := self._proof_number * self._proof_interval) <= ended_at:
            self._observe_until(draft, proof_at)
            if not self._is_blind_at(proof_at):
                draft.prove(self._settings.started_at + proof_at)
                if self._proof_number % self._proofs_per_watermark == 0:
                    rows.extend(self._rows(draft, draft.decisions[emitted:]))
                    emitted = len(draft.decisions)
                    rows.append(self._settings.emitter.watermark(draft.state(), self._context()))
            self._proof_number += 1
        self._observe_until(draft, ended_at)
        rows.extend(self._rows(draft, draft.decisions[emitted:]))
        self._tracker.adopt(draft)
        return rows

    def _observe_until(self, draft: Draft, ended_at: int) -> None:
        """Pass every registration that is due before ``ended_at`` to the tracker, unless its agent is blind then."""
        observe, sender_ids, started_at = draft.observe, self.fleet.sender_ids, self._settings.started_at
        registrations, sequence = self._registrations, self.sighting_count
        due_at, sender = self._next_due, self._next_sender
        while due_at < ended_at:
            if due_at < self._blind_from or not self._is_blind_at(due_at):
                sequence += 1
                observe(Observation(sender_ids[sender], SourceMessage("", b"", None, sequence, started_at + due_at)))
            due_at, sender = next(registrations)
        self._next_due, self._next_sender, self.sighting_count = due_at, sender, sequence

    def _is_blind_at(self, at: int) -> bool:
        """Return True if the agent is blind; call it in the order of time."""
        while at >= self._blind_to:
            self._blind_from, self._blind_to = next(self._blind)
        return self._blind_from <= at

    def _rows(self, draft: Draft, decisions: list[Decision]) -> list[OutboxRow]:
        for decision in decisions:
            if isinstance(decision, Advise):
                heard, stale = _PHASE_CHANGES[decision.kind]
                self._heard += heard
                self._stale += stale
        return self._settings.emitter.rows(list(self._with_bodies(decisions)), draft.state(), self._context())

    def _with_bodies(self, decisions: list[Decision]) -> Iterator[Decision]:
        interval = self.fleet.settings.registration_interval
        for decision in decisions:
            if isinstance(decision, Forward):
                message = decision.message
                at = message.stored_at
                number = (at - self._settings.started_at) // interval
                body = self._bodies.body(decision.sender_id, number, at)
                yield msgspec.structs.replace(decision, message=msgspec.structs.replace(message, payload=body))
            else:
                yield decision

    def _context(self) -> WatermarkContext:
        return WatermarkContext(
            senders={"heard": self._heard, "stale": self._stale},
            outbox={"advisories": 0, "registrations": 0},
            outbox_counters={},
        )

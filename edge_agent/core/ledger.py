"""Write down what follows from a draft's inputs: decisions in their order, the inputs to be recorded, and counts."""

import msgspec

from edge_agent.core.block_state import Counters
from edge_agent.core.decisions import Advise, Decision, Forward, RecordedInput
from edge_agent.core.observation import Observation, Rejected, RejectReason, SourceMessage
from edge_agent.core.rejections import Rejections, with_another
from edge_agent.core.senders import SenderState
from shared.identifiers import AdvisoryKind, Incarnation
from shared.wire import ForwardReason


class Ledger:
    """What one draft has decided so far. ``ordinal`` is that of the last advisory, in this incarnation."""

    def __init__(self, ordinal: int, rejections: Rejections) -> None:
        self.ordinal = ordinal
        self.rejections = rejections
        self.decisions: list[Decision] = []
        self.recorded: list[RecordedInput] = []
        self.counts: Counters = {}

    def advise(
        self,
        kind: AdvisoryKind,
        state: SenderState,
        at: int,
        *,
        incarnation: Incarnation,
        sequence: int,
        rebuilt: bool = False,
    ) -> None:
        """Say what a sender became; ``state`` is as it was before the sighting of ``sequence``, if one caused it."""
        self.ordinal += 1
        self.count("advisories", kind)
        self.decisions.append(
            Advise(
                kind,
                state.sender_id,
                at,
                state.last_seen_at,
                incarnation,
                sequence,
                state.opening_incarnation,
                state.opening_sequence,
                self.ordinal,
                rebuilt,
            )
        )

    def retire(
        self,
        state: SenderState,
        at: int,
        incarnation: Incarnation,
        *,
        by_operator: bool = False,
        unheard_until: int = 0,
    ) -> None:
        """Say that a sender is forgotten: for its silence, because an operator says so, or nobody could hear it."""
        self.advise(AdvisoryKind.RETIRED, state, at, incarnation=incarnation, sequence=state.last_sequence)
        if by_operator or unheard_until:
            self.decisions[-1] = msgspec.structs.replace(
                self.decisions[-1], by_operator=by_operator, unheard_until=unheard_until
            )

    def forward(self, state: SenderState, observation: Observation, reason: ForwardReason, at: int) -> None:
        """Let a sighting go on, and note it as what was forwarded last."""
        message = observation.message
        state.first_interval = not state.last_forwarded_at
        state.last_forwarded_at = at
        state.forwarded_size = len(message.payload)
        state.forwarded_digest = observation.digest
        self.count("forwarded", reason)
        self.decisions.append(Forward(state.sender_id, message, reason))

    def pass_on(self, rejected: Rejected) -> None:
        """Let a message go on that names no sender."""
        self.count("forwarded", ForwardReason.COPY)
        self.decisions.append(Forward("", rejected.message, ForwardReason.COPY))

    def refuse(self, message: SourceMessage, reason: RejectReason, at: int) -> None:
        """Count a message that is no registration, and remember it."""
        self.count("rejected", reason)
        self.rejections = with_another(self.rejections, message, reason, at)

    def turn_away(self, message: SourceMessage, at: int) -> None:
        """Refuse a message whose sender would be one too many; it is not passed on, since any number may follow."""
        self.refuse(message, RejectReason.TOO_MANY_SENDERS, at)
        self.count("withheld", RejectReason.TOO_MANY_SENDERS)

    def count(self, what: str, cause: str) -> None:
        """Count what happened, by its cause."""
        causes = self.counts.get(what)
        if causes is None:
            causes = self.counts[what] = {}
        causes[cause] = causes.get(cause, 0) + 1

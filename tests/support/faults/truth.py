"""Independent judge: the advisories that the claimed coverage promises, computed from the stream alone.

It knows when messages were stored and by which sender, what watermarks cover, when the site's server was made to store
nothing, and the documented thresholds. It uses neither the tracker nor anything that an agent recorded, so an agent
whose rules are wrong cannot pass.

Invariants, for each sender and each covered span ``[since, through]``:

1. A sender's first message, and the first one after it was retired, is its ``new``.
2. A silence that lasts longer than ``stale_after``, counted from the last message or from ``since`` where that is
   later, is one ``stale`` at exactly that instant, and the next message its ``recovered``.
3. A silence of ``retire_after - stale_after`` of covered time after ``stale`` is one ``retired``.
4. Nothing else exists. An order of the operator may retire a sender; a sender that the stream refused is retired
   as unheard instead of called stale.
5. No span covers time of which the stream shows nothing: longer than twice ``blind_after`` between two messages.
6. Time in which messages follow one another closely is covered, if the server always stored and its clock is steady.

A clock that is set back shows the same time twice; a message stored meanwhile counts somewhere in that time, so an
instant is an interval ``[low, high]`` here.
"""

from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from msgspec import UNSET

from shared import wire
from shared.identifiers import AdvisoryKind
from shared.instants import LATEST
from shared.subjects import advisory_subject, watermark_subject
from shared.wire import Advisory
from tests.support.faults.evidence import Evidence


class Heard(NamedTuple):
    """One message of a sender: its sequence, and the earliest and latest instant at which it may count."""

    sequence: int
    low: int
    high: int


class Span(NamedTuple):
    """Claimed coverage, in microseconds."""

    since: int
    through: int


def contradictions(evidence: Evidence) -> Iterator[str]:
    """Yield a line for each advisory that is missing, wrong or without a cause, and for each wrong span of coverage."""
    spans = covered_spans(evidence)
    advisory_subjects = {advisory_subject(evidence.block_id, kind) for kind in AdvisoryKind}
    advisories: dict[str, dict[str, Advisory]] = defaultdict(dict)
    for record in evidence.fleet:
        if record.subject in advisory_subjects:
            advisory = wire.decode_advisory(record.payload)
            assert isinstance(advisory, Advisory)
            advisories[advisory.value][advisory.event_id] = advisory
    heard = messages_by_sender(evidence)
    for sender_id in sorted({*heard, *advisories}):
        in_order = sorted(advisories[sender_id].values(), key=lambda advisory: (advisory.at_us, advisory.kind.rank))
        yield from _Walk(evidence, spans, heard[sender_id], in_order).contradictions(sender_id)
    yield from _wrong_spans(evidence, spans)


def messages_by_sender(evidence: Evidence) -> dict[str, list[Heard]]:
    """Return the messages of each sender in the stream's order, by the name that the publisher put in a header."""
    heard = defaultdict(list)
    latest = 0
    for by_agent, message in evidence.messages:
        latest = max(latest, message.stored_at)
        repeated = [end for begin, end in evidence.shown_twice if begin <= message.stored_at <= end]
        if sender_id := evidence.published_by.get(message.sequence) or by_agent:
            heard[sender_id].append(Heard(message.sequence, latest, max([latest, *repeated])))
    return heard


def covered_spans(evidence: Evidence) -> list[Span]:
    """Return the spans that watermarks cover, in order; an empty span starts coverage that another one continues."""
    through: dict[int, int] = {}
    for record in evidence.fleet:
        if record.subject == watermark_subject(evidence.block_id):
            mark = wire.decode_watermark(record.payload)
            since = mark.observed_since_us
            through[since] = max(through.get(since, since), mark.observed_through_us)
    return [Span(*span) for span in sorted(through.items())]


class _Walk:
    """One sender's messages and advisories, followed side by side."""

    def __init__(
        self, evidence: Evidence, spans: Sequence[Span], heard: Sequence[Heard], advisories: Sequence[Advisory]
    ) -> None:
        self._policy = evidence.policy
        self._retired_by_order = evidence.retired_by_order
        self._refusals = [down for down in evidence.downs if down.refuses]
        # The agent may decide more before it ends than its last watermark covers.
        self._spans = [*spans[:-1], *(Span(since, LATEST) for since, _ in spans[-1:])]
        self._claimed_through = spans[-1].through if spans else 0
        self._heard = heard
        self._waiting = deque(advisories)
        self._is_known = False
        self._stale_at: int | None = None

    def contradictions(self, sender_id: str) -> Iterator[str]:
        """Yield the first contradiction; later ones may only follow from it."""
        try:
            for message, following in pairwise([*self._heard, None]):
                assert message is not None
                low, high = self._take_message(message)
                while self._take_order(message) or self._take_deadline(low, high, following):
                    """A stale sender may be retired before its next message."""
            if self._waiting:
                raise _Contradiction("nothing calls for it")
        except _Contradiction as contradiction:
            found = self._waiting[0] if self._waiting else None
            at = f"{found.kind} at {found.at_us}, message {found.sequence}" if found else "no advisory"
            yield f"{sender_id}: {contradiction}; found: {at}"

    def _take_message(self, message: Heard) -> tuple[int, int]:
        """Return the bounds of the instant at which a message counts."""
        if self._is_known and self._stale_at is None:
            return message.low, message.high
        kind = AdvisoryKind.RECOVERED if self._is_known else AdvisoryKind.NEW
        advisory = self._take(kind, message.low, message.high)
        if advisory.sequence != message.sequence:
            raise _Contradiction(f"{kind} is of message {advisory.sequence}, not of {message.sequence}")
        self._is_known, self._stale_at = True, None
        return advisory.at_us, advisory.at_us

    def _take_order(self, message: Heard) -> bool:
        """Consume a retirement that an operator ordered after this message; return False if none is next."""
        if self._is_known and self._waiting and self._waiting[0].by_operator is True:
            found = self._waiting[0]
            if found.sequence == message.sequence and found.value in self._retired_by_order:
                self._waiting.popleft()
                self._is_known, self._stale_at = False, None
                return True
        return False

    def _take_deadline(self, low: int, high: int, following: Heard | None) -> bool:
        """Consume the advisory of the silence before the ``following`` message; return False if there is none."""
        if not self._is_known:
            return False
        if self._is_next(following, AdvisoryKind.RETIRED) and self._is_unheard(low):
            self._waiting.popleft()
            self._is_known, self._stale_at = False, None
            return True
        kind = AdvisoryKind.STALE if self._stale_at is None else AdvisoryKind.RETIRED
        bounds = self._stale_bounds(low, high) if self._stale_at is None else self._retired_bounds(self._stale_at)
        if bounds is None:
            return False
        # Where the clock was set back, either may have come first; beyond the last watermark, nothing is promised.
        is_certain = bounds[1] < self._claimed_through and (following is None or bounds[1] < following.low)
        is_late = following is not None and bounds[0] >= following.high
        if is_late or not (is_certain or self._is_next(following, kind)):
            return False
        advisory = self._take(kind, *bounds)
        self._is_known = kind is AdvisoryKind.STALE
        self._stale_at = advisory.at_us if self._is_known else None
        return True

    def _take(self, kind: AdvisoryKind, low: int, high: int) -> Advisory:
        if not self._waiting or self._waiting[0].kind is not kind or not low <= self._waiting[0].at_us <= high:
            raise _Contradiction(f"{kind} is due at {low}" + (f" to {high}" if high > low else ""))
        return self._waiting.popleft()

    def _is_next(self, following: Heard | None, kind: AdvisoryKind) -> bool:
        """Return True if the next advisory is of this kind and precedes the following message."""
        if not self._waiting or self._waiting[0].kind is not kind:
            return False
        return following is None or self._waiting[0].at_us <= following.high

    def _is_unheard(self, low: int) -> bool:
        """Return True if the next advisory says so, and the sender was not heard since the stream refused messages."""
        at = self._waiting[0].at_us
        if self._waiting[0].unheard_until_us is UNSET:
            return False
        since = max((span.since for span in self._spans if span.since < at), default=at)
        return any(down.started_at < at and low < max(down.ended_at, since) for down in self._refusals)

    def _stale_bounds(self, low: int, high: int) -> tuple[int, int] | None:
        after = self._policy.stale_after
        for since, through in self._spans:
            if max(low, since) + after < through:
                return max(low, since) + after, max(high, since) + after
        return None

    def _retired_bounds(self, stale_at: int) -> tuple[int, int] | None:
        remaining = self._policy.retire_after - self._policy.stale_after
        for since, through in self._spans:
            covered = through - max(since, stale_at)
            if covered > remaining:
                at = max(since, stale_at) + remaining
                return at, at
            remaining -= max(covered, 0)
        return None


class _Contradiction(Exception):
    """A sender's advisories do not follow from its messages."""


def _wrong_spans(evidence: Evidence, spans: Sequence[Span]) -> Iterator[str]:
    for before, after in pairwise(spans):
        if after.since < before.through:
            yield f"coverage from {after.since} began before that of {before.since} ended, at {before.through}"
    policy = evidence.policy
    stored_at = sorted({message.stored_at for _, message in evidence.messages})
    for earlier, later in pairwise(stored_at):
        is_quiet = later - earlier > 2 * policy.blind_after
        for since, through in spans:
            if is_quiet and since < later and earlier + policy.blind_after < through:
                yield f"coverage from {since} to {through} includes {later - earlier} us without a message"
    if not (evidence.downs or evidence.shown_twice):
        for started_at, ended_at in _uncovered(stored_at, spans, policy.blind_after):
            yield f"no coverage from {started_at} to {ended_at}, though messages followed one another"


def _uncovered(stored_at: Sequence[int], spans: Sequence[Span], blind_after: int) -> Iterator[Span]:
    """Yield the stretches of messages at most ``blind_after`` apart that no span covers."""
    started_at = 0
    for earlier, later in pairwise(stored_at):
        is_covered = any(since <= earlier and later <= through for since, through in spans)
        if later - earlier > blind_after or is_covered or later > spans[-1].through:
            if started_at:
                yield Span(started_at, earlier)
            started_at = 0
        else:
            started_at = started_at or earlier

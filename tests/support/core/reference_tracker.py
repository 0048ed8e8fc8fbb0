"""The tracker's rules once more, slow and obvious: a dict of senders, all of them scanned for every deadline."""

from typing import NamedTuple

import msgspec

from edge_agent.core.policy import Policy
from shared.identifiers import AdvisoryKind
from shared.wire import ForwardReason


class Told(NamedTuple):
    """One advisory, as far as the rules decide it."""

    kind: AdvisoryKind
    sender: str
    at: int
    last_seen_at: int
    sequence: int
    opening: tuple[int, int]
    ordinal: int


class Sent(NamedTuple):
    """One forwarded registration."""

    sequence: int
    reason: ForwardReason


class Closed(NamedTuple):
    """One stretch of coverage that a blind span or a changed past has ended."""

    since: int
    through: int
    ordinal: int


class Sighting(NamedTuple):
    """One registration; ``sender`` is None where nobody can be read out of it."""

    sequence: int
    at: int
    sender: str | None
    size: int
    digest: int
    forced: bool


class _Sender(msgspec.Struct):
    last_seen_at: int
    last_sequence: int
    opening: tuple[int, int]
    stale_at: int | None = None
    forwarded_at: int | None = None
    forwarded_size: int = 0
    forwarded_digest: int = 0
    forward_count: int = 0


class ReferenceTracker:
    """One block from its first proof on. ``out`` is everything that was decided, in order."""

    def __init__(self, policy: Policy) -> None:
        self.out: list[Told | Sent | Closed] = []
        self.now: int | None = None
        self._policy = policy
        self._policy_at = 0
        self._since = 0
        self._senders: dict[str, _Sender] = {}
        self._blind_spans: list[tuple[int, int]] = []
        self._is_blind = False
        self._epoch = 0
        self._is_epoch_new = False
        self._ordinal = 0
        self._refuses = self._awaits_word = self._by_subject = False
        self._is_ahead = False
        self._narrowed_at = 0
        self._unheard_since: int | None = None

    def see(self, sighting: Sighting) -> None:
        self.prove(sighting.at)
        assert self.now is not None
        at = self.now
        if sighting.sender is None:
            self.out.append(Sent(sighting.sequence, ForwardReason.COPY))
            return
        sender = self._senders.get(sighting.sender)
        if sender is None and len(self._senders) >= self._policy.max_senders:
            return
        if sender is None:
            sender = _Sender(at, sighting.sequence, (self._epoch, sighting.sequence))
            self._senders[sighting.sender] = sender
            self._tell(AdvisoryKind.NEW, sighting.sender, at, sighting.sequence)
            reason: ForwardReason | None = ForwardReason.NEW
        elif sender.stale_at is not None:
            self._tell(AdvisoryKind.RECOVERED, sighting.sender, at, sighting.sequence)
            sender.stale_at = None
            reason = ForwardReason.RECOVERED
        else:
            reason = self._reason(sender, sighting, at)
        if sighting.at >= self._narrowed_at:
            self._awaits_word = False
        sender.last_seen_at, sender.last_sequence = at, sighting.sequence
        if reason is not None:
            sender.forwarded_at, sender.forward_count = at, sender.forward_count + 1
            sender.forwarded_size, sender.forwarded_digest = sighting.size, sighting.digest
            self.out.append(Sent(sighting.sequence, reason))

    def prove(self, at: int) -> None:
        if self.now is None:
            self.now = self._since = at
            self._is_blind = self._is_epoch_new = False
            return
        if self._is_ahead:
            return
        if self._refuses or self._awaits_word:
            self._blind_spans.append((self.now, max(at, self.now)))
            self._since = self.now = max(at, self.now)
            self._is_blind = self._is_epoch_new = False
            return
        if self._is_blind or at - self.now > self._policy.blind_after:
            self._settle(self.now)
            if not self._is_epoch_new:
                self.out.append(Closed(self._since, self.now, self._ordinal))
            self._blind_spans.append((self.now, max(at, self.now)))
            self._since = self.now = max(at, self.now)
            self._is_blind = self._is_epoch_new = False
        self._settle(at)
        self.now = max(self.now, at)

    def lose(self) -> None:
        self._is_blind = True

    def see_clock(self, is_ahead: bool, reference: int) -> None:
        if is_ahead and self.now is None:
            self.prove(reference)
        self._is_blind = self._is_blind or (self._is_ahead and not is_ahead)
        self._is_ahead = is_ahead

    def look(
        self, refuses: bool, awaits_word: bool, narrowed_before: int | None, by_subject: bool, unheard: bool
    ) -> None:
        """See the stream refuse, take less (than ``narrowed_before`` its last proof, None: than never), or neither."""
        was_suspended, before = self._refuses or self._awaits_word, self._narrowed_at
        ends_by_subject = self._by_subject and not by_subject
        self._refuses, self._awaits_word, self._by_subject = refuses, awaits_word, by_subject
        self._narrowed_at = 0 if narrowed_before is None else (self.now or 0) - narrowed_before
        self._unheard_since = self.now if unheard else None
        is_suspended = refuses or awaits_word
        if is_suspended and not was_suspended:
            if self.now is not None and not self._is_epoch_new:
                self.out.append(Closed(self._since, self.now, self._ordinal))
                self._since, self._is_blind = self.now, False
        elif not is_suspended and (was_suspended or ends_by_subject or self._narrowed_at < before):
            self._is_blind = True

    def begin_epoch(self) -> None:
        is_closed = self._refuses or self._awaits_word or self._is_epoch_new
        if self.now is not None and not is_closed:
            self.out.append(Closed(self._since, self.now, self._ordinal))
        self._epoch, self._ordinal = self._epoch + 1, 0
        self._is_blind = self._is_epoch_new = True

    def change_policy(self, policy: Policy) -> None:
        self._policy, self._policy_at = policy, self.now or 0

    def _settle(self, at: int) -> None:
        while self._senders:
            due, kind, name = min(self._deadline(name) for name in self._senders)
            if due >= at:
                return
            sender = self._senders[name]
            is_heard_of = sender.last_seen_at >= self._narrowed_at and not self._by_subject
            if kind == AdvisoryKind.STALE.rank and is_heard_of:
                sender.stale_at = due
                self._tell(AdvisoryKind.STALE, name, due, sender.last_sequence)
            else:
                self._tell(AdvisoryKind.RETIRED, name, due, sender.last_sequence)
                del self._senders[name]

    def _deadline(self, name: str) -> tuple[int, int, str]:
        """Give when a sender's next change falls due, which it is, and whose: in the order of their settling."""
        sender = self._senders[name]
        if sender.stale_at is None:
            due = max(sender.last_seen_at, self._since) + self._policy.stale_after
            return max(due, self._policy_at), AdvisoryKind.STALE.rank, name
        if self._unheard_since is not None and sender.stale_at <= self._unheard_since:
            return max(self._unheard_since, self._since), AdvisoryKind.RETIRED.rank, name
        blind = sum(ended - started for started, ended in self._blind_spans if started >= sender.stale_at)
        due = sender.stale_at + self._policy.retire_after - self._policy.stale_after + blind
        return max(due, self._policy_at, self._since), AdvisoryKind.RETIRED.rank, name

    def _reason(self, sender: _Sender, sighting: Sighting, at: int) -> ForwardReason | None:
        assert sender.forwarded_at is not None
        assert sighting.sender is not None
        interval = self._policy.sample_interval
        if sender.forward_count == 1:
            interval = self._policy.first_interval(sighting.sender)
        if at - sender.forwarded_at >= interval:
            return ForwardReason.INTERVAL
        if self._policy.size_trigger and abs(sighting.size - sender.forwarded_size) >= self._policy.size_trigger:
            return ForwardReason.SIZE
        if sighting.digest != sender.forwarded_digest:
            return ForwardReason.CHANGED
        return ForwardReason.FORCED if sighting.forced else None

    def _tell(self, kind: AdvisoryKind, name: str, at: int, sequence: int) -> None:
        self._ordinal += 1
        sender = self._senders[name]
        self.out.append(Told(kind, name, at, sender.last_seen_at, sequence, sender.opening, self._ordinal))

"""Text page of an explanation, each decision in a sentence."""

import textwrap
from collections.abc import Iterator

from edge_agent.core.decisions import (
    BlindSpan,
    Clamped,
    ClockSeen,
    EpochBegun,
    ObservationBegun,
    PolicyChanged,
    RecordedInput,
    SenderAskedFor,
    SenderRetired,
    StreamSeen,
)
from edge_agent.core.policy import Policy
from edge_agent.inspection.decisions import FORWARDED, Fate, LoggedDecision
from edge_agent.inspection.explanation import Explanation, HistoryEntry, TrackedSender, opened_at, took_effect_at
from edge_agent.inspection.moments import moment, relative, rough
from shared.command_line.tables import visible
from shared.identifiers import AdvisoryKind
from shared.instants import format_duration
from shared.sizes import format_size
from shared.wire import ForwardReason

LABEL = 17
NARROWEST = 40
REJECTIONS_SHOWN = 3


def render_explanation(explained: Explanation, *, at: int, width: int, limit: int) -> str:
    """Return the state, then the last ``limit`` (0: all) entries of the history; lines of at most ``width`` columns."""
    width = max(width, NARROWEST)
    lines = [_heading(explained)]
    for label, fact in _facts(explained, at):
        lines += textwrap.wrap(fact, width, initial_indent=f"{label:{LABEL}} ", subsequent_indent=" " * (LABEL + 1))
    return "\n".join([*lines, "", *_history(explained, width, limit)])


def _heading(explained: Explanation) -> str:
    block_id, tracked = explained.block.block_id, explained.tracked
    state = tracked.state if tracked else "not known any more"
    return f"{visible(explained.sender_id)} (site {block_id.site}, stream {block_id.block}): {state}"


def _facts(explained: Explanation, at: int) -> Iterator[tuple[str, str]]:
    if explained.tracked is not None:
        yield from (_sender_facts if explained.block.watches else _origin_facts)(explained, explained.tracked, at)
    if explained.rejections:
        yield "rejected since", _rejections(explained, at)


def _rejections(explained: Explanation, at: int) -> str:
    """Return lines about the messages that it may have sent since it was last seen, and that do not count."""
    rejections = explained.rejections
    whose = (
        "it may have been living: these are its, by their subjects or bodies"
        if explained.are_its
        else ("it may have been living: one of these may be its, which nobody can tell")
    )
    said = [
        f"{each.count:,} on {each.subject} ({each.reason}), the last at {_when(each.last_at, at)}, "
        f"message {each.sequence}: {each.excerpt or 'empty'}"
        for each in rejections[:REJECTIONS_SHOWN]
    ]
    more = (
        f"; and on {len(rejections) - REJECTIONS_SHOWN:,} more subjects" if len(rejections) > REJECTIONS_SHOWN else ""
    )
    return f"{whose}: {'; '.join(said)}{more}"


def _origin_facts(explained: Explanation, tracked: TrackedSender, at: int) -> Iterator[tuple[str, str]]:
    """Return lines about an origin of a relay, which watches no sender and samples by the interval alone."""
    yield "last seen", _when(tracked.last_seen_at, at)
    sequence, size = tracked.last_sequence, format_size(tracked.forwarded_size)
    yield "last forwarded", f"{_when(tracked.last_forwarded_at, at)}, its site's message {sequence}, {size}"
    yield "if not heard", f"forgotten at {_when(tracked.due_at, at)}; who is stale is said by its site"
    is_early = tracked.forwarded_again_at > at
    yield "if heard", f"forwarded from {_when(tracked.forwarded_again_at, at)} on" if is_early else "forwarded"
    yield "settings", _settings(explained, "retire_after", "sample_interval")


def _sender_facts(explained: Explanation, tracked: TrackedSender, at: int) -> Iterator[tuple[str, str]]:
    state = explained.block.state
    yield "last seen", f"{_when(tracked.last_seen_at, at)}, message {tracked.last_sequence}"
    size = f", {format_size(tracked.forwarded_size)}" if tracked.last_forwarded_at else ""
    yield "last forwarded", f"{_when(tracked.last_forwarded_at, at)}{size}"
    began = opened_at(explained.history)
    since = f"began {_when(began, at)}, with" if began else "began, before the log does, with"
    yield "episode", f"{since} message {tracked.opening_sequence}"
    if explained.is_watched:
        becomes = "retired" if tracked.state == "stale" else "stale"
        yield "if not heard", f"{becomes} at {_when(tracked.due_at, at)}"
        yield "stream watched", f"through {_when(state.observed_through, at)}"
        yield "without a gap", f"since {_when(state.observed_since, at)}"
    else:
        yield "if not heard", "nothing, until the stream is watched again for some time"
        yield "stream watched", f"not now; last through {_when(state.observed_through, at)}"
    yield "if heard", _if_heard(tracked, at)
    yield "settings", _settings(explained, "stale_after", "retire_after", "sample_interval")


def _settings(explained: Explanation, *names: str) -> str:
    policy = explained.block.state.policy
    return ", ".join(f"{name} {format_duration(getattr(policy, name))}" for name in names)


def _if_heard(tracked: TrackedSender, at: int) -> str:
    if tracked.state == "stale":
        return "recovered, and forwarded"
    if tracked.forwarded_again_at > at:
        return f"forwarded from {_when(tracked.forwarded_again_at, at)} on, sooner if it changes"
    return "forwarded"


def _history(explained: Explanation, width: int, limit: int) -> Iterator[str]:
    sentences = Sentences(explained.block.state.policy)
    entries = [(took_effect_at(entry), *sentences.with_heading(entry)) for entry in explained.history]
    shown = entries[-limit:] if limit else entries
    if not entries:
        yield f"Nothing that was decided of it is kept: the log begins {moment(explained.log_begins_at)}."
        return
    left_out = f" ({len(entries) - len(shown)} earlier ones left out: see --limit)" if len(shown) < len(entries) else ""
    yield f"what was decided, and why{left_out}"
    for at, heading, sentence in shown:
        yield from textwrap.wrap(
            sentence, width, initial_indent=f"{moment(at):20}  {heading:9}  ", subsequent_indent=" " * 33
        )


def _when(at: int, now: int) -> str:
    return f"{moment(at)} ({relative(at, now)})" if at else "never"


_CLOCK_AHEAD = "The server's clock was ahead of all others: no time passes until it is set right."
_FATES: dict[str, str] = {
    Fate.WAITING: "waits in the outbox",
    Fate.ACKNOWLEDGED: "acknowledged",
    Fate.NEWER_SAMPLE: "never left: a newer one took its place",
    "outbox_full": "dropped: the outbox was full",
    "too_large": "dropped: larger than the region's servers take",
    "operator": "dropped by an operator",
}


class Sentences:
    """Yield the entries, oldest first; the text of some depends on earlier ones."""

    def __init__(self, policy: Policy) -> None:
        self._now = policy
        self._policy: Policy | None = None
        self._resumed_at: list[int] = []
        self._forwarded: LoggedDecision | None = None
        self._retired_at = 0
        self._seen: StreamSeen | None = None
        self._was_last = ""

    def with_heading(self, entry: HistoryEntry) -> tuple[str, str]:
        """Return a one-word heading and the sentence."""
        if isinstance(entry, LoggedDecision):
            sentence = self._of_forward(entry) if entry.decision == FORWARDED else self._of_advisory(entry)
            return entry.decision, f"{sentence} {_FATES.get(entry.record, entry.record).capitalize()}."
        return self._of_stream(entry)

    def _of_advisory(self, decided: LoggedDecision) -> str:
        silence, seen = rough(decided.at - decided.last_seen_at), moment(decided.last_seen_at)
        before, self._was_last = self._was_last, decided.decision
        match decided.decision:
            case AdvisoryKind.NEW if decided.rebuilt:
                return (
                    f"First heard by this store, in message {decided.sequence}; it replaced a lost one, so readers go "
                    "on with the episode that they know."
                )
            case AdvisoryKind.NEW:
                return f"Heard for the first time, in message {decided.sequence}."
            case AdvisoryKind.STALE:
                waited_from = decided.at - self._now.stale_after
                again = f", its time counted from {moment(waited_from)}" if waited_from in self._resumed_at else ""
                return f"Silent for {silence} since {seen} (message {decided.sequence}), the stream watched{again}."
            case AdvisoryKind.RECOVERED:
                return f"Heard again, in message {decided.sequence}, {silence} after the time before ({seen})."
            case AdvisoryKind.RETIRED if decided.at == self._retired_at:
                return f"Forgotten because an operator said so; last heard {seen}. Its next word makes it new."
            case _:
                unheard = "not heard, since the stream may not take what it sends; whether it lives is not known"
                may_be_lost = self._seen is not None and (
                    self._seen.by_subject or decided.last_seen_at < self._seen.narrowed_at
                )
                # Who could be heard is stale first.
                was_heard = before in (AdvisoryKind.NEW, AdvisoryKind.RECOVERED)
                why = unheard if may_be_lost or was_heard else "forgotten"
                return f"Silent for {silence} since {seen}: {why}. Its next word makes it new."

    def _of_forward(self, decided: LoggedDecision) -> str:
        before, self._forwarded = self._forwarded, decided
        why = _REASONS.get(decided.reason, decided.reason)
        if before is not None and decided.reason == ForwardReason.INTERVAL:
            why = f"{rough(decided.at - before.at)} had passed since the last, and its interval with it"
        if before is not None and decided.reason == ForwardReason.SIZE:
            why = f"its size had moved from {before.size:,} to {decided.size:,} bytes"
        return f"Message {decided.sequence} ({format_size(decided.size)}), because {why}."

    def _of_order(self, entry: PolicyChanged | SenderAskedFor | SenderRetired) -> str:
        if isinstance(entry, PolicyChanged):
            before, self._policy, revision = self._policy, entry.policy, entry.policy.revision
            whose = f"Revision {revision} of the hub's policy" if revision else "Settings changed"
            return f"{whose}: {_changes(before, entry.policy)}."
        if isinstance(entry, SenderAskedFor):
            return "The hub asked for its next message."
        self._retired_at = entry.at
        return "An operator said at the hub that it is gone."

    def _of_look(self, entry: StreamSeen | ClockSeen) -> tuple[str, str]:
        if isinstance(entry, ClockSeen):
            return "clock", _CLOCK_AHEAD if entry.is_ahead else "The server's clock is followed again."
        self._seen = entry
        return "stream", _look(entry)

    def _of_stream(self, entry: RecordedInput) -> tuple[str, str]:
        match entry:
            case ObservationBegun():
                self._resumed_at.append(entry.at)
                return "watching", "Watching began: this store knows of nothing before."
            case BlindSpan(started_at, ended_at, cause):
                self._resumed_at.append(ended_at)
                return "blind", (
                    f"Not watched for {rough(ended_at - started_at)} from {moment(started_at)}: {cause.meaning}. "
                    f"Whoever was heard before had all of stale_after again from here."
                )
            case EpochBegun(incarnation):
                return "epoch", f"The stream's past changed (made anew, or restored): read as {incarnation} from here."
            case StreamSeen() | ClockSeen():
                return self._of_look(entry)
            case PolicyChanged() | SenderAskedFor() | SenderRetired():
                return "policy", self._of_order(entry)
            case Clamped(sequence):
                return "clamped", f"Message {sequence} was stored earlier than what had been read: it counts here."


_REASONS: dict[str, str] = {
    ForwardReason.NEW: "it was new",
    ForwardReason.INTERVAL: "its interval had passed",
    ForwardReason.SIZE: "its size had moved by size_trigger or more",
    ForwardReason.CHANGED: "its content had changed",
    ForwardReason.FORCED: "the sender asked for it (force_path)",
    ForwardReason.RECOVERED: "it was heard again",
    ForwardReason.POLICY: "the hub asked for it",
}


def _look(entry: StreamSeen) -> str:
    if entry.refuses:
        return (
            "The stream refused what was sent to it, or lacked what it copies: no time is known from here, and nobody "
            "falls stale."
        )
    if entry.awaits_word:
        return "The stream took less than before, and nobody was heard: no time is known from here."
    if entry.thinned:
        return "The stream let go of messages before they were read: no time is known from here."
    if entry.narrowed_at or entry.by_subject:
        return "The stream takes less than before: who is not heard any more may not reach it, and falls not stale."
    return "The stream takes what is sent to it again, and what waits in it is whole."


def _changes(before: Policy | None, policy: Policy) -> str:
    names = ("sample_interval", "stale_after", "retire_after", "blind_after", "max_age")
    changed = [name for name in names if before is None or getattr(before, name) != getattr(policy, name)]
    said = [f"{name} {format_duration(getattr(policy, name))}" for name in changed]
    if before is None or before.size_trigger != policy.size_trigger:
        said.append(f"size_trigger {format_size(policy.size_trigger)}")
    return ", ".join(said) or "nothing that is timed by them"

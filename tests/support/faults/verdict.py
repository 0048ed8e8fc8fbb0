"""Judge an agent by what the site's stream said and what the region's stream holds: lost, duplicated, wrong.

Everything is a list of findings in words; none in any of the three is what must be.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate, pairwise

import msgspec
from msgspec import UNSET

from edge_agent.core.decisions import (
    BlindCause,
    BlindSpan,
    Clamped,
    EpochBegun,
    ObservationBegun,
    PolicyChanged,
    SenderRetired,
    StreamSeen,
)
from shared import subjects, wire
from shared.identifiers import AdvisoryKind
from shared.wire import Advisory, Watermark
from tests.support.faults.evidence import Evidence, FleetRecord
from tests.support.faults.stage import COPIED_SUBJECTS, Down
from tests.support.faults.truth import contradictions


class Verdict(msgspec.Struct):
    """What was found. ``counts`` is what there was to look at, by name."""

    lost: list[str] = []
    duplicated: list[str] = []
    wrong: list[str] = []
    counts: dict[str, int] = {}

    @property
    def line(self) -> str:
        """Say it in one line."""
        return f"lost, duplicated, wrong: {len(self.lost)}, {len(self.duplicated)}, {len(self.wrong)}"

    @property
    def is_clean(self) -> bool:
        """Tell whether nothing was found."""
        return not (self.lost or self.duplicated or self.wrong)


class _Held(msgspec.Struct):
    """The region's stream, each record once: payloads by identity, watermarks in the stream's order."""

    advisories: dict[str, bytes] = {}
    registrations: dict[str, bytes] = {}
    copies: dict[str, bytes] = {}
    watermarks: list[Watermark] = []


def judge(evidence: Evidence) -> Verdict:
    """Look at everything."""
    verdict = Verdict()
    held = _sort(evidence, verdict)
    _judge_stream(evidence, verdict)
    _judge_advisories(evidence, held, verdict)
    _judge_registrations(evidence, held, verdict)
    _judge_copies(evidence, held, verdict)
    verdict.wrong += _wrong_accusations(evidence, held)
    verdict.wrong += _wrong_blindness(evidence)
    verdict.wrong += _wrong_coverage(evidence, held)
    verdict.wrong += contradictions(evidence)
    kinds = Counter(str(_advisory(payload).kind) for payload in held.advisories.values())
    verdict.counts = {
        "registrations read": len(evidence.messages) - len(evidence.probes),
        "registrations forwarded": len(held.registrations),
        "registrations let go": len(evidence.fates),
        "takeovers": evidence.takeovers,
        "messages copied": len(held.copies),
        "copies set apart": len(evidence.set_apart),
        "watermarks": len(held.watermarks),
        "times without storing": sum(1 for _ in _deaf_times(evidence)),
        "blind spans": sum(1 for _ in _blind_spans(evidence)),
        "revisions of policy taken": sum(isinstance(item, PolicyChanged) for item in evidence.recorded),
        "senders retired by it": sum(isinstance(item, SenderRetired) for item in evidence.recorded),
        "messages clamped": sum(isinstance(item, Clamped) for item in evidence.recorded),
        **{f"advisories: {kind}": kinds.get(str(kind), 0) for kind in AdvisoryKind},
    }
    return verdict


def _sort(evidence: Evidence, verdict: Verdict) -> _Held:
    """Keep every record once, by its identity; whatever comes twice was not swallowed as it must be."""
    held = _Held()
    marks: dict[tuple[str, str, int], tuple[str, int, int]] = {}
    first_told: set[tuple[str, str, int]] = set()
    ordinals: set[int] = set()
    for record in evidence.fleet:
        if record.subject == subjects.registration_subject(evidence.block_id):
            _keep(held.registrations, record.headers.get(wire.ORIGIN_HEADER, ""), record, verdict)
        elif evidence.copies_id and record.subject.startswith(subjects.copy_prefix(evidence.copies_id)):
            _keep(held.copies, record.headers.get(wire.ORIGIN_HEADER, ""), record, verdict)
        elif record.subject == subjects.watermark_subject(evidence.block_id):
            mark = wire.decode_watermark(record.payload)
            identity = (mark.agent, mark.boot_id, mark.observed_through_us)
            said = (mark.incarnation, mark.observed_since_us, mark.advisory_ordinal)
            is_again = marks.setdefault(identity, said) is not said
            # What keeps the next one from coming is said with the last one once more; by an agent that was just
            # started, with what the run before it had committed, which its own first one may end.
            if marks[identity] != said or (mark.condition is UNSET and identity in first_told):
                verdict.duplicated.append(f"watermark {identity}")
            if mark.condition is UNSET:
                first_told.add(identity)
            if is_again:
                continue
            held.watermarks.append(mark)
            missing = set(range(1, mark.advisory_ordinal + 1)) - ordinals
            if missing:
                verdict.wrong.append(f"watermark {identity} came before the advisories {sorted(missing)[:5]}")
        else:
            advisory = _advisory(record.payload)
            if record.subject != subjects.advisory_subject(evidence.block_id, advisory.kind):
                verdict.wrong.append(f"an advisory on {record.subject}")
            _keep(held.advisories, advisory.event_id, record, verdict)
            ordinals.add(advisory.ordinal)
    return held


def _keep(kept: dict[str, bytes], identity: str, record: FleetRecord, verdict: Verdict) -> None:
    if identity in kept:
        difference = "the same bytes" if kept[identity] == record.payload else "other bytes"
        verdict.duplicated.append(f"{record.subject} {identity}, {difference}")
    kept.setdefault(identity, record.payload)


def _judge_stream(evidence: Evidence, verdict: Verdict) -> None:
    """What senders know to be stored is in the stream, and all of the stream was read and counted."""
    for message_id in sorted(evidence.acknowledged - evidence.stored_ids):
        verdict.lost.append(f"registration {message_id}, by the site's own server")
    position = evidence.state.position.sequence
    sequences = [message.sequence for _, message in evidence.messages]
    # A probe may be under way when the agent ends.
    last = max((sequence for sequence in sequences if sequence not in evidence.probes), default=0)
    if position < last:
        verdict.lost.append(f"registrations {position + 1} to {last}: the agent never read them")
    counters = evidence.state.counters
    counted = sum(sum(counters.get(name, {}).values()) for name in ("valid", "rejected", "probes"))
    count = sum(sequence <= max(position, last) for sequence in sequences)
    if counted != count:
        verdict.wrong.append(f"valid, rejected and probes are {counted}, but the stream holds {count}")


def _judge_advisories(evidence: Evidence, held: _Held, verdict: Verdict) -> None:
    """The region holds a straight run's advisories, to the byte, and no others."""
    straight = {_advisory(payload).event_id: payload for payload in evidence.advisories}
    for event_id, payload in straight.items():
        if event_id not in held.advisories:
            verdict.lost.append(f"advisory {_named(payload)}")
        elif held.advisories[event_id] != payload:
            verdict.wrong.append(f"advisory {_named(held.advisories[event_id])}, a straight run says {payload!r}")
    for event_id, payload in held.advisories.items():
        if event_id not in straight:
            verdict.wrong.append(f"advisory {_named(payload)}, of which a straight run knows nothing")


def _judge_registrations(evidence: Evidence, held: _Held, verdict: Verdict) -> None:
    """Whatever was chosen for forwarding is there with the sender's bytes, or was let go and counted."""
    for origin, payload in held.registrations.items():
        if origin not in evidence.forwarded:
            verdict.wrong.append(f"registration {origin} was forwarded, a straight run does not")
        elif evidence.forwarded[origin] != payload:
            verdict.wrong.append(f"registration {origin} is not what its sender published")
    for origin in evidence.forwarded:
        if origin not in held.registrations and not evidence.fates.get(wire.parse_origin_header(origin)[2]):
            verdict.lost.append(f"registration {origin}")
    verdict.wrong += [
        f"{counted} registrations counted as let go, they are {named}"
        for named, counted in evidence.let_go
        if named != counted
    ]


def _judge_copies(evidence: Evidence, held: _Held, verdict: Verdict) -> None:
    """Every message that is to be copied was, whole and in the stream's order, or is kept where it is too large."""
    if evidence.copies_id is None:
        return
    published = {
        message.sequence: message.payload for _, message in evidence.messages if message.subject in COPIED_SUBJECTS
    }
    copied = {wire.parse_origin_header(origin)[2]: payload for origin, payload in held.copies.items()}
    kept = {wire.parse_origin_header(origin)[2]: payload for origin, payload in evidence.set_apart.items()}
    verdict.lost += [f"copy of message {each}" for each in published if each not in copied and each not in kept]
    for sequence, payload in [*copied.items(), *kept.items()]:
        if published.get(sequence) != payload:
            verdict.wrong.append(f"the copy of message {sequence} is not what was published")
    for before, after in pairwise(copied):
        if after < before:
            verdict.wrong.append(f"the copy of message {after} came behind that of {before}")
    if len(copied) != len(held.copies):
        verdict.wrong.append("messages were copied out of more than one past")


def _wrong_accusations(evidence: Evidence, held: _Held) -> Iterator[str]:
    """Whoever is said to be stale was silent for ``stale_after``, and nobody was deaf meanwhile.

    Heard is who published a message that is stored, whatever the agent made of it, and when it was stored; only while
    the clock of the site's server shows a time again does it count when the agent counted it.
    """
    policy = evidence.policy
    heard: dict[str, list[int]] = defaultdict(list)
    subjects_of: dict[str, set[str]] = defaultdict(set)
    counted_at = {item.sequence: item.counted_at for item in evidence.recorded if isinstance(item, Clamped)}
    for sender_id, message in evidence.messages:
        is_again = any(begin <= message.stored_at <= end for begin, end in evidence.shown_twice)
        at = counted_at.get(message.sequence, message.stored_at) if is_again else message.stored_at
        for named in {sender_id, evidence.published_by.get(message.sequence, "")} - {""}:
            heard[named].append(at)
            subjects_of[named].add(message.subject)
    deaf = list(_deaf_times(evidence))
    for payload in held.advisories.values():
        advisory = _advisory(payload)
        if advisory.kind is not AdvisoryKind.STALE:
            continue
        silent_from = advisory.at_us - policy.stale_after
        if any(silent_from < seen_at < advisory.at_us for seen_at in heard[advisory.value]):
            yield f"advisory {_named(payload)}: it was heard meanwhile"
        for down in deaf:
            concerns = not down.subject or down.subject in subjects_of[advisory.value]
            if concerns and down.started_at < advisory.at_us and silent_from < down.ended_at:
                yield f"advisory {_named(payload)}: {_what_was(down)} meanwhile"


def _deaf_times(evidence: Evidence) -> Iterator[Down]:
    """Give the times, longer than ``blind_after``, of which nobody can know anything.

    For as long behind what a server stored last, its answers may count though it refuses by then. What it stores shows
    that it does not just then.
    """
    blind_after = evidence.policy.blind_after
    narrowed_at = [item.narrowed_at for item in evidence.recorded if isinstance(item, StreamSeen)]
    for down in evidence.downs:
        if down.subject and not any(down.started_at <= at <= down.ended_at for at in narrowed_at):
            # Edits that are taken back while the agent stands still, nothing tells of.
            continue
        edges = [down.started_at, down.ended_at]
        if down.refuses:
            edges += [
                message.stored_at
                for _, message in evidence.messages
                if down.started_at < message.stored_at < down.ended_at and down.subject in ("", message.subject)
            ]
        for started_at, ended_at in pairwise(sorted(edges)):
            known_through = started_at + blind_after if down.refuses else started_at
            if ended_at - known_through > blind_after:
                yield down._replace(started_at=known_through, ended_at=ended_at)


def _what_was(down: Down) -> str:
    if down.subject:
        return f"the site's stream did not listen on {down.subject}"
    return "the site's stream stored nothing" if down.refuses else "the site's server was down"


def _wrong_blindness(evidence: Evidence) -> Iterator[str]:
    """No time is given up in which the site's stream shows that it worked, and its past never changed."""
    # A time that the site's clock shows once more, set back, is not the one that was given up.
    partly_deaf = [down for down in evidence.downs if down.subject]
    stored_at = list(accumulate((message.stored_at for _, message in evidence.messages), max))
    for item in evidence.recorded:
        if isinstance(item, EpochBegun):
            yield f"an epoch began at {item.at} though the stream's past is still the same"
    for span in _blind_spans(evidence):
        if span.cause not in (BlindCause.UNPROVEN, BlindCause.REFUSED, BlindCause.NARROWED):
            yield f"blind from {span.started_at} to {span.ended_at}, cause {span.cause}: nothing was lost to it"
        # Of time in which some were not heard the agent may give up all.
        in_part = any(span.started_at < down.ended_at and down.started_at < span.ended_at for down in partly_deaf)
        if not in_part and any(span.started_at < at < span.ended_at for at in stored_at):
            yield f"blind from {span.started_at} to {span.ended_at} though messages were stored meanwhile"


def _wrong_coverage(evidence: Evidence, held: _Held) -> Iterator[str]:
    """Watermarks vouch for what lies between the blind spans, and for no time in which the server was down."""
    begun = [item.at for item in evidence.recorded if isinstance(item, ObservationBegun)]
    spans = list(_blind_spans(evidence))
    starts = {*begun, *(span.ended_at for span in spans), *_first_words(evidence)}
    decided_at = [_advisory(payload).at_us for payload in evidence.advisories]
    # What a stream does not take on some subjects leaves the rest of it known.
    deaf = [down for down in _deaf_times(evidence) if not down.subject]
    for mark in held.watermarks:
        since, through = mark.observed_since_us, mark.observed_through_us
        name = f"watermark from {since} to {through}"
        # One that covers no time ends what a stream that did not take everything had left uncovered.
        began_there = since in starts or since == through
        if not (began_there and since <= through <= evidence.state.observed_through):
            yield f"{name}: observation did not begin there, or ended before"
        for span in spans:
            if since < span.ended_at and span.started_at < through:
                yield f"{name} covers the blind span from {span.started_at} to {span.ended_at}"
        for down in deaf:
            if since < down.ended_at and down.started_at < through:
                yield f"{name} covers {down.started_at} to {down.ended_at}, when {_what_was(down)}"
        decided = bisect_left(decided_at, through)
        if mark.advisory_ordinal < decided:
            yield f"{name} vouches for {mark.advisory_ordinal} advisories, {decided} were decided before its end"


def _first_words(evidence: Evidence) -> Iterator[int]:
    """Give when somebody was heard again after the stream took less than before: coverage begins there."""
    counted_at = {item.sequence: item.counted_at for item in evidence.recorded if isinstance(item, Clamped)}
    for seen in (item for item in evidence.recorded if isinstance(item, StreamSeen) and item.awaits_word):
        for sender_id, message in evidence.messages:
            if sender_id and message.sequence > seen.sequence and message.stored_at >= seen.narrowed_at:
                yield counted_at.get(message.sequence, message.stored_at)
                break


def _blind_spans(evidence: Evidence) -> Iterator[BlindSpan]:
    return (item for item in evidence.recorded if isinstance(item, BlindSpan))


def _advisory(payload: bytes) -> Advisory:
    advisory = wire.decode_advisory(payload)
    assert isinstance(advisory, Advisory), payload
    return advisory


def _named(payload: bytes) -> str:
    advisory = _advisory(payload)
    return f"{advisory.ordinal}, {advisory.value} {advisory.kind} at {advisory.at_us}"

"""Lay an explanation out for a terminal."""

import textwrap
from collections.abc import Iterator

from edge_agent.inspection.explanation import Explanation, TrackedSender, opened_at, took_effect_at
from edge_agent.inspection.moments import moment, relative
from edge_agent.inspection.sentences import Sentences
from shared.instants import format_duration
from shared.sizes import format_size
from shared.tables import visible

LABEL = 17
NARROWEST = 40
REJECTIONS_SHOWN = 3


def render_explanation(explained: Explanation, *, at: int, width: int, limit: int) -> str:
    """Tell the state, then the last ``limit`` (0: all) entries of the history; lines of ``width`` columns at most."""
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
        yield from (_tracked if explained.block.watches else _remembered)(explained, explained.tracked, at)
    if explained.rejections:
        yield "rejected since", _rejected(explained, at)


def _rejected(explained: Explanation, at: int) -> str:
    """Tell which messages it may have sent since it was last seen that do not count."""
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


def _remembered(explained: Explanation, tracked: TrackedSender, at: int) -> Iterator[tuple[str, str]]:
    """Tell what a relay keeps of an origin: it watches nobody, and samples by the interval alone."""
    yield "last seen", _when(tracked.last_seen_at, at)
    sequence, size = tracked.last_sequence, format_size(tracked.forwarded_size)
    yield "last forwarded", f"{_when(tracked.last_forwarded_at, at)}, its site's message {sequence}, {size}"
    yield "if not heard", f"forgotten at {_when(tracked.due_at, at)}; who is stale is said by its site"
    is_early = tracked.forwarded_again_at > at
    yield "if heard", f"forwarded from {_when(tracked.forwarded_again_at, at)} on" if is_early else "forwarded"
    yield "settings", _settings(explained, "retire_after", "sample_interval")


def _tracked(explained: Explanation, tracked: TrackedSender, at: int) -> Iterator[tuple[str, str]]:
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
    entries = [(took_effect_at(entry), *sentences.headed(entry)) for entry in explained.history]
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

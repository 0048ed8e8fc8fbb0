"""Spans of time in which a stream stored nothing for longer than the agent's probes leave it quiet.

While all senders are silent the agent stores a probe once in a quarter of ``blind_after``. A span that is longer than
``longest_quiet`` shows that a probe was not stored, or that no agent sent one: it is not proven for any part of it that
the stream could have stored a registration.
"""

from edge_agent.core.policy import Policy
from shared.instants import SECOND

Spans = tuple[tuple[int, int], ...]
"""Start and end of each, in microseconds, in their order."""

PROBE_TRIP = SECOND // 4


def longest_quiet(policy: Policy) -> int:
    """Return how long a stream that is probed stores nothing at most, in microseconds."""
    return policy.blind_after // 2 + PROBE_TRIP


def with_span(spans: Spans, started_at: int, ended_at: int, policy: Policy) -> Spans:
    """Return the spans of one ``stale_after`` before ``ended_at``, with another or with a longer last one."""
    kept = (span for span in spans if span[0] != started_at and span[1] > ended_at - policy.stale_after)
    return (*kept, (started_at, ended_at))


def exceeds_bound(spans: Spans, since: int, at: int, policy: Policy) -> bool:
    """Return whether more than ``blind_after`` is unproven in the ``stale_after`` before ``at``, from ``since`` on."""
    return unproven_time(spans, max(at - policy.stale_after, since), at) > policy.blind_after


def unproven_time(spans: Spans, since: int, at: int) -> int:
    """Return the total length of the parts of ``spans`` that lie between two instants.

    >>> unproven_time(((0, 4), (6, 9)), 2, 8)
    4
    """
    return sum(max(min(ended_at, at) - max(started_at, since), 0) for started_at, ended_at in spans)

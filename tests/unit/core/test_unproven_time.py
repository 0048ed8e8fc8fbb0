"""What is unproven of a stale_after is bounded as a whole: spans that are short each may be too long together."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_agent.core.decisions import BlindCause, BlindSpan, CloseCoverage, StreamSeen
from edge_agent.core.unproven import exceeds_bound, longest_quiet, with_span
from shared.instants import SECOND
from tests.support.core.watched_site import POLICY, WatchedSite, advisories_in, instant

QUIET = longest_quiet(POLICY)
"""4.25 s: half of blind_after, and a probe's trip."""


class SteadySite(WatchedSite):
    """A watched site that notes every span in which nothing was stored for too long, as the reading loop does."""

    def __init__(self) -> None:
        super().__init__()
        self._stored_at = 0.0

    def stores(self, at: float, sender: str | None = None) -> list[tuple[str, str, float]]:
        """Read a message, without a sender a probe's; give what was said of whom."""
        self._notes(at)
        self._stored_at = at
        return advisories_in(self.hears(sender, at) if sender else self.rejects(at))

    def checks(self, at: float) -> list[tuple[str, str, float]]:
        """Take a caught-up check; give what was said of whom."""
        self._notes(at)
        state = self.state
        spans = with_span(state.unproven, instant(self._stored_at), instant(at), POLICY)
        if not state.seen.unsteady and exceeds_bound(spans, state.observed_since, instant(at), POLICY):
            return []
        return advisories_in(self.proves(at))

    def _notes(self, at: float) -> None:
        if self.state.observed_through and (at - self._stored_at) * SECOND > QUIET:
            self.gives(lambda draft: draft.pass_unproven(instant(self._stored_at), instant(at)))


def test_one_unproven_span_is_believed() -> None:
    site = SteadySite()
    site.stores(0, "a")
    for at in (3, 6, 9, 12):
        site.stores(at)
    # Nothing is stored for 7 s, which is less than blind_after (8).
    for at in (14, 16, 18):
        assert site.checks(at) == []
    site.stores(19)
    assert site.stores(21) == [("stale", "a", 20)]
    assert site.state.unproven == ((instant(12), instant(19)),)
    assert site.state.counters.get("blind") is None


def test_spans_that_are_short_each_leave_time_uncovered_when_they_are_too_long_together() -> None:
    site = SteadySite()
    site.stores(0, "a")
    site.stores(0, "b")
    accused: list[tuple[str, str, float]] = []
    # The stream takes what comes within 1 s of every 7; a and b come in the other 6.
    for cycle in range(1, 20):
        for at in (cycle * 7 - 5, cycle * 7 - 3, cycle * 7 - 1):
            accused += site.checks(at)
        accused += site.stores(cycle * 7)
        accused += site.stores(cycle * 7 + 1)
    assert accused == []
    assert site.state.is_suspended
    assert site.state.counters["blind"] == {"unproven": 1}
    closed = [each for each in site.recorded if isinstance(each, StreamSeen)]
    assert [(each.unsteady, each.at) for each in closed] == [(True, instant(9))]
    # Once it takes everything for blind_after, observation begins again, and everybody has the full time.
    resumed = [site.stores(134 + at) for at in range(2, 40, 2)]
    assert [each for each in resumed if each] == [[("stale", "a", 162), ("stale", "b", 162)]]
    assert [span.cause for span in site.recorded if isinstance(span, BlindSpan)] == [BlindCause.UNPROVEN]


def test_time_that_is_blind_as_a_whole_is_not_counted_again() -> None:
    site = SteadySite()
    site.stores(0, "a")
    # The agent was away, and nobody came.
    assert site.stores(30) == []
    for at in range(33, 49, 3):
        assert site.stores(at) == []
    assert site.stores(51) == [("stale", "a", 50)]
    assert [span.cause for span in site.recorded if isinstance(span, BlindSpan)] == [BlindCause.UNPROVEN]


def test_what_is_unproven_outlives_a_commit_and_is_forgotten_with_stale_after() -> None:
    site = SteadySite()
    site.stores(0, "a")
    site.stores(6)
    assert len(site.state.unproven) == 1
    for at in range(9, 30, 3):
        site.stores(at, "a")
    site.stores(35, "a")
    assert site.state.unproven == ((instant(27), instant(35)),)
    assert not site.state.is_suspended


steps = st.tuples(
    st.sampled_from([0.5, 1, 2, 3, 4, 4.5, 5, 6, 7, 7.9, 8.5, 12]), st.sampled_from(["a", "b", None, None])
)


@settings(max_examples=100)
@given(history=st.lists(steps, min_size=5, max_size=60))
def test_nobody_is_accused_beyond_the_bound(history: list[tuple[float, str | None]]) -> None:
    site = SteadySite()
    now, stored = 0.0, [0.0]
    site.stores(0, "a")
    accused: list[tuple[str, str, float]] = []
    for gap, sender in history:
        # Checks at every second, as long as the last stored message makes them proofs.
        for second in range(1, int(min(gap, 8)) + 1):
            if second < gap:
                accused += site.checks(now + second)
        now += gap
        accused += site.stores(now, sender)
        stored.append(now)
    unproven = [(start, end) for start, end in pairwise(stored) if (end - start) * SECOND > QUIET]
    for kind, sender_id, at in accused:
        if kind == "stale":
            lengths = [max(min(end, at) - max(start, at - 20), 0) for start, end in unproven]
            assert sum(lengths) <= 8, f"{sender_id} at {at}: {unproven}"


@settings(max_examples=100)
@given(
    history=st.lists(
        st.tuples(st.sampled_from([0.5, 2, 4, 4.25]), st.sampled_from(["a", None])), min_size=5, max_size=60
    )
)
def test_a_stream_that_is_probed_loses_no_coverage(history: list[tuple[float, str | None]]) -> None:
    site = SteadySite()
    now = 0.0
    site.stores(0, "a")
    for gap, sender in history:
        now += gap
        site.stores(now, sender)
    assert (site.state.observed_since, site.state.observed_through) == (instant(0), instant(now))
    assert not any(isinstance(each, CloseCoverage) for each in site.recorded)


@pytest.mark.parametrize("field", ["refuses", "thinned"])
def test_other_restrictions_outlast_it(field: str) -> None:
    site = SteadySite()
    for at in (0, 6, 12):
        site.stores(at, "a")
    was_unsteady = site.state.seen.unsteady
    seen = site.state.seen.changed(instant(12), 3, **{field: True})
    site.gives(lambda draft: draft.see_stream(seen))
    for at in range(14, 30, 2):
        site.stores(at)
    assert (was_unsteady, site.state.seen.unsteady, site.state.is_suspended) == (True, False, True)

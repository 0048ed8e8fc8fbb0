"""Assert, of a straight run, what holds of any run; each check is its own slow and obvious reading of a promise."""

from collections import defaultdict

import msgspec

from edge_agent.core.decisions import Clamped, EpochBegun, ObservationBegun, PolicyChanged
from edge_agent.core.observation import Observation
from edge_agent.core.policy import Policy
from shared.identifiers import AdvisoryKind, Incarnation
from tests.support.agent.mortal_agent import MAX_AHEAD
from tests.support.topology.fleet_hub import Hub, StraightRun


def check_promises(straight: StraightRun, hub: Hub) -> None:
    """Check everything that can be said without knowing the rules' order of work."""
    _check_ordinals(straight)
    _check_nobody_is_accused_unheard(straight)
    _check_nothing_is_said_of_blind_spans(straight)
    _check_episodes(straight)
    _check_watermarks(straight, hub)


def _check_ordinals(straight: StraightRun) -> None:
    last: dict[str, int] = defaultdict(int)
    for advisory in straight.advisories:
        assert advisory.ordinal == last[advisory.incarnation] + 1, "an ordinal is missing"
        last[advisory.incarnation] = advisory.ordinal


def _check_nobody_is_accused_unheard(straight: StraightRun) -> None:
    """No ``stale`` within ``stale_after`` of a word from the sender, of a blind span, or of the first proof."""
    sightings = _sightings(straight)
    begun_at = next((item.at for item in straight.life.recorded if isinstance(item, ObservationBegun)), 0)
    for advisory in straight.advisories:
        if advisory.kind is not AdvisoryKind.STALE:
            continue
        heard_for = _policy_at(straight, advisory.at_us).stale_after
        silent_from = advisory.at_us - heard_for
        assert begun_at <= silent_from, "stale before anybody could be heard for long enough"
        for span in straight.blind_spans:
            assert not (span.started_at < advisory.at_us and span.ended_at > silent_from), "accused by the blind"
        for seen_at in sightings[advisory.value]:
            assert not silent_from < seen_at < advisory.at_us, "a living sender was accused"


def _check_nothing_is_said_of_blind_spans(straight: StraightRun) -> None:
    for advisory in straight.advisories:
        for span in straight.blind_spans:
            assert not span.started_at < advisory.at_us < span.ended_at, "decided where nobody watched"


def _check_episodes(straight: StraightRun) -> None:
    """A sender's advisories are: new, then stale and recovered by turns, then, out of stale, retired.

    An operator may retire it in between, and whom the stream may not take is retired without a stale. Readers, who
    order them by instant and kind, read the same.
    """
    by_operator: set[AdvisoryKind | None] = {AdvisoryKind.NEW, AdvisoryKind.STALE, AdvisoryKind.RECOVERED}
    follows: dict[AdvisoryKind, set[AdvisoryKind | None]] = {
        AdvisoryKind.NEW: {None, AdvisoryKind.RETIRED},
        AdvisoryKind.STALE: {AdvisoryKind.NEW, AdvisoryKind.RECOVERED},
        AdvisoryKind.RECOVERED: {AdvisoryKind.STALE},
        AdvisoryKind.RETIRED: {AdvisoryKind.STALE},
    }
    last: dict[str, AdvisoryKind] = {}
    read: dict[str, tuple[int, int]] = {}
    at = 0
    for advisory in straight.advisories:
        is_out_of_turn = advisory.by_operator is True or advisory.unheard_until_us is not msgspec.UNSET
        allowed = by_operator if is_out_of_turn else follows[advisory.kind]
        assert last.get(advisory.value) in allowed, "an episode out of order"
        last[advisory.value] = advisory.kind
        assert advisory.at_us >= at, "time ran back"
        at = advisory.at_us
        order = advisory.at_us, advisory.kind.rank
        assert order > read.get(advisory.value, (0, 0)), "readers read it in another order"
        read[advisory.value] = order


def _check_watermarks(straight: StraightRun, hub: Hub) -> None:
    """What a watermark vouches for holds no blind span, and all of its advisories lie before it."""
    incarnations = {str(incarnation) for incarnation, _ in straight.life.read}
    for watermark in hub.watermarks:
        if watermark.incarnation not in incarnations:
            continue
        since, through = watermark.observed_since_us, watermark.observed_through_us
        assert since <= through
        for span in straight.blind_spans:
            assert not (since < span.ended_at and through > span.started_at), "vouched for a blind span"
        for advisory in straight.advisories:
            if since < advisory.at_us < through:
                assert advisory.incarnation == watermark.incarnation, "coverage of one past vouched for by another"
                assert advisory.ordinal <= watermark.advisory_ordinal, "decided after it was vouched for"


def _sightings(straight: StraightRun) -> dict[str, list[int]]:
    """Give when each sender's messages counted."""
    incarnation = straight.life.began_as.position.incarnation
    clamped: dict[tuple[Incarnation, int], int] = {}
    for item in straight.life.recorded:
        if isinstance(item, EpochBegun):
            incarnation = item.incarnation
        elif isinstance(item, Clamped):
            clamped[incarnation, item.sequence] = item.counted_at
    seen: dict[str, list[int]] = defaultdict(list)
    for incarnation, taken in straight.life.read:
        if isinstance(taken, Observation):
            message = taken.message
            if message.stored_at > straight.life.observed_through + MAX_AHEAD:
                # Stored while the server's clock was ahead: it counted at an instant that the next ones include.
                continue
            seen[taken.sender_id].append(clamped.get((incarnation, message.sequence), message.stored_at))
    return seen


def _policy_at(straight: StraightRun, at: int) -> Policy:
    policy = straight.life.began_as.policy
    for item in straight.life.recorded:
        if isinstance(item, PolicyChanged) and item.at <= at:
            policy = item.policy
    return policy

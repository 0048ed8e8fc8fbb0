"""Learn from sightings how often senders register, and hold the thresholds against it. Pure.

No sender is stale without having been silent for ``stale_after`` (``edge_agent.core.tracker``, rule 3). That is worth
something only if ``stale_after`` is longer than what a living sender may be silent.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median

import msgspec

from edge_agent.core.policy import Policy
from edge_agent.doctor.finding import Finding, bad, good, warning
from shared.instants import SECOND, format_duration

SENDERS_NEEDED = 3
MESSAGES_NEEDED = 100
NEARLY_ALL = 0.9
QUIET_SHARE = 0.25
COMFORTABLE = 2.5


class Cadence(msgspec.Struct, frozen=True):
    """How a site registers: ``interval`` of a typical sender, 0 where too few were heard twice, from ``sender_count``.

    ``instants``: those of all sightings, in order. Microseconds. ``known_from`` says in words what it was learnt from.
    """

    interval: int
    sender_count: int
    instants: Sequence[int]
    known_from: str


def cadence_of(sightings: Iterable[tuple[str, int]], known_from: str) -> Cadence:
    """Learn from (sender id, instant) in the stream's order: the median over senders of the median of their gaps."""
    heard: dict[str, list[int]] = {}
    for sender_id, at in sightings:
        heard.setdefault(sender_id, []).append(at)
    gaps = [
        median(after - before for before, after in pairwise(instants))
        for instants in heard.values()
        if len(instants) > 1
    ]
    instants = sorted(at for each in heard.values() for at in each)
    return Cadence(int(median(gaps)) if len(gaps) >= SENDERS_NEEDED else 0, len(gaps), instants, known_from)


def cadence_of_ages(last_seen: Sequence[int], observed_through: int, known_from: str) -> Cadence:
    """Learn from when each heard sender was last seen, in order.

    Living senders are up to one interval back: nineteen of twenty less than what is given here, which is never more
    than the interval. What they said within it are the site's last sightings.
    """
    if len(last_seen) < SENDERS_NEEDED:
        return Cadence(0, len(last_seen), [], known_from)
    oldest = last_seen[len(last_seen) // 20]
    return Cadence(observed_through - oldest, len(last_seen), [at for at in last_seen if at >= oldest], known_from)


def quiet_share(instants: Sequence[int], limit: int) -> float:
    """Give the part of the time between the first and the last instant that lies in gaps longer than ``limit``.

    >>> quiet_share([0, 10, 20, 100], 30)
    0.8
    """
    length = instants[-1] - instants[0] if instants else 0
    quiet = sum(after - before for before, after in pairwise(instants) if after - before > limit)
    return quiet / length if length else 0.0


def names_messages(sightings: Sequence[tuple[str, int]], stale_after: int) -> bool:
    """Tell whether what identifies senders differs from message to message.

    In time enough for every living sender to be heard again hardly anybody was.
    """
    if len(sightings) < MESSAGES_NEEDED or sightings[-1][1] - sightings[0][1] < 2 * stale_after:
        return False
    heard = Counter(sender_id for sender_id, _ in sightings)
    return sum(count for count in heard.values() if count == 1) >= NEARLY_ALL * len(sightings)


def judge(subject: str, cadence: Cadence, policy: Policy) -> Iterator[Finding]:
    """Hold the thresholds against how the site registers."""
    interval, stale_after = cadence.interval, policy.stale_after
    heard = f"senders register about every {_in_words(interval)} ({cadence.known_from})"
    wanted = format_duration(_rounded_up(int(interval * COMFORTABLE)))
    if not interval:
        yield good(subject, f"too few senders were heard twice to tell how often they register ({cadence.known_from})")
    elif interval >= stale_after:
        text = f"{heard}, but stale_after is {format_duration(stale_after)}: the living will be called stale"
        yield bad(subject, text, f"set stale_after to {wanted} or more, and retire_after and blind_after with it")
    elif 2 * interval > stale_after:
        text = f"{heard}, stale_after is {format_duration(stale_after)}: one lost registration makes a sender stale"
        yield warning(subject, text, f"set stale_after to {wanted} or more")
    else:
        yield good(subject, f"{heard}: stale_after {format_duration(stale_after)} fits")
    share = quiet_share(cadence.instants, policy.blind_after)
    if share > QUIET_SHARE:
        text = (
            f"for {share:.0%} of the time the whole site said nothing for longer than blind_after, "
            f"{format_duration(policy.blind_after)} ({cadence.known_from}): time that the agent reads later, after "
            "being down, will mostly be unknown, because a backlog proves itself only where messages follow closely"
        )
        yield warning(subject, text, "on a site this quiet, make blind_after and stale_after longer")


def _in_words(duration: int) -> str:
    return format_duration(round(duration / SECOND) * SECOND)


def _rounded_up(duration: int) -> int:
    """Round up to a whole minute, or second below one."""
    step = 60 * SECOND if duration > 60 * SECOND else SECOND
    return -(-duration // step) * step

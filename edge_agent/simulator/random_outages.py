"""Random outages of senders, racks, sites and agents, the same for the same seed.

Times up and times down are lognormal, as times between failures and times to repair tend to be in the field: most
repairs are short, a few are very long. Both are given by their medians.
"""

import math
import random
from collections.abc import Iterable

import msgspec

from edge_agent.simulator.fleet import FleetSettings, Lifetime, Span, stable_hash


class Reliability(msgspec.Struct, frozen=True):
    """Outages of one thing: ``up`` and ``down`` are median times in microseconds; ``up`` 0: never."""

    up: int
    down: int


class OutageSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Outages of everything on a site. ``spread`` is the sigma of the lognormal distributions.

    A rack takes its senders down, a site (its network, say) all of them; while its agent is down, nobody is seen.
    """

    sender: Reliability
    rack: Reliability
    site: Reliability
    agent: Reliability
    spread: float


def break_at_random(lifetimes: list[Lifetime], settings: FleetSettings, outages: OutageSettings, until: int) -> None:
    """Add outages to the senders of a site up to an instant of virtual time."""

    def drawn(reliability: Reliability, *what: str | int) -> list[Span]:
        return random_spans(reliability, outages.spread, until, settings.seed, settings.site, *what)

    of_site = drawn(outages.site, "site")
    of_racks = {rack: drawn(outages.rack, "rack", rack) for rack in {lifetime.rack for lifetime in lifetimes}}
    for lifetime in lifetimes:
        lifetime.outages.extend(
            [*of_site, *of_racks[lifetime.rack], *drawn(outages.sender, "sender", lifetime.sender_id)]
        )


def blind_at_random(settings: FleetSettings, outages: OutageSettings, shortest: int, until: int) -> list[Span]:
    """Return when a site's agent is down; spans shorter than ``shortest`` are caught up on and omitted."""
    spans = random_spans(outages.agent, outages.spread, until, settings.seed, settings.site, "agent")
    return [(started_at, ended_at) for started_at, ended_at in spans if ended_at - started_at > shortest]


def random_spans(reliability: Reliability, spread: float, until: int, *what: str | int) -> list[Span]:
    """Draw the outages of a named thing, up to an instant of virtual time, in order."""
    if reliability.up <= 0 or reliability.down <= 0:
        return []
    draw = random.Random(stable_hash(*what))  # noqa: S311 - the same seed must give the same fleet
    up, down = math.log(reliability.up), math.log(reliability.down)
    spans: list[Span] = []
    # The first time up began before the start: fleets are not born together.
    at = int(draw.lognormvariate(up, spread) * draw.random())
    while at < until:
        ended_at = at + max(1, int(draw.lognormvariate(down, spread)))
        spans.append((at, ended_at))
        at = ended_at + max(1, int(draw.lognormvariate(up, spread)))
    return spans


def union(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans in order that neither overlap nor touch."""
    result: list[Span] = []
    for started_at, ended_at in sorted(spans):
        if result and started_at <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], ended_at))
        else:
            result.append((started_at, ended_at))
    return result

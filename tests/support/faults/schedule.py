"""Draw from a seed what goes wrong, when and for how long: the same seed, the same schedule. Nothing happens here.

Faults of different targets overlap; those of one target do not. Kinds are dealt like cards, so that every kind comes
again and again, however the seed falls.
"""

import random
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

GAP = (0.1, 0.4)
STORM_FAULTS = 40
CALM = 4.0
LONG_ONE_IN = 15
LONG = (3.0, 8.0)


class Target(StrEnum):
    """What a fault befalls."""

    AGENT = "agent"
    SITE = "site's server"
    REGION = "region's server"
    SOURCE_LINK = "link to the site"
    UPLINK = "link to the region"
    DISK = "disk"
    SENDERS = "senders"


class FaultKind(StrEnum):
    """What goes wrong."""

    AGENT_KILLED = "agent killed"
    AGENT_DIES = "agent dies at a commit"
    AGENT_STOPPED = "agent stopped"
    AGENT_SUSPENDED = "agent suspended"
    DATABASE_RESTARTED = "database restarted"
    DATABASE_UPGRADED = "database upgraded"
    SITE_KILLED = "site's server killed"
    SITE_SUSPENDED = "site's server suspended"
    SITE_STEPPED = "site's clock stepped"
    SITE_FULL = "site's stream full"
    SITE_EXHAUSTED = "site out of storage"
    SITE_DEAF = "site's stream deaf to all"
    SITE_DEAF_TO_SOME = "site's stream deaf to some"
    CONSUMER_PAUSED = "consumer paused"
    REGION_KILLED = "region's server killed"
    REGION_SUSPENDED = "region's server suspended"
    REGION_FULL = "region's stream full"
    REGION_DEAF = "region's stream deaf to some"
    REGION_SWALLOWED = "some records go astray"
    SOURCE_CUT = "link to the site cut"
    SOURCE_STALLED = "link to the site half-open"
    SOURCE_SLOW = "link to the site slow"
    UPLINK_CUT = "link to the region cut"
    UPLINK_STALLED = "link to the region half-open"
    UPLINK_SLOW = "link to the region slow"
    DISK_FULL = "disk full"
    OVERSIZED_REGISTRATION = "registration of limit size"
    OVERSIZED_COPY = "copy of limit size"
    MALFORMED = "malformed bodies"


class Moment(StrEnum):
    """When exactly a fault strikes, once its time has come: at once, or as soon as one of these is under way."""

    AT_ONCE = "at once"
    READING = "the agent is sent registrations"
    COMMITTING = "the agent writes its database"
    SENDING = "the agent sends records"


class Rule(NamedTuple):
    """How one kind is dealt: ``cards`` of it in every deck, seconds that it lasts, whether it may last long."""

    target: Target
    cards: int
    shortest: float
    longest: float
    may_be_long: bool = True

    @property
    def moments(self) -> tuple[Moment, ...]:
        """Give when it hurts most, each as often as it stands there."""
        return MOMENTS[self.target]


MOMENTS = {
    Target.AGENT: (Moment.AT_ONCE, Moment.COMMITTING, Moment.COMMITTING, Moment.SENDING, Moment.READING),
    Target.SITE: (Moment.AT_ONCE, Moment.READING),
    Target.REGION: (Moment.AT_ONCE, Moment.SENDING, Moment.SENDING),
    Target.SOURCE_LINK: (Moment.AT_ONCE, Moment.READING),
    Target.UPLINK: (Moment.AT_ONCE, Moment.SENDING, Moment.SENDING),
    Target.DISK: (Moment.AT_ONCE, Moment.COMMITTING),
    Target.SENDERS: (Moment.AT_ONCE,),
}
RULES = {
    FaultKind.AGENT_KILLED: Rule(Target.AGENT, 2, 0.02, 1.0, may_be_long=False),
    FaultKind.AGENT_DIES: Rule(Target.AGENT, 3, 0.02, 0.5, may_be_long=False),
    FaultKind.AGENT_STOPPED: Rule(Target.AGENT, 1, 0.02, 0.5, may_be_long=False),
    FaultKind.AGENT_SUSPENDED: Rule(Target.AGENT, 3, 0.05, 2.0),
    FaultKind.DATABASE_RESTARTED: Rule(Target.AGENT, 1, 0.02, 0.5, may_be_long=False),
    FaultKind.DATABASE_UPGRADED: Rule(Target.AGENT, 1, 0.02, 0.5, may_be_long=False),
    FaultKind.SITE_KILLED: Rule(Target.SITE, 3, 0.02, 1.5),
    FaultKind.SITE_SUSPENDED: Rule(Target.SITE, 3, 0.05, 3.0),
    FaultKind.SITE_STEPPED: Rule(Target.SITE, 2, 0.1, 2.0),
    FaultKind.SITE_FULL: Rule(Target.SITE, 1, 1.0, 6.0),
    FaultKind.SITE_EXHAUSTED: Rule(Target.SITE, 1, 1.0, 6.0),
    FaultKind.SITE_DEAF: Rule(Target.SITE, 1, 1.0, 6.0),
    FaultKind.SITE_DEAF_TO_SOME: Rule(Target.SITE, 1, 1.0, 6.0),
    FaultKind.CONSUMER_PAUSED: Rule(Target.SITE, 1, 0.5, 5.0),
    FaultKind.REGION_KILLED: Rule(Target.REGION, 4, 0.02, 0.5),
    FaultKind.REGION_SUSPENDED: Rule(Target.REGION, 4, 0.05, 2.0),
    FaultKind.REGION_FULL: Rule(Target.REGION, 2, 0.05, 1.0, may_be_long=False),
    FaultKind.REGION_DEAF: Rule(Target.REGION, 2, 1.2, 1.6, may_be_long=False),
    FaultKind.REGION_SWALLOWED: Rule(Target.REGION, 2, 0.5, 1.0, may_be_long=False),
    FaultKind.SOURCE_CUT: Rule(Target.SOURCE_LINK, 4, 0.02, 1.5),
    FaultKind.SOURCE_STALLED: Rule(Target.SOURCE_LINK, 3, 0.05, 2.0),
    FaultKind.SOURCE_SLOW: Rule(Target.SOURCE_LINK, 2, 0.5, 2.0),
    FaultKind.UPLINK_CUT: Rule(Target.UPLINK, 4, 0.02, 1.5),
    FaultKind.UPLINK_STALLED: Rule(Target.UPLINK, 4, 0.05, 2.0),
    FaultKind.UPLINK_SLOW: Rule(Target.UPLINK, 2, 0.5, 2.0),
    FaultKind.DISK_FULL: Rule(Target.DISK, 3, 0.1, 2.0),
    FaultKind.OVERSIZED_REGISTRATION: Rule(Target.SENDERS, 1, 0.1, 0.5, may_be_long=False),
    FaultKind.OVERSIZED_COPY: Rule(Target.SENDERS, 1, 0.1, 0.5, may_be_long=False),
    FaultKind.MALFORMED: Rule(Target.SENDERS, 1, 3.0, 6.0),
}


class Fault(NamedTuple):
    """One fault: ``at`` seconds from the start, lasting ``duration``; ``detail``, from 0 to 1, is the injector's."""

    number: int
    at: float
    kind: FaultKind
    duration: float
    moment: Moment
    detail: float

    @property
    def target(self) -> Target:
        """Give what it befalls."""
        return RULES[self.kind].target


def draw_schedule(
    seed: int, count: int, left_out: Collection[FaultKind] = (), cards: Mapping[FaultKind, int] | None = None
) -> list[Fault]:
    """Draw ``count`` faults, in the order of their instants; kinds that cannot be made here are left out.

    ``cards`` says how many of each kind are in a deck, and names all kinds, where the usual deck is not wanted.
    """
    if cards is None:
        cards = {kind: rule.cards for kind, rule in RULES.items()}
    cards = {kind: number for kind, number in cards.items() if kind not in left_out}
    draw = random.Random(f"faults {seed}")
    deck: list[FaultKind] = []
    free_at = dict.fromkeys(Target, 0.0)
    faults: list[Fault] = []
    at = 0.0
    for number in range(1, count + 1):
        at += draw.uniform(*GAP)
        if number % STORM_FAULTS == 0:
            at += CALM
        if len(deck) < len(cards):
            deck += _shuffled_deck(draw, cards)
        place = next((place for place, kind in enumerate(deck) if free_at[RULES[kind].target] <= at), 0)
        kind = deck.pop(place)
        rule = RULES[kind]
        at = max(at, free_at[rule.target])
        duration = _draw_duration(draw, rule)
        free_at[rule.target] = at + duration
        faults.append(Fault(number, at, kind, duration, draw.choice(rule.moments), draw.random()))
    return faults


def counts(faults: Collection[Fault]) -> Iterator[tuple[FaultKind, int]]:
    """Count the faults of every kind."""
    for kind in FaultKind:
        yield kind, sum(fault.kind is kind for fault in faults)


def _shuffled_deck(draw: random.Random, cards: Mapping[FaultKind, int]) -> list[FaultKind]:
    deck = [kind for kind, number in cards.items() for _ in range(number)]
    draw.shuffle(deck)
    return deck


def _draw_duration(draw: random.Random, rule: Rule) -> float:
    """Draw many short ones, some longer ones, and now and then one that outlasts every patience."""
    if rule.may_be_long and draw.randrange(LONG_ONE_IN) == 0:
        return draw.uniform(*LONG)
    return float(rule.shortest * (rule.longest / rule.shortest) ** draw.random())

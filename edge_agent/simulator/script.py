"""Script of outages: the things that fail, and when. Offsets count from the fleet's start."""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from edge_agent.simulator.fleet import FOREVER, FleetSettings, Lifetime, Span, sender_name
from shared.instants import format_duration
from shared.settings import Duration, Settings, SettingsError

EXAMPLE = """\
[[outage]]                      # "for" left out: down until the end
at = "30s"
for = "40s"
racks = [2]                     # or senders = ["dub1-r1-n*"], or site = true

[[flapping]]                    # down "count" times, once in every period
at = "10s"
period = "20m"
count = 3
down = "8m"                     # default: half the period
senders = ["dub1-r1-n3.example.net"]

[[retire]]                      # gone for ever
at = "1m"
senders = ["dub1-r1-n2.example.net"]

[[rename]]                      # the old name leaves, the new one arrives
at = "1m"
sender = "dub1-r2-n1.example.net"
to = "web1.example.net"

[[join]]                        # new senders, in new racks
at = "90s"
count = 20

[[blind]]                       # in a history only: what is said then is lost
at = "30d"
for = "2h"
"""

At = Annotated[Duration, Meta(description="how long after the fleet's start")]
Count = Annotated[int, Meta(ge=1)]


class Who(Settings, frozen=True, kw_only=True):
    """Choose senders: by name or pattern, by rack, or all of the site."""

    senders: Annotated[tuple[str, ...], Meta(description="names, or patterns such as dub1-r1-n*.example.net")] = ()
    racks: Annotated[tuple[int, ...], Meta(description="racks, counted from 1")] = ()
    site: Annotated[bool, Meta(description="every sender of the site")] = False

    def __post_init__(self) -> None:
        if bool(self.senders) + bool(self.racks) + self.site != 1:
            raise ValueError("needs exactly one of senders = [...], racks = [...] and site = true")


class Outage(Who, frozen=True, kw_only=True):
    """Senders are down from ``at`` on, for ``duration`` (None: until the end)."""

    at: At
    duration: Annotated[Duration | None, Meta(description="how long they are down")] = msgspec.field(
        default=None, name="for"
    )


class Flapping(Who, frozen=True, kw_only=True):
    """Senders go down ``count`` times, once in every ``period``, each time for ``down``."""

    at: At
    period: Annotated[Duration, Meta(description="from one going down to the next")]
    count: Annotated[Count, Meta(description="how often they go down")]
    down: Annotated[Duration | None, Meta(description="how long they are down each time")] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.down_time < self.period:
            raise ValueError("down must be shorter than period, and longer than nothing")

    @property
    def down_time(self) -> int:
        return self.period // 2 if self.down is None else self.down


class Retirement(Who, frozen=True, kw_only=True):
    """Senders go away at ``at`` and never come back."""

    at: At


class Rename(Settings, frozen=True, kw_only=True):
    """A sender goes on under another name."""

    at: At
    sender: Annotated[str, Meta(description="the old name")]
    to: Annotated[str, Meta(min_length=1, description="the new name")]


class Join(Settings, frozen=True, kw_only=True):
    """New senders arrive, in new racks."""

    at: At
    count: Annotated[Count, Meta(description="how many senders arrive")]


class Blindness(Settings, frozen=True, kw_only=True):
    """The agent of the site sees nothing, and nothing is kept for it."""

    at: At
    duration: Annotated[Duration, Meta(description="how long it is blind")] = msgspec.field(name="for")


class Script(Settings, frozen=True, kw_only=True):
    """Everything that happens to one fleet, and to the agent that watches it."""

    outage: tuple[Outage, ...] = ()
    flapping: tuple[Flapping, ...] = ()
    retire: tuple[Retirement, ...] = ()
    rename: tuple[Rename, ...] = ()
    join: tuple[Join, ...] = ()
    blind: tuple[Blindness, ...] = ()

    @property
    def breaks_senders(self) -> bool:
        return any((self.outage, self.flapping, self.retire, self.rename, self.join))

    @property
    def blind_spans(self) -> list[Span]:
        return [(blindness.at, blindness.at + blindness.duration) for blindness in self.blind]


def play(settings: FleetSettings, script: Script, path: Path) -> list[Lifetime]:
    """Apply a script to a fleet; raise SettingsError for a step that fits no sender in it, or is not observable."""
    try:
        return _play(settings, script)
    except _Unplayable as error:
        raise SettingsError(f"{path}: {error}") from None


class _Unplayable(ValueError):
    """The script is valid, and this fleet cannot do it."""


def _play(settings: FleetSettings, script: Script) -> list[Lifetime]:
    lifetimes = [_lifetime(settings, number) for number in range(settings.sender_count)]
    racks = -(-settings.sender_count // settings.rack_size)
    for join in script.join:
        first = racks * settings.rack_size
        lifetimes.extend(_lifetime(settings, first + number, born_at=join.at) for number in range(join.count))
        racks += -(-join.count // settings.rack_size)
    for position, rename in sorted(enumerate(script.rename), key=lambda entry: entry[1].at):
        lifetimes.append(_rename(lifetimes, rename, f"rename[{position}]"))
    for position, retirement in enumerate(script.retire):
        for lifetime in _chosen(lifetimes, retirement, f"retire[{position}]"):
            lifetime.gone_at = min(lifetime.gone_at, max(retirement.at, lifetime.born_at))
    for position, outage in enumerate(script.outage):
        ended_at = FOREVER if outage.duration is None else outage.at + outage.duration
        for lifetime in _chosen(lifetimes, outage, f"outage[{position}]"):
            lifetime.outages.append((outage.at, ended_at))
    for position, flapping in enumerate(script.flapping):
        spans = _flaps(settings, flapping, f"flapping[{position}]")
        for lifetime in _chosen(lifetimes, flapping, f"flapping[{position}]"):
            lifetime.outages.extend(spans)
    return lifetimes


def _lifetime(settings: FleetSettings, number: int, born_at: int = 0) -> Lifetime:
    sender_id, rack = sender_name(settings, number)
    return Lifetime(sender_id=sender_id, rack=rack, born_at=born_at)


def _chosen(lifetimes: list[Lifetime], who: Who, place: str) -> list[Lifetime]:
    if who.site:
        return lifetimes
    if who.racks:
        for rack in who.racks:
            if not any(lifetime.rack == rack for lifetime in lifetimes):
                raise _Unplayable(f"{place}.racks: there is no rack {rack}; racks are counted from 1")
        return [lifetime for lifetime in lifetimes if lifetime.rack in who.racks]
    for pattern in who.senders:
        if not any(fnmatchcase(lifetime.sender_id, pattern) for lifetime in lifetimes):
            raise _Unplayable(f"{place}.senders: nobody is called {pattern}; names look like {lifetimes[0].sender_id}")
    return [
        lifetime for lifetime in lifetimes if any(fnmatchcase(lifetime.sender_id, pattern) for pattern in who.senders)
    ]


def _rename(lifetimes: list[Lifetime], rename: Rename, place: str) -> Lifetime:
    by_name = {lifetime.sender_id: lifetime for lifetime in lifetimes}
    old = by_name.get(rename.sender)
    if old is None:
        raise _Unplayable(f"{place}.sender: nobody is called {rename.sender}; names look like {lifetimes[0].sender_id}")
    if rename.to in by_name:
        raise _Unplayable(f"{place}.to: {rename.to} is taken")
    if not old.born_at < rename.at < old.gone_at:
        raise _Unplayable(f"{place}.at: {rename.sender} is not there {format_duration(rename.at)} after the start")
    new = Lifetime(sender_id=rename.to, rack=old.rack, born_at=rename.at, gone_at=old.gone_at)
    old.gone_at = rename.at
    return new


def _flaps(settings: FleetSettings, flapping: Flapping, place: str) -> list[Span]:
    up_time = flapping.period - flapping.down_time
    if up_time < settings.longest_silence:
        # Such a sender might never register in between: its flapping would be one outage for everyone but the truth.
        raise _Unplayable(
            f"{place}.down: they would be up for {format_duration(up_time)} only, less than the registration interval"
            f" and jitter of {format_duration(settings.longest_silence)}; choose a longer period or a shorter down"
        )
    starts = (flapping.at + number * flapping.period for number in range(flapping.count))
    return [(started_at, started_at + flapping.down_time) for started_at in starts]

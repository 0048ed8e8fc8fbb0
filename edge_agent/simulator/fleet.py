"""Schedule of a fleet: senders, their racks, and registrations as a function of settings and virtual time.

Virtual time counts microseconds from the fleet's start; nothing here reads a clock or draws a number. Every sender
has a place of its own in the registration interval, given by a stable hash, and keeps it through outages, so a
sender that comes back is heard within one interval. Jitter moves each registration a little; places leave room for
it, so the registrations of one interval never pass into the next.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shared.blake2 import blake2b

FOREVER: Final = 1 << 62
"""The end of what never ends."""

Span = tuple[int, int]


class FleetSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Describe a site's fleet. Durations are microseconds; ``jitter`` is less than ``registration_interval``."""

    site: str
    sender_count: int
    registration_interval: int
    jitter: int = 0
    rack_size: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sender_count < 1 or self.rack_size < 1:
            raise ValueError("a fleet and a rack have at least one sender")
        if not 0 <= self.jitter < self.registration_interval:
            raise ValueError("the jitter must be shorter than the registration interval")

    @property
    def longest_silence(self) -> int:
        """Bound the time between two registrations of a sender that is up."""
        return self.registration_interval + self.jitter


class Lifetime(msgspec.Struct, kw_only=True):
    """The history of one sender: up in ``[born_at, gone_at)`` except for its outages, which may overlap."""

    sender_id: str
    rack: int
    born_at: int = 0
    gone_at: int = FOREVER
    outages: list[Span] = msgspec.field(default_factory=list)

    def up_spans(self) -> tuple[Span, ...]:
        """Return the spans in which the sender is up, in order, none empty."""
        spans: list[Span] = []
        up_from = self.born_at
        for down_from, down_to in sorted(self.outages):
            if down_from >= self.gone_at:
                break
            if down_from > up_from:
                spans.append((up_from, down_from))
            up_from = max(up_from, down_to)
        if up_from < self.gone_at:
            spans.append((up_from, self.gone_at))
        return tuple(spans)


class Transition(msgspec.Struct, frozen=True, order=True):
    """A sender came up or went down at ``at``; ``up_from`` is the start of the span that begins or ends."""

    at: int
    sender_index: int
    comes_up: bool
    up_from: int
    gone: bool


def sender_name(settings: FleetSettings, number: int) -> tuple[str, int]:
    """Name the sender of a number (from 0), and its rack (from 1): ``<site>-r<rack>-n<nr>.example.net``."""
    rack, place = divmod(number, settings.rack_size)
    return f"{settings.site}-r{rack + 1}-n{place + 1}.example.net", rack + 1


def stable_hash(*parts: str | int) -> int:
    """Hash parts to 64 bits that are the same in every run and on every machine."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=8).digest(), "little")


class Fleet:
    """The senders of one site and their schedule. Senders are counted from 0 in the order of ``lifetimes``."""

    def __init__(self, settings: FleetSettings, lifetimes: Sequence[Lifetime]) -> None:
        self.settings = settings
        self.sender_ids = [lifetime.sender_id for lifetime in lifetimes]
        self.up_spans = [lifetime.up_spans() for lifetime in lifetimes]
        self._gone_at = [lifetime.gone_at for lifetime in lifetimes]
        self._hashes = [stable_hash(settings.seed, sender_id) for sender_id in self.sender_ids]
        room = settings.registration_interval - settings.jitter
        self._places = [each % room for each in self._hashes]

    def transitions(self) -> list[Transition]:
        """Yield every change of every sender in the order of time; a span without end has no going down."""
        changes: list[Transition] = []
        for index, spans in enumerate(self.up_spans):
            for up_from, up_to in spans:
                changes.append(Transition(up_from, index, comes_up=True, up_from=up_from, gone=False))
                if up_to != FOREVER:
                    gone = up_to == spans[-1][1] and self._gone_at[index] != FOREVER
                    changes.append(Transition(up_to, index, comes_up=False, up_from=up_from, gone=gone))
        return sorted(changes)

    def registrations(self) -> Iterator[tuple[int, int]]:
        """Yield ``(due_at, sender_index)`` of every registration in the order of time, until every sender is gone.

        A sender registers once in every interval, if it is up at that instant.
        """
        settings = self.settings
        order = sorted(range(len(self.sender_ids)), key=self._places.__getitem__)
        up, changing = bytearray(len(order)), self.transitions()[::-1]
        interval_number = 0
        while changing or any(up):
            started_at = interval_number * settings.registration_interval
            ended_at = started_at + settings.registration_interval
            places = self._places
            if settings.jitter:
                places = self._jittered(interval_number)
                order.sort(key=places.__getitem__)
            changed: set[int] = set()
            while changing and changing[-1].at < ended_at:
                change = changing.pop()
                up[change.sender_index] = change.comes_up
                changed.add(change.sender_index)
            registering = up.copy()
            for index in changed:
                registering[index] = self.is_up(index, started_at + places[index])
            for index in order:
                if registering[index]:
                    yield started_at + places[index], index
            interval_number += 1

    def is_up(self, sender_index: int, at: int) -> bool:
        return any(up_from <= at < up_to for up_from, up_to in self.up_spans[sender_index])

    def _jittered(self, interval_number: int) -> list[int]:
        jitter = self.settings.jitter
        return [
            place + stable_hash(each, interval_number) % jitter
            for place, each in zip(self._places, self._hashes, strict=True)
        ]

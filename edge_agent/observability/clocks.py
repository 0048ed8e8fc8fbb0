"""Comparison of a site's clock with others: this host's, and the region's, extrapolated from its last reading.

A server whose clock is wrong shows times that will come again: an agent that follows it covers them, and stands still
when the clock is corrected. So a site's clock is followed to at most ``max_ahead`` beyond the others:

1. If the region's clock was read in this run, it bounds the site's, and so does this host's. Two of three decide: the
   site's clock is followed as far as either of the others. A clock that was set in this run does not count, since it
   may be on the server whose clock was set.
2. Without the region's, this host's clock alone bounds nothing, since it may be the wrong one. But if it agreed with
   the site's until that jumped, the time that both showed bounds the site's.
3. A clock that is not yet followed is bounded by this host's, unless that shows a time before the observed one.

No sender is dated by this: time that is not followed is not covered, and that is all.
"""

import asyncio
import time
from collections.abc import Callable

import msgspec
import nats.errors
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.core.block_state import BlockState
from edge_agent.observability.status_board import now
from edge_agent.source.port import is_denied
from edge_agent.store.port import EVERYTHING
from shared.decoding import ReportedInstant
from shared.instants import MINUTE, SECOND, format_seconds
from shared.nats.jetstream_api import ApiError, RequestFailed, api_prefix, request_json, stream_behind
from shared.policy import STREAM, consumer_name
from shared.subjects import watermark_subject
from shared.tasks import is_cancelled, wait_for_event

REGION_PATIENCE = 20 * SECOND
"""How long after its start an agent whose own clock contradicts its site's waits to hear the region's."""

DRIFT = 1 * MINUTE
"""How far two readings of the region's clock may be apart from what this host's counts between them."""


def uptime() -> int:
    """Return the time since the host's boot, sleep included, in microseconds; no clock setting changes it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


class Clocks:
    """This host's clock and the region's. ``own`` reads the host's clock, ``elapsed`` its uptime, in microseconds."""

    def __init__(self, own: Callable[[], int] = now, elapsed: Callable[[], int] = uptime) -> None:
        self.own = own
        self.elapsed = elapsed
        self._began_at = elapsed()
        self._own_began_at = own()
        self._region_ahead: int | None = None
        self._region_set_by = 0
        self._heard = asyncio.Event()

    @property
    def region(self) -> int | None:
        """The time of the region's clock; None if it was not read in this run."""
        return None if self._region_ahead is None else self._region_ahead + self.elapsed()

    def hear_region(self, at: int) -> None:
        step = 0 if self.region is None else at - self.region
        # Two clocks that nobody sets part by seconds a day: only what goes on for years would add up.
        self._region_set_by += step if abs(step) > DRIFT else 0
        self._region_ahead = at - self.elapsed()
        self._heard.set()

    def was_set(self, by: int) -> bool:
        """Return True if this host's clock has been set by more than ``by`` in this run."""
        return abs((self.own() - self._own_began_at) - (self.elapsed() - self._began_at)) > by

    def region_was_set(self, by: int) -> bool:
        """Return True if the region's clock has been set by more than ``by`` since its first reading."""
        return abs(self._region_set_by) > by

    async def hear(self) -> None:
        """Wait for the region's clock, no longer than ``REGION_PATIENCE`` after the start."""
        patience = REGION_PATIENCE - (self.elapsed() - self._began_at)
        await wait_for_event(self._heard, max(patience, 0) / SECOND)


class SiteClock:
    """How far one block follows its stream's clock. ``max_ahead`` in microseconds, 0: wherever it goes."""

    def __init__(self, clocks: Clocks, max_ahead: int) -> None:
        self._clocks = clocks
        self._max_ahead = max_ahead
        self._site_ahead: int | None = None

    def bound(self, state: BlockState | None) -> int:
        others = self._others(state) if self._max_ahead else []
        return max(others) + self._max_ahead if others else EVERYTHING

    def reference(self) -> int:
        """Return the time of the other clocks."""
        region = self._clocks.region
        return self._clocks.own() if region is None or self._clocks.region_was_set(self._max_ahead) else region

    def _others(self, state: BlockState | None) -> list[int]:
        clocks, own, region = self._clocks, self._clocks.own(), self._clocks.region
        if region is not None and not clocks.region_was_set(self._max_ahead):
            return [region] if clocks.was_set(self._max_ahead) else [region, own]
        if state is not None and state.clock_ahead:
            return [own] if own >= state.observed_through - self._max_ahead else []
        if self._site_ahead is None:
            return []
        site = self._site_ahead + clocks.elapsed()
        return [own, site] if abs(own - site) <= self._max_ahead else []

    async def compare(self, site_at: int) -> None:
        """Wait for the region's clock where this host's contradicts the site's, and nothing else is known yet."""
        is_alone = self._clocks.region is None and self._site_ahead is None
        if self._max_ahead and is_alone and site_at - self._clocks.own() > self._max_ahead:
            await self._clocks.hear()

    def follow(self, site_at: int) -> None:
        """Note the time of the site's clock, which is followed."""
        self._site_ahead = site_at - self._clocks.elapsed()

    def contradiction(self, site_at: int) -> str:
        """Return a sentence about the site's clock relative to the others."""
        clocks, region = self._clocks, self._clocks.region
        own = _relative_to(site_at - clocks.own(), "this host's")
        if region is None:
            return f"the server's clock is {own}; the region's is not known"
        of_region = _relative_to(site_at - region, "the region's")
        return f"the server's clock is {of_region}, and {own}"


def _relative_to(ahead: int, whose: str) -> str:
    if abs(ahead) < SECOND:
        return f"as {whose}"
    return f"{format_seconds(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} {whose}"


ASK_EVERY, ASK_SOON, SOON = 60.0, 5.0, 6
"""How often, in seconds, it is asked for: so many times sooner where a connection has not told it yet."""

DEADLINE = 3.0


class _ServerTime(msgspec.Struct):
    ts: ReportedInstant


class RegionClock:
    """The region's clock over one link, from answers that a site's user may receive.

    These are about its policy's consumer, or about the stream that it fills; answers to publishes contain no time. The
    name of that stream is in the refusal of a publish that expects another one, which is permitted to every user that
    delivers there, and stores nothing.
    """

    def __init__(self, client: Client, settings: AgentSettings, clocks: Clocks) -> None:
        self._client = client
        self._clocks = clocks
        self._api = api_prefix(settings.upstream.domain)
        self._consumer = f"CONSUMER.INFO.{STREAM}.{consumer_name(settings.site)}"
        first = next((block for block in settings.stream if block.mode == "sample"), None)
        self._subject = watermark_subject(settings.block_id(first), first.target.prefix) if first else ""
        self._asked = ""
        self._denied: set[str] = set()
        self._found = ""
        self._tries = 0
        self._changed = asyncio.Event()

    def break_off(self, _reason: str) -> None:
        """Ask again over a connection that is new: it may lead to another server, and permit more."""
        self._denied, self._found, self._tries = set(), "", 0
        self._changed.set()

    def takes_denial(self, reason: str) -> bool:
        """Apply a permission violation that a question for the clock caused; return True if it was one."""
        if not self._asked or not is_denied(self._asked, reason):
            return False
        self._denied.add(self._asked)
        return True

    async def hear(self) -> bool:
        """Ask once; return True if there was an answer."""
        if await self._ask_time(self._consumer):
            return True
        self._found = self._found or await self._stream()
        return bool(self._found) and await self._ask_time(f"STREAM.INFO.{self._found}")

    async def run(self) -> None:
        while not is_cancelled():
            self._changed.clear()
            is_known = self._client.is_connected and await self.hear()
            self._tries += 1
            await wait_for_event(self._changed, ASK_EVERY if is_known or self._tries > SOON else ASK_SOON)

    async def _ask_time(self, request: str) -> bool:
        subject = self._asked = f"{self._api}.{request}"
        if subject in self._denied:
            return False
        try:
            answer = await request_json(self._client, subject, None, _ServerTime, deadline=DEADLINE)
            self._clocks.hear_region(answer.ts)
        except (ApiError, RequestFailed):
            return False
        finally:
            self._asked = ""
        return True

    async def _stream(self) -> str:
        """Return the name of the stream that stores this site's records; "" if unknown."""
        if not self._subject or self._subject in self._denied:
            return ""
        self._asked = self._subject
        try:
            return await stream_behind(self._client, self._subject, DEADLINE)
        except (nats.errors.Error, TimeoutError):
            return ""
        finally:
            self._asked = ""

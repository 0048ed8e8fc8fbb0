"""Fleet that registers in real time, and writes when each sender was up.

The truth is the senders' own state, so neither a stopped server nor a full link stops them: a sender whose registration
is not accepted was not heard, and registers again at its next turn. No registration is published late: a sender that
went down before its turn publishes nothing, and turns that this process slept through are counted and skipped.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from edge_agent.simulator.bodies import RegistrationBodies
from edge_agent.simulator.fleet import Fleet
from edge_agent.simulator.publisher import PipelinedPublisher, PublishFailed
from edge_agent.simulator.truth_file import FleetChanges, TruthFile
from shared.instants import SECOND, format_duration

_MARK_INTERVAL = SECOND
_BREATHE_EVERY = 64
STUCK = PublishFailed("no room: earlier ones were not answered yet")


class LiveCounts(msgspec.Struct):
    """Counts of registrations by outcome. ``latest`` is the longest delay of one, in microseconds."""

    heard: int = 0
    unheard: Counter[str] = msgspec.field(default_factory=Counter)
    left_out: int = 0
    latest: int = 0

    def count_end(self, failure: PublishFailed | None) -> None:
        if failure is None:
            self.heard += 1
        else:
            self.unheard[failure.reason] += 1

    def __str__(self) -> str:
        parts = [f"{self.heard:,} registrations taken"]
        if self.unheard:
            causes = ", ".join(f"{count:,} {reason}" for reason, count in self.unheard.most_common())
            parts.append(f"{self.unheard.total():,} not ({causes})")
        if self.left_out:
            parts.append(f"{self.left_out:,} left out, because this machine did not keep up")
        parts.append(f"at most {format_duration(self.latest)} late")
        return ", ".join(parts)


class LiveFleet:
    """One fleet on one site, from ``start`` on.

    ``subject_of`` gives the subject of a sender's registrations. ``started_at`` is the instant (Unix, microseconds)
    at which virtual time is 0; from then on a monotonic clock counts, so that a step of this machine's clock changes
    nothing.
    """

    def __init__(
        self,
        fleet: Fleet,
        bodies: RegistrationBodies,
        publisher: PipelinedPublisher,
        truth: TruthFile,
        subject_of: Callable[[str], str],
        *,
        started_at: int,
    ) -> None:
        self._fleet = fleet
        self._bodies = bodies
        self._publisher = publisher
        self._truth = truth
        self._subject_of = subject_of
        self._started_at = started_at
        self._changes = FleetChanges(fleet)
        self._ahead = time.time_ns() // 1_000 - started_at - time.monotonic_ns() // 1_000
        self.counts = LiveCounts()

    @property
    def now(self) -> int:
        """The present in virtual time."""
        return time.monotonic_ns() // 1_000 + self._ahead

    @property
    def up_count(self) -> int:
        return self._changes.up_count

    async def run(self, ended: asyncio.Event, duration: int | None) -> None:
        """Register the senders until ``ended`` is set or ``duration`` (microseconds) is over."""
        async with asyncio.TaskGroup() as tasks:
            working = [tasks.create_task(self._register()), tasks.create_task(self._write_truth())]
            try:
                async with asyncio.timeout(None if duration is None else max(0, duration - self.now) / SECOND):
                    await ended.wait()
            except TimeoutError:
                pass
            for task in working:
                task.cancel()
        ended_at = self.now if duration is None else min(self.now, duration)
        await self._publisher.drain()
        self._write_truth_through(ended_at)

    async def _register(self) -> None:
        interval = self._fleet.settings.registration_interval
        for count, (due_at, sender_index) in enumerate(self._fleet.registrations()):
            ahead = due_at - self.now
            if ahead > 0:
                await asyncio.sleep(ahead / SECOND)
            elif count % _BREATHE_EVERY == 0:
                await asyncio.sleep(0)
            now = self.now
            if not self._fleet.is_up(sender_index, now):
                continue
            if now - due_at >= interval:
                self.counts.left_out += 1
                continue
            self.counts.latest = max(self.counts.latest, now - due_at)
            if not self._publisher.has_room:
                self.counts.count_end(STUCK)
                continue
            sender_id = self._fleet.sender_ids[sender_index]
            body = self._bodies.body(sender_id, due_at // interval, self._started_at + now)
            await self._publisher.publish(self._subject_of(sender_id), body, self.counts.count_end)

    async def _write_truth(self) -> None:
        marked_at = 0
        while True:
            now = self.now
            mark = now >= marked_at
            if mark:
                marked_at = now + _MARK_INTERVAL
            self._write_truth_through(now, mark=mark)
            next_at = self._changes.next_at
            wake_at = marked_at if next_at is None else min(marked_at, next_at)
            await asyncio.sleep(max(0, wake_at - self.now) / SECOND)

    def _write_truth_through(self, at: int, *, mark: bool = False) -> None:
        self._changes.write_until(at, self._truth)
        self._truth.record_coverage(at, mark=mark)
        self._truth.flush()

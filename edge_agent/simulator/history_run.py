"""Publish the histories of a region's sites, all of them in step, and write the truth of the same time.

Everything is delivered: what was not acknowledged is published again under the same id. What was published before a
failure stays; a reader takes each record once.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial

import msgspec

from edge_agent.core.records import OutboxRow
from edge_agent.simulator.history import SiteHistory
from edge_agent.simulator.publisher import PipelinedPublisher, PublishFailed
from edge_agent.simulator.truth_file import FleetChanges, TruthFile
from shared.instants import DAY, SECOND, format_duration

ATTEMPTS = 30
PAUSE_BETWEEN_ATTEMPTS = 1.0
INTERVALS_PER_DRAFT = 12
"""How many sightings of each sender one draft takes: enough that copying its state costs little."""


class UndeliveredHistory(Exception):
    """The region's stream did not take a record after many attempts. The text says why."""


class HistoryProgress(msgspec.Struct):
    """Tell how far a history has come. ``virtual`` and ``duration`` are microseconds of virtual time."""

    duration: int
    started: float = msgspec.field(default_factory=time.monotonic)
    virtual: int = 0
    sightings: int = 0
    published: int = 0

    @property
    def elapsed(self) -> int:
        """Give the real time since the start, in microseconds."""
        return int((time.monotonic() - self.started) * SECOND)

    def __str__(self) -> str:
        done = (
            f"day {self.virtual / DAY:.1f} of {self.duration / DAY:.1f}: {self.sightings:,} sightings,"
            f" {self.published:,} records published"
        )
        if not 0 < self.virtual < self.duration:
            return done
        left = self.elapsed * (self.duration - self.virtual) // self.virtual
        return f"{done}, {format_duration(left // SECOND * SECOND)} left"


async def publish_histories(
    sites: Sequence[SiteHistory],
    publisher: PipelinedPublisher,
    truth: TruthFile,
    progress: HistoryProgress,
    ended: asyncio.Event,
) -> None:
    """Play all sites from the start of virtual time to ``progress.duration``; raise UndeliveredHistory.

    Once ``ended`` is set, it ends after a whole step, with a truth that goes as far.
    """
    changes = [FleetChanges(site.fleet) for site in sites]
    step = INTERVALS_PER_DRAFT * max(site.fleet.settings.registration_interval for site in sites)
    while progress.virtual < progress.duration and not ended.is_set():
        ended_at = min(progress.virtual + step, progress.duration)
        for site, of_site in zip(sites, changes, strict=True):
            rows = site.advance_to(ended_at)
            await _deliver(publisher, rows)
            progress.published += len(rows)
            of_site.write_until(ended_at, truth)
        truth.record_coverage(ended_at, mark=ended_at // DAY > progress.virtual // DAY)
        truth.flush()
        progress.virtual = ended_at
        progress.sightings = sum(site.sighting_count for site in sites)


async def _deliver(publisher: PipelinedPublisher, rows: Sequence[OutboxRow]) -> None:
    waiting = list(rows)
    failures: list[tuple[OutboxRow, PublishFailed]] = []
    reason = ""

    def on_end(row: OutboxRow, failure: PublishFailed | None) -> None:
        if failure is not None:
            failures.append((row, failure))

    for _ in range(ATTEMPTS):
        for row in waiting:
            await publisher.room()
            await publisher.publish(row.subject, row.payload, partial(on_end, row), row.headers)
        await publisher.drain()
        if not failures:
            return
        reason = failures[-1][1].reason
        waiting, failures = [row for row, _ in failures], []
        await asyncio.sleep(PAUSE_BETWEEN_ATTEMPTS)
    raise UndeliveredHistory(f"{len(waiting)} records were not taken after {ATTEMPTS} attempts: {reason}")

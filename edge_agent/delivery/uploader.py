"""Uploader of the outbox to the region: pipelined, advisories first, only the acknowledged prefix deleted.

After a failure of the link everything unacknowledged is read and sent again under the same message ids. A refused row
blocks only its own lane, and a row that is too large blocks none.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from edge_agent.core.records import Lane
from edge_agent.delivery.copy_lane import CopyScheduler
from edge_agent.delivery.fast_path import FastPath
from edge_agent.delivery.flow_control import MOST, FlightLimit
from edge_agent.delivery.lane import LaneFlight, ParallelScheduler, UploadLane
from edge_agent.delivery.oversized import OversizedRetry
from edge_agent.delivery.port import Upstream, UpstreamUnavailable
from edge_agent.delivery.shipment import FIRST_RETRY, LONGEST_RETRY, Answer, Terms
from edge_agent.runtime.pace import Pace, loop_time
from edge_agent.runtime.tally import Tally
from edge_agent.store.port import LaneRows, OutboxStore
from shared.backoff import Backoff, jitter
from shared.tasks import is_cancelled

SEND_ROWS = 256
ACKNOWLEDGEMENT_PATIENCE = 10.0
LANE_PATIENCE = 60.0
IDLE_PATIENCE = 5.0
LOOK_AT_LINK_EVERY = 1.0


class Uploader:
    """The loop. ``report`` is called with why nothing leaves, or some records do not; with "" when all goes well.

    After a failure all goes well again when an answer has come, or when nothing waits any more.
    """

    def __init__(
        self,
        store: OutboxStore,
        upstream: Upstream,
        *,
        bytes_per_second: int,
        report: Callable[[str], None],
        fast_path: FastPath,
    ) -> None:
        self._store = store
        self._fast_path = fast_path
        self._upstream = upstream
        self._pace = Pace(bytes_per_second)
        self._report = report
        self._terms = Terms()
        self._oversized = OversizedRetry(store, upstream, fast_path, self._terms)
        self.publishes = Tally()

        def flight(lane: Lane, rows: LaneRows) -> LaneFlight:
            limit = FlightLimit(bytes_per_second or MOST)
            return LaneFlight(lane, rows, self._terms, limit, self.publishes, upstream.poke)

        def parallel(lane: Lane) -> UploadLane:
            rows = flight(lane, store)
            return UploadLane(rows, ParallelScheduler(rows))

        registrations = parallel(Lane.REGISTRATIONS)
        store.reads_ahead(registrations.lane, registrations.give_back)
        copies, fast = flight(Lane.COPIES, store), flight(Lane.COPIES, fast_path)
        self._fast_lane = UploadLane(fast, CopyScheduler(fast), on_refusal=fast_path.close)
        self._fast_path_closed_count = fast_path.closed_count
        self._lanes = (
            parallel(Lane.ADVISORIES),
            registrations,
            UploadLane(copies, CopyScheduler(copies)),
            self._fast_lane,
        )
        self._lane_of: dict[int, UploadLane] = {}
        self._found_too_large = asyncio.Event()
        self._backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        self._looked_at = self._taken_at = 0.0
        self._is_in_trouble = False

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._watch_appends(), name="outbox watcher")
                tasks.create_task(self._upload_with_retries(), name="uploader")
                tasks.create_task(self._dead_letter(), name="records set apart")
                tasks.create_task(self._oversized.run(), name="oversized records")
        finally:
            self._upstream.give_up()
            # Rows that are still being read would stay in flight without a sender.
            for lane in self._lanes:
                lane.rewind()

    async def _dead_letter(self) -> None:
        """Dead-letter in a task of its own: only lanes that need it wait for a slow, locked or full store."""
        while True:
            await self._found_too_large.wait()
            self._found_too_large.clear()
            for lane in self._lanes:
                await lane.set_apart()
            self._upstream.poke()

    async def _watch_appends(self) -> None:
        seen = 0
        while True:
            seen = await self._store.wait_for_rows(seen)
            self._upstream.poke()

    async def _upload_with_retries(self) -> None:
        while not is_cancelled():
            try:
                await self._upstream.ready()
                self._terms.forget()
                self._fast_path.link_is_up(self._upstream.poke)
                await self._upload()
            except UpstreamUnavailable as error:
                self._report_trouble(str(error))
            self._fast_path.link_is_down()
            for lane in self._lanes:
                lane.rewind()
            self._lane_of.clear()
            await asyncio.sleep(self._backoff.next() * jitter())

    async def _upload(self) -> None:
        loop = asyncio.get_running_loop()
        progressed_at = loop.time()
        while not is_cancelled():
            self._terms.max_payload = self._upstream.max_payload
            was_idle, began_at = not self._in_flight(), loop.time()
            has_more = await self._send_some()
            # Rows delayed by the bandwidth limit could not be answered: that time does not count.
            progressed_at = loop.time() if was_idle else progressed_at + loop.time() - began_at
            in_flight = self._in_flight()
            if not in_flight:
                progressed_at = loop.time()
                # Only an answer shows that the trouble is over, not a new attempt.
                if not self._is_in_trouble or all(lane.is_empty for lane in self._lanes):
                    self._report_lanes()
            answers = await self._upstream.answers(0.0 if has_more else self._patience(progressed_at, in_flight))
            self._take(answers)
            if answers:
                progressed_at = loop.time()
                self._backoff.reset()
                self._report_lanes()
            elif in_flight and self._has_waited(progressed_at, ACKNOWLEDGEMENT_PATIENCE):
                raise _given_up(self._lanes, f"no acknowledgement for {ACKNOWLEDGEMENT_PATIENCE:g} s")
            for lane in self._lanes:
                if lane.in_flight and self._has_waited(lane.waits_since, LANE_PATIENCE):
                    raise _given_up([lane], f"no acknowledgement of {lane.lane.name.lower()} for {LANE_PATIENCE:g} s")

    def _take(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            lane = self._lane_of.pop(answer.number, None)
            if lane is not None:
                lane.take_answer(answer)
        if any(lane.has_too_large for lane in self._lanes):
            self._found_too_large.set()

    def _has_waited(self, since: float, patience: float) -> bool:
        """Return True if neither an answer came nor the link took bytes for ``patience`` seconds."""
        now = loop_time()
        if now - self._looked_at >= LOOK_AT_LINK_EVERY:
            self._looked_at = now
            if self._upstream.takes_more():
                self._taken_at = now
        return now - max(since, self._taken_at) >= patience

    def _in_flight(self) -> int:
        return sum([lane.in_flight for lane in self._lanes])

    def _patience(self, progressed_at: float, in_flight: int) -> float:
        now = loop_time()
        patience = IDLE_PATIENCE
        if in_flight:
            left = progressed_at + ACKNOWLEDGEMENT_PATIENCE - now
            # No time is left while a slow link still takes bytes: it is checked every second, and waited for.
            patience = min(left, LOOK_AT_LINK_EVERY) if left > 0 else LOOK_AT_LINK_EVERY
        resting = [lane.paused_until - now for lane in self._lanes if lane.paused_until > now]
        return max(min([patience, *resting]), 0.0)

    def _report_trouble(self, text: str) -> None:
        self._is_in_trouble = True
        self._report(text)

    def _report_lanes(self) -> None:
        self._is_in_trouble = False
        self._report(next((lane.flight.problem for lane in self._lanes if lane.flight.problem), ""))

    async def _send_some(self) -> bool:
        """Send the shipments that may leave, advisories first; return True if more may follow at once."""
        sent_count = 0
        while sent_count < SEND_ROWS:
            if self._fast_path_closed_count != self._fast_path.closed_count:
                # Its rows are being stored: they may no longer leave from the fast path.
                self._fast_path_closed_count = self._fast_path.closed_count
                self._fast_lane.rewind()
            for lane in self._lanes:
                shipment = lane.next_shipment()
                if shipment is not None:
                    self._lane_of[shipment.number] = lane
                    await self._pace.wait(shipment.size)
                    lane.note_sent(shipment)
                    await self._upstream.send(shipment)
                    sent_count += len(shipment.rows)
                    break
            else:
                return False
        return True


def _given_up(lanes: Iterable[UploadLane], text: str) -> UpstreamUnavailable:
    """Return the error, and keep it as the problem of each lane with shipments in flight until it is answered."""
    for lane in lanes:
        if lane.in_flight:
            lane.flight.problem = text
    return UpstreamUnavailable(text)

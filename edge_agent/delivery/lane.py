"""A lane of the uploader: read rows ahead, ship them, take the answers, delete the acknowledged prefix.

An UploadLane, which times shipments and handles refusals, owns a LaneFlight, which holds the rows that were read and
those in flight. A Scheduler chooses the next shipment: ParallelScheduler here, CopyScheduler in copy_lane.py. A lane
whose row is refused pauses and starts again; other lanes continue. A row that is too large is refused for good and does
not block the others: the store dead-letters it, and the lane continues. Until that is committed nothing more leaves the
lane; rows that are refused for their size meanwhile enter the next transaction together.

While a backlog brings records by the hundred, uploads yield to reading: one batch of registrations leaves each second,
and five of advisories, which are that many only if every sender is new. An agent that catches up sooner reports sooner
which senders are silent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Protocol

from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.delivery.flow_control import FlightLimit, UploadWindow
from edge_agent.delivery.region_protocol import least_size, without_spared
from edge_agent.delivery.shipment import (
    FIRST_RETRY,
    LONGEST_RETRY,
    Answer,
    Form,
    Outcome,
    Shipment,
    ShipmentPlace,
    Terms,
)
from edge_agent.runtime.pace import loop_time
from edge_agent.runtime.tally import Tally
from edge_agent.store.port import LaneRows, StoreUnwritable
from shared.backoff import Backoff, jitter

READ_ROWS = 2_000
READ_BYTES = 4 << 20


class LaneReader:
    """Reader of a lane's rows ahead of their use. ``ready`` holds rows that were read and not taken.

    ``wake`` is called when reading from the file has ended.
    """

    def __init__(self, lane: Lane, store: LaneRows, wake: Callable[[], None]) -> None:
        self.ready: deque[OutboxRow] = deque()
        self.through = 0
        self._lane, self._store, self._wake = lane, store, wake
        self._most_rows = READ_ROWS // 10
        self._appends_read = -1
        self._reading: asyncio.Task[list[OutboxRow]] | None = None
        self._appends_asked = 0

    @property
    def is_reading(self) -> bool:
        return self._reading is not None and not self._reading.done()

    def read_on(self) -> bool:
        """Read more rows if few are ready; return True if the lane had none. Raise the error of reading the file."""
        appends = self._store.append_count
        if self._reading is not None:
            if not self._reading.done():
                return False
            reading, self._reading = self._reading, None
            self._take(reading.result(), self._appends_asked)
        if len(self.ready) >= self._most_rows // 2 or appends == self._appends_read:
            return appends == self._appends_read
        at_hand = self._store.at_hand(self._lane, self.through, self._most_rows)
        if at_hand is not None:
            self._take(at_hand, appends)
            return not at_hand
        self._appends_asked = appends
        pending = self._store.pending(self._lane, self.through, self._most_rows, READ_BYTES)
        self._reading = asyncio.create_task(pending, name=f"read {self._lane.name.lower()}")
        self._reading.add_done_callback(self._has_read)
        return False

    def rewind(self, through: int) -> None:
        """Read again from behind row ``through``."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.ready.clear()
        self.through, self._appends_read = through, -1

    def _has_read(self, reading: asyncio.Task[list[OutboxRow]]) -> None:
        if not reading.cancelled():
            # Mark the error as retrieved: read_on() raises it; after a rewind it has no use.
            reading.exception()
        self._wake()

    def _take(self, rows: Sequence[OutboxRow], appends: int) -> None:
        if not rows:
            self._appends_read = appends
            return
        # Within a bound on memory: rows may be large.
        usual_size = sum([row.size for row in rows]) // len(rows)
        self._most_rows = max(min(READ_BYTES // usual_size, READ_ROWS), 2)
        self.through = rows[-1].row_id
        self.ready.extend(rows)


WINDOW_MESSAGES = 8_192
"""Another row, or batch, leaves while fewer are in flight. A server answers the messages that it took off a stream's
queue when all of them are stored: with half the limit it would then be idle for a round trip of a long link."""

BATCH_ROWS = 1_000
WORTH_A_BATCH = 100
"""Smallest batch: a server creates files for every batch, which takes as long as storing some dozens of rows."""

BUSY_PAUSE = 2.0
YIELDING_ROWS = {Lane.ADVISORIES: 5 * BATCH_ROWS, Lane.REGISTRATIONS: BATCH_ROWS, Lane.COPIES: 0}
"""Rows that leave each second while uploads yield to reading; 0: copies never yield."""

LOOK_AGAIN_AFTER = 0.1


class LaneFlight:
    """One lane's rows on their way: ``ready`` to leave, in ``shipments`` that wait for their answer, or acknowledged.

    ``wake`` is called when more rows were read. ``publishes`` counts them.
    ``shipments`` holds, by number, each shipment and when it left. ``window`` holds the rows that were sent.
    ``problem`` says why the lane's rows do not leave, until one was acknowledged or none waits.
    """

    def __init__(
        self,
        lane: Lane,
        store: LaneRows,
        terms: Terms,
        limit: FlightLimit,
        publishes: Tally,
        wake: Callable[[], None],
    ) -> None:
        self.lane = lane
        self.store = store
        self.terms = terms
        self.limit = limit
        self.publishes = publishes
        self.problem = ""
        self.window = UploadWindow(WINDOW_MESSAGES, limit.limit)
        self.reader = LaneReader(lane, store, wake)
        self.ready = self.reader.ready
        self.shipments: dict[int, tuple[Shipment, float]] = {}
        self.acknowledged_through = 0

    def batch(self) -> tuple[list[OutboxRow], bool]:
        """Return rows for a batch, and True if there will be more of them when the window is empty.

        All are of one block: another block may use another stream. A row that may be too large is sent alone.
        """
        rows: list[OutboxRow] = []
        size, block = 0, self.ready[0].block
        alone_from = self.terms.alone_from(block)
        admits, is_idle = self.window.admits, not len(self.window)
        for row in self.ready:
            row_size = row.size
            size += row_size
            if row.block != block or len(rows) == BATCH_ROWS or (size > self.window.byte_limit // 2 and rows):
                break
            if row_size >= alone_from:
                return rows or [row], False
            if not (is_idle or admits(size)) or (row.is_watermark and not is_idle):
                return rows, True
            rows.append(row)
        return rows, False

    def ship(
        self, rows: Sequence[OutboxRow], form: Form = Form.SINGLE, behind: ShipmentPlace | None = None
    ) -> Shipment:
        """Move the first of the ready rows into the window; give them as a shipment."""
        for row in rows:
            self.ready.popleft()
            self.window.add(row.row_id, row.size)
        return self.shipment(rows, form, behind)

    def shipment(
        self, rows: Sequence[OutboxRow], form: Form = Form.SINGLE, behind: ShipmentPlace | None = None
    ) -> Shipment:
        return Shipment(self.terms.next_number(), self.lane, rows, form, behind)

    def acknowledge(self, rows: Iterable[OutboxRow], done: int | None = None) -> None:
        """Note that rows are acknowledged; the store deletes the prefix that is. ``done`` of them were published."""
        through = count = 0
        for row in rows:
            through = self.window.acknowledge(row.row_id) or through
            count += 1
        self.publishes.done += count if done is None else done
        if count:
            self.problem = ""
        if through:
            self.acknowledged_through = through
            self.store.delete_through(self.lane, through)

    def rewind(self) -> None:
        """Forget everything behind the acknowledged prefix: it will be read and sent again."""
        self.limit.restart(is_lost=bool(self.shipments))
        self.window.rewind()
        self.window.byte_limit = self.limit.limit
        self.reader.rewind(self.acknowledged_through)
        for shipment, _ in self.shipments.values():
            if shipment.form is Form.QUESTION:
                self.terms.asked.discard(shipment.rows[0].block)
        self.shipments.clear()
        self.store.release(self.lane)


class LaneVerdict(Enum):
    """The reason for which the region did not take a row; the lane acts on it."""

    REFUSED = auto()
    TOO_LARGE = auto()


class Scheduler(Protocol):
    """Choice of the next shipment of one lane. Nothing leaves before ``paused_until``, on the loop's clock."""

    paused_until: float

    def next_shipment(self) -> Shipment | None:
        """Return the next shipment; None if nothing may leave now."""

    def take_answer(self, shipment: Shipment, answer: Answer, sent_at: float) -> LaneVerdict | None:
        """Apply the answer to a shipment that left at ``sent_at``; return the verdict on its first row."""

    def send_again(self, row: OutboxRow) -> None:
        """Send a row once more in place of the one with its id, which was refused."""

    def restart(self) -> None:
        """Forget the rows in flight: the lane starts again after the acknowledged prefix."""


class ParallelScheduler:
    """Sends rows that may pass each other when a publish fails: those of advisories and registrations.

    Where the stream takes atomic batches, many waiting rows go as one. A batch that is refused is sent again row by
    row, which tells which of them the region does not take, and why. A watermark never passes another row: it leaves
    only when everything before it in its lane is acknowledged, or goes before it in the same batch, which is stored in
    its order or not at all.
    """

    paused_until = 0.0

    def __init__(self, flight: LaneFlight) -> None:
        self._flight = flight
        self._again: deque[OutboxRow] = deque()
        self._batches_from = 0.0

    def next_shipment(self) -> Shipment | None:
        """Return the next shipment: first rows to send again, then a batch, then a single row."""
        flight, ready = self._flight, self._flight.ready
        if self._again:
            return self._next_again()
        if len(ready) >= WORTH_A_BATCH:
            block = ready[0].block
            if not flight.terms.is_asked(block):
                flight.terms.asked.add(block)
                return flight.shipment((ready[0],), Form.QUESTION)
            if flight.terms.takes_batches.get(block) and loop_time() >= self._batches_from:
                rows, waits = flight.batch()
                if len(rows) >= WORTH_A_BATCH or (len(rows) > 1 and not len(flight.window)):
                    return flight.ship(rows, Form.BATCH)
                if waits:
                    return None
        if ready and flight.window.admits(ready[0].size, is_barrier=ready[0].is_watermark):
            return flight.ship((ready[0],))
        return None

    def take_answer(self, shipment: Shipment, answer: Answer, _sent_at: float) -> LaneVerdict | None:
        rows = shipment.rows
        if shipment.form is Form.QUESTION:
            return None
        if answer.outcome is Outcome.STORED:
            self._flight.acknowledge(rows)
            return None
        if shipment.form is Form.BATCH:
            if answer.outcome is Outcome.BUSY:
                self._batches_from = loop_time() + BUSY_PAUSE * jitter()
            self._again.extend(rows)
            return None
        return LaneVerdict.TOO_LARGE if answer.outcome is Outcome.TOO_LARGE else LaneVerdict.REFUSED

    def send_again(self, row: OutboxRow) -> None:
        self._again.append(row)

    def restart(self) -> None:
        self._again.clear()

    def _next_again(self) -> Shipment | None:
        row = self._again[0]
        if row.is_watermark and not self._flight.window.is_first(row.row_id):
            return None
        return self._flight.shipment((self._again.popleft(),))


class UploadLane:
    """One lane: when it may send, and how it handles rows that the region refuses.

    ``is_empty``: no row waited at the last request for a shipment. ``has_too_large``: set_apart() has to be called.
    ``waits_since`` is the time of the last answer, or of the first shipment after it. ``on_refusal``, if given, is
    called instead of all handling of refused rows.
    """

    def __init__(self, flight: LaneFlight, scheduler: Scheduler, on_refusal: Callable[[], None] | None = None) -> None:
        self.lane = flight.lane
        self.is_empty = False
        self.flight = flight
        self._shipments = flight.shipments
        self._scheduler = scheduler
        self._on_refusal = on_refusal
        self._paused_until = 0.0
        self._backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        self.waits_since = 0.0
        self._left_since = 0
        self._left_from = self._yields_until = 0.0
        self._too_large: list[tuple[OutboxRow, TooLarge]] = []
        self._is_setting_apart = False
        self._rewind_count = 0

    @property
    def has_too_large(self) -> bool:
        return bool(self._too_large)

    @property
    def in_flight(self) -> int:
        return len(self._shipments)

    @property
    def paused_until(self) -> float:
        """The time on the loop's clock until which nothing leaves, after a refusal or to yield to reading."""
        return max(self._paused_until, self._yields_until, self._scheduler.paused_until)

    def next_shipment(self) -> Shipment | None:
        """Return the next shipment, counted as sent; if it is delayed afterwards, note_sent() has to follow."""
        now = loop_time()
        is_paused = now < self._paused_until or now < self._scheduler.paused_until
        if self._too_large or self._is_setting_apart or is_paused or self._yields(now):
            return None
        flight = self.flight
        has_read_all = flight.reader.read_on()
        self.is_empty = has_read_all and flight.reader.through == flight.acknowledged_through
        if self.is_empty:
            flight.problem = ""
        shipment = self._scheduler.next_shipment()
        if shipment is not None:
            if not self._shipments:
                self.waits_since = now
            self._shipments[shipment.number] = (shipment, now)
            self._left_since += len(shipment.rows)
        return shipment

    def _yields(self, now: float) -> bool:
        """Return True if the lane yields to reading, for the rest of a second in which enough rows have left."""
        if now - self._left_from >= 1:
            self._left_from, self._left_since = now, 0
        most = YIELDING_ROWS[self.lane]
        yields = 0 < most <= self._left_since and self.flight.store.is_filling()
        self._yields_until = now + LOOK_AGAIN_AFTER if yields else 0.0
        return yields

    def note_sent(self, shipment: Shipment) -> None:
        """Note that a shipment leaves only now: the wait for its answer begins."""
        now = loop_time()
        if len(self._shipments) == 1:
            self.waits_since = now
        self._shipments[shipment.number] = (shipment, now)

    def take_answer(self, answer: Answer) -> None:
        """Apply an answer to a shipment; ignore one to a shipment that is no longer in flight."""
        shipment, sent_at = self._shipments.pop(answer.number, (None, 0.0))
        if shipment is None:
            return
        self.waits_since = loop_time()
        self.flight.limit.note_answer(shipment.size, loop_time() - sent_at)
        self.flight.window.byte_limit = self.flight.limit.limit
        row = shipment.rows[0]
        if answer.outcome is Outcome.STORED:
            self._backoff.reset()
        if shipment.form is not Form.SINGLE:
            self.flight.terms.learn(row.block, shipment.form, answer.outcome)
        elif answer.outcome is Outcome.STORED:
            self.flight.terms.note_accepted_size(row.block, row.size)
            if row.block in self.flight.terms.dropped:
                self.flight.terms.note_accepted_need(row.block, least_size(row))
        verdict = self._scheduler.take_answer(shipment, answer, sent_at)
        if verdict is not None and self._on_refusal is not None:
            self._on_refusal()
        elif verdict is LaneVerdict.TOO_LARGE:
            self._shorten_or_set_apart(row, answer.limit)
        elif verdict is LaneVerdict.REFUSED:
            # A row that may not be dropped waits until the cause is removed.
            self.flight.publishes.failed += 1
            self._pause(f"block {row.block}: {row.subject}: {answer.reason}")

    def _shorten_or_set_apart(self, row: OutboxRow, limit: SizeLimit) -> None:
        """Send a row again without its optional headers; if it has none, dead-letter it."""
        self.flight.publishes.failed += 1
        # For the servers' limit, JetStreamUpstream has omitted them already.
        shorter = without_spared(row) if limit is SizeLimit.MAX_MSG_SIZE else row
        if shorter is not row:
            self._scheduler.send_again(shorter)
            return
        self.flight.terms.note_refused_size(row.block, row.size)
        self._too_large.append((row, TooLarge(limit, least_size(row))))

    async def set_apart(self) -> None:
        """Dead-letter the rows that were too large; if the store cannot, the lane pauses and starts again."""
        rows, self._too_large = self._too_large, []
        if not rows:
            return
        rewind_count, self._is_setting_apart = self._rewind_count, True
        try:
            await self.flight.store.set_apart(rows)
        except StoreUnwritable as error:
            self._pause(f"{error.cause}: {error}")
            return
        finally:
            self._is_setting_apart = False
        self._backoff.reset()
        if rewind_count == self._rewind_count:
            self.flight.acknowledge([row for row, _ in rows], done=0)

    def give_back(self) -> int:
        """Forget the rows that were read ahead; return the last row id that may have left."""
        through = max(self.flight.window.last_row_id, self.flight.acknowledged_through)
        self.flight.reader.rewind(through)
        return through

    def rewind(self) -> None:
        """Start again after the acknowledged prefix: rows in flight are lost, or duplicates when sent again."""
        self.flight.rewind()
        self._scheduler.restart()
        self.is_empty = False
        self._too_large.clear()
        self._rewind_count += 1

    def _pause(self, problem: str) -> None:
        self.flight.problem = problem
        self._paused_until = loop_time() + self._backoff.next() * jitter()
        self.rewind()

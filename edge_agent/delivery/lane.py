"""Take one lane's rows to the region: read ahead, ship, take the answers, and let the acknowledged prefix go.

Where the stream takes atomic batches, many waiting rows go as one. A batch that is refused is sent again row by row,
which tells what is wrong with which. A lane whose row is refused rests a while and begins again; others go on. A row
that is too large is refused for good, and holds up nobody: the store sets it apart, and the lane goes on. Until that is
durable nothing more leaves in the lane; what it was refused for meanwhile goes into the next transaction, together.

While a backlog brings records by the hundred, they let reading go first: a batch of registrations leaves each second,
and five of advisories, of which there are as many only when everybody is new. Whoever knows the present sooner says
sooner who is silent now.

Rows may pass each other when a publish fails. A watermark may not: it leaves only when everything before it in its
lane is acknowledged, or stands before it in the same batch, which is stored in its order or not at all.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from edge_agent.core.records import Lane, OutboxRow, SizeLimit, TooLarge
from edge_agent.delivery.flow_control import FlightLimit, UploadWindow
from edge_agent.delivery.region_protocol import least_size, without_spared
from edge_agent.delivery.shipment import Answer, Form, Outcome, Place, Shipment, Terms
from edge_agent.runtime.backoff import FIRST_RETRY, LONGEST_RETRY, jitter, loop_time
from edge_agent.runtime.tally import Tally
from edge_agent.store.port import LaneRows, StoreUnwritable

READ_ROWS = 2_000
READ_BYTES = 4 << 20


class LaneReader:
    """``ready`` holds what was read and has not been taken. ``wake`` is called when a reading of the file has ended."""

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
        """Tell whether the file is being read."""
        return self._reading is not None and not self._reading.done()

    def read_on(self, appends: int) -> bool:
        """Read on where that is of use; tell whether there was nothing more as of ``appends``.

        Raise what reading the file raised.
        """
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
        """Begin again behind a row."""
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None
        self.ready.clear()
        self.through, self._appends_read = through, -1

    def _has_read(self, reading: asyncio.Task[list[OutboxRow]]) -> None:
        if not reading.cancelled():
            # Who asks for the result hears of it; one that nobody wants any more is no news.
            reading.exception()
        self._wake()

    def _take(self, rows: Sequence[OutboxRow], appends: int) -> None:
        if not rows:
            self._appends_read = appends
            return
        # As many as are of use, and no more than memory should hold: what waits may be large.
        usual_size = sum([row.size for row in rows]) // len(rows)
        self._most_rows = max(min(READ_BYTES // usual_size, READ_ROWS), 2)
        self.through = rows[-1].row_id
        self.ready.extend(rows)


WINDOW_MESSAGES = 8_192
"""Another row, or batch, leaves while fewer are in flight. A server answers whatever it took off a stream's queue when
all of that is stored: with half as many it would then wait for the next ones for a round trip of a long link."""

BATCH_ROWS = 1_000
WORTH_A_BATCH = 100
"""From how many rows on: a server makes files for every batch, which takes as long as to store some dozens of rows."""

BUSY_PAUSE = 2.0
YIELDING_ROWS = {Lane.ADVISORIES: 5 * BATCH_ROWS, Lane.REGISTRATIONS: BATCH_ROWS, Lane.COPIES: 0}
"""How many leave each second while reading goes first; 0: copies go as ever."""

LOOK_AGAIN_AFTER = 0.1


class UploadLane:
    """One lane, whose rows may pass each other when a publish fails. ``wake`` is called when more of them were read.

    ``problem`` says why its rows do not leave, until one was acknowledged or none waits. ``is_empty`` tells that none
    waited when it was last asked for a shipment. ``has_too_large`` asks for set_apart().
    """

    def __init__(
        self,
        lane: Lane,
        store: LaneRows,
        terms: Terms,
        flight_limit: FlightLimit,
        publishes: Tally,
        wake: Callable[[], None],
    ) -> None:
        self.lane = lane
        self.problem = ""
        self.is_empty = False
        self._store = store
        self._terms = terms
        self._flight_limit = flight_limit
        self._publishes = publishes
        self._window = UploadWindow(WINDOW_MESSAGES, flight_limit.limit)
        self._reader = LaneReader(lane, store, wake)
        self._ready = self._reader.ready
        self._again: deque[OutboxRow] = deque()
        self._in_flight: dict[int, tuple[Shipment, float]] = {}
        self._acknowledged_through = 0
        self._rests_until = 0.0
        self._batches_from = 0.0
        self._retry_after = FIRST_RETRY
        self._waits_since = 0.0
        self._left_since = 0
        self._left_from = self._yields_until = 0.0
        self._too_large: list[tuple[OutboxRow, TooLarge]] = []
        self._is_setting_apart = False
        self._rewind_count = 0

    @property
    def has_too_large(self) -> bool:
        """Tell whether rows were refused for their size and are still in the lane."""
        return bool(self._too_large)

    @property
    def in_flight(self) -> int:
        """Count the shipments that wait for their answer."""
        return len(self._in_flight)

    @property
    def is_reading(self) -> bool:
        """Tell whether more rows are being read from the file."""
        return self._reader.is_reading

    @property
    def rests_until(self) -> float:
        """Give the instant of the loop's clock until which nothing leaves: it was refused, or lets reading go first."""
        return max(self._rests_until, self._yields_until)

    @property
    def waits_since(self) -> float:
        """Give when the last answer came, or the first shipment behind it left."""
        return self._waits_since

    def next_shipment(self, appends: int) -> Shipment | None:
        """Give what may leave now, noted as sent; ``appends`` tells whether reading again is worth it.

        Where it is kept back a while before it leaves, left() has to follow.
        """
        now = loop_time()
        if self._too_large or self._is_setting_apart or now < self._rests_until or self._yields(now):
            return None
        has_read_all = self._reader.read_on(appends)
        self.is_empty = has_read_all and self._reader.through == self._acknowledged_through
        if self.is_empty:
            self.problem = ""
        shipment = self._chosen()
        if shipment is not None:
            if not self._in_flight:
                self._waits_since = now
            self._in_flight[shipment.number] = (shipment, now)
            self._left_since += len(shipment.rows)
        return shipment

    def _yields(self, now: float) -> bool:
        """Tell whether reading goes first: for the rest of a second in which enough have left."""
        if now - self._left_from >= 1:
            self._left_from, self._left_since = now, 0
        most = YIELDING_ROWS[self.lane]
        yields = 0 < most <= self._left_since and self._store.is_filling()
        self._yields_until = now + LOOK_AGAIN_AFTER if yields else 0.0
        return yields

    def left(self, shipment: Shipment) -> None:
        """Note that a shipment leaves only now: its answer is waited for from now on."""
        now = loop_time()
        if len(self._in_flight) == 1:
            self._waits_since = now
        self._in_flight[shipment.number] = (shipment, now)

    def take_answer(self, answer: Answer) -> None:
        """Take an answer to a shipment; one that is no longer in flight means nothing."""
        shipment, sent_at = self._in_flight.pop(answer.number, (None, 0.0))
        if shipment is None:
            return
        self._waits_since = loop_time()
        self._flight_limit.answered(shipment.size, loop_time() - sent_at)
        self._window.byte_limit = self._flight_limit.limit
        if answer.outcome is Outcome.STORED:
            self._retry_after = FIRST_RETRY
        if shipment.form is not Form.SINGLE:
            self._terms.learn(shipment.rows[0].block, shipment.form, answer.outcome)
        elif answer.outcome is Outcome.STORED:
            row = shipment.rows[0]
            self._terms.was_taken(row.block, row.size)
            if row.block in self._terms.dropped:
                self._terms.covers(row.block, least_size(row))
        self._answered(shipment, answer)

    async def set_apart(self) -> None:
        """Have the store set apart what was too large; where it cannot, the lane rests, and begins again."""
        rows, self._too_large = self._too_large, []
        if not rows:
            return
        rewind_count, self._is_setting_apart = self._rewind_count, True
        try:
            await self._store.set_apart(rows)
        except StoreUnwritable as error:
            self._rest(f"{error.cause}: {error}")
            return
        finally:
            self._is_setting_apart = False
        self._retry_after = FIRST_RETRY
        if rewind_count == self._rewind_count:
            self._acknowledge([row for row, _ in rows], done=0)

    def give_back(self) -> int:
        """Forget what was read and has not left; give the last row that may have."""
        through = max(self._window.last_row_id, self._acknowledged_through)
        self._reader.rewind(through)
        return through

    def rewind(self) -> None:
        """Begin again behind the acknowledged prefix: what is in flight is lost, or known when it comes again."""
        self._flight_limit.restart(is_lost=bool(self._in_flight))
        self._window.rewind()
        self._window.byte_limit = self._flight_limit.limit
        self._reader.rewind(self._acknowledged_through)
        self.is_empty = False
        for shipment, _ in self._in_flight.values():
            if shipment.form is Form.QUESTION:
                self._terms.unanswered(shipment.rows[0].block)
        self._again.clear()
        self._in_flight.clear()
        self._too_large.clear()
        self._rewind_count += 1
        self._store.release(self.lane)

    # For lanes of other rules

    def _chosen(self) -> Shipment | None:
        if self._again:
            return self._chosen_again()
        if len(self._ready) >= WORTH_A_BATCH:
            block = self._ready[0].block
            if not self._terms.is_asked(block):
                self._terms.ask(block)
                return self._shipment((self._ready[0],), Form.QUESTION)
            if self._terms.takes_batches(block) and loop_time() >= self._batches_from:
                rows, waits = self._batch()
                if len(rows) >= WORTH_A_BATCH or (len(rows) > 1 and not len(self._window)):
                    return self._shipped(rows, Form.BATCH)
                if waits:
                    return None
        if self._ready and self._window.admits(self._ready[0].size, is_barrier=self._ready[0].is_watermark):
            return self._shipped((self._ready[0],))
        return None

    def _chosen_again(self) -> Shipment | None:
        row = self._again[0]
        if row.is_watermark and not self._window.is_first(row.row_id):
            return None
        return self._shipment((self._again.popleft(),))

    def _answered(self, shipment: Shipment, answer: Answer) -> None:
        rows = shipment.rows
        if shipment.form is Form.QUESTION:
            return
        if answer.outcome is Outcome.STORED:
            self._acknowledge(rows)
        elif shipment.form is Form.BATCH:
            if answer.outcome is Outcome.BUSY:
                self._batches_from = loop_time() + BUSY_PAUSE * jitter()
            self._again.extend(rows)
        elif answer.outcome is Outcome.TOO_LARGE:
            self._leave_behind(rows[0], answer.limit)
        else:
            self._refuse(rows[0], answer)

    def _leave_behind(self, row: OutboxRow, limit: SizeLimit) -> None:
        """Send a row once more without the headers that can be spared; if it had none, go on without it."""
        self._publishes.failed += 1
        # For the servers' limit they were left out already.
        shorter = without_spared(row) if limit is SizeLimit.MAX_MSG_SIZE else row
        if shorter is not row:
            self._send_again(shorter)
            return
        self._terms.was_too_large(row.block, row.size)
        self._too_large.append((row, TooLarge(limit, least_size(row))))

    def _send_again(self, row: OutboxRow) -> None:
        self._again.append(row)

    def _refuse(self, row: OutboxRow, answer: Answer) -> None:
        """Let a row that may not be dropped wait until somebody has helped."""
        self._publishes.failed += 1
        self._rest(f"block {row.block}: {row.subject}: {answer.reason}")

    def _rest(self, problem: str) -> None:
        """Let the lane rest, and begin again."""
        self.problem = problem
        self._rests_until = loop_time() + self._retry_after * jitter()
        self._retry_after = min(self._retry_after * 2, LONGEST_RETRY)
        self.rewind()

    def _acknowledge(self, rows: Iterable[OutboxRow], done: int | None = None) -> None:
        through = count = 0
        for row in rows:
            through = self._window.acknowledge(row.row_id) or through
            count += 1
        self._publishes.done += count if done is None else done
        if count:
            self.problem = ""
        if through:
            self._acknowledged_through = through
            self._store.delete_through(self.lane, through)

    def _batch(self) -> tuple[list[OutboxRow], bool]:
        """Choose rows for a batch; tell whether there will be more of them when the window is empty.

        All are of one block: another's may go into another stream. One that may be too large is left alone.
        """
        rows: list[OutboxRow] = []
        size, block = 0, self._ready[0].block
        alone_from = self._terms.alone_from(block)
        admits, is_idle = self._window.admits, not len(self._window)
        for row in self._ready:
            row_size = row.size
            size += row_size
            if row.block != block or len(rows) == BATCH_ROWS or (size > self._flight_limit.limit // 2 and rows):
                break
            if row_size >= alone_from:
                return rows or [row], False
            if not (is_idle or admits(size)) or (row.is_watermark and not is_idle):
                return rows, True
            rows.append(row)
        return rows, False

    def _shipped(self, rows: Sequence[OutboxRow], form: Form = Form.SINGLE, behind: Place | None = None) -> Shipment:
        """Move the first of the ready rows into the window."""
        for row in rows:
            self._ready.popleft()
            self._window.sent(row.row_id, row.size)
        return self._shipment(rows, form, behind)

    def _shipment(self, rows: Sequence[OutboxRow], form: Form = Form.SINGLE, behind: Place | None = None) -> Shipment:
        return Shipment(self._terms.next_number(), self.lane, rows, form, behind)

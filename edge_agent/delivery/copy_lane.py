"""Scheduler of copies: they leave in the source's order, also when publishes fail.

A batch leaves when the previous one is acknowledged; or earlier, on the condition, which the server checks, that it is
stored directly behind the previous one: if a batch is refused, all that follow it are refused, too. The condition names
the sequence at which the previous batch will end, which is right while no other client writes to the stream; if one
does, batches leave one after the other for a while. A row that is sent alone leaves with nothing else in flight.

On the same condition, large rows leave as chains where these are faster: each row must be stored directly behind the
previous one. If a chain breaks, its first part may be stored. A chain follows answered shipments or another chain: the
end of a batch is a guess that messages of others make wrong, and then a row in the middle of the chain might match by
chance, and be stored without those before it.

A server keeps a limited number of open batches for all its clients. If it had no room for some seconds, rows leave one
by one, as for streams that take no batches, and a batch is tried from time to time.

Before anything is sent, the scheduler asks which rows an earlier connection or run has already delivered: the rows that
the region has are the first waiting ones of their block.
"""

from collections.abc import Sequence
from itertools import takewhile

from edge_agent.core.records import OutboxRow
from edge_agent.delivery.lane import BATCH_ROWS, LaneFlight, LaneVerdict
from edge_agent.delivery.region_protocol import least_size
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment, ShipmentPlace
from edge_agent.runtime.pace import loop_time
from shared.backoff import jitter
from shared.subjects import RecordType, parse_subject

LARGE_ROW = 4 << 10
MEASURED = 8
MEASURED_AGAIN_AFTER = 128
FIRST_PAUSE = 16
LONGEST_PAUSE = 1024
_KEPT = 0.75
"""Weight of earlier shipments relative to the next one."""


class _Speed:
    """How fast one form was lately."""

    def __init__(self) -> None:
        self.count = 0
        self._size = self._seconds = 0.0

    def take(self, size: int, seconds: float) -> None:
        # Sums: of two answers that are read together, only both give the true speed.
        self.count += 1
        self._size = self._size * _KEPT + size
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def bytes_per_second(self) -> float:
        """The speed; 0 if nothing was measured."""
        return self._size / max(self._seconds, 1e-6)


class FormChoice:
    """The choice, for one connection. Sizes are in bytes, durations in seconds."""

    def __init__(self) -> None:
        self._batches, self._chains = _Speed(), _Speed()
        self._unmeasured = 0
        self._pause = FIRST_PAUSE
        self._paused_for = 0

    def of(self, row_size: int) -> Form:
        """Choose for rows of about a size."""
        if row_size < LARGE_ROW or self._paused_for or self._batches.count < MEASURED:
            return Form.BATCH
        if self._chains.count < MEASURED:
            return Form.CHAIN
        chains_are_faster = self._chains.bytes_per_second > self._batches.bytes_per_second
        if self._unmeasured >= MEASURED_AGAIN_AFTER:
            chains_are_faster = not chains_are_faster
        return Form.CHAIN if chains_are_faster else Form.BATCH

    def note_stored(self, form: Form, size: int, seconds: float) -> None:
        """Note that ``size`` bytes were stored, ``seconds`` after they had left or those before them were."""
        chains_were_faster = self._chains.bytes_per_second > self._batches.bytes_per_second
        self._unmeasured = self._unmeasured + 1 if (form is Form.CHAIN) == chains_were_faster else 0
        self._paused_for = max(self._paused_for - 1, 0)
        if form is Form.CHAIN:
            self._chains.take(size, seconds)
            self._pause = max(self._pause // 2, FIRST_PAUSE)
        else:
            self._batches.take(size, seconds)

    def note_broken(self) -> None:
        self._paused_for = self._pause
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


STRIDE = 4


class StoredPrefix:
    """Search for the prefix of rows, of the given ``sizes``, that the region already has: the first ``known`` ones.

    ``has_met_unknown``: the region lacks one of the rows that were asked for. A row that it has proves those before it
    that are no larger. It proves nothing about larger ones: rows that were too large were dead-lettered, and the rows
    after them sent. Those are asked for one by one.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self.known = 0
        self._sizes = sizes
        self._unknown_from = len(sizes)
        self.has_met_unknown = False
        self._step = 1
        self._largest_known = 0

    @property
    def question(self) -> int | None:
        """The index of the row to ask for next; None when the search has ended."""
        if self.known == self._unknown_from:
            return None
        if self.has_met_unknown:
            place = (self.known + self._unknown_from) // 2
        else:
            place = min(self.known + self._step, self._unknown_from) - 1
        largest = max(self._sizes[self.known : place + 1])
        while self._sizes[place] < largest > self._largest_known:
            place -= 1
        return place

    def learn(self, place: int, *, is_known: bool) -> None:
        if is_known:
            self.known = max(self.known, place + 1)
            self._largest_known = max(self._largest_known, self._sizes[place])
            self._step *= STRIDE
        else:
            self._unknown_from, self.has_met_unknown = place, True


BUSY_PAUSE = 0.25
BUSY_PATIENCE = 3.0
ONE_BY_ONE_FOR = 10.0
WORTH_A_CHAIN = 16
LONGEST_TURN = 64


class CopyScheduler:
    """Sends copies, which never pass each other.

    ``_end`` is where the last shipment, which was of ``_end_block``, ends, if nobody else writes in between.
    ``_returned`` were refused in a batch, and go again, in their order, when nothing is in flight; the first ``_alone``
    of them one by one. ``_turns`` batches go without another behind them, after the condition failed; ``_has_followed``
    tells that it held. ``_busy_since``: from when on the region was too busy for every batch and question, 0 where the
    last one was not refused for that.
    """

    def __init__(self, flight: LaneFlight) -> None:
        self.paused_until = 0.0
        self._flight = flight
        self._ready = flight.ready
        self._window = flight.window
        self._in_flight = flight.shipments
        self._terms = flight.terms
        self._longest_turn = 1
        self._turns = 0
        self._busy_since = 0.0
        self._batches_from = 0.0
        self.restart()

    def restart(self) -> None:
        """Forget all rows in flight: the lane starts again by asking which rows the region has."""
        self._end: ShipmentPlace | None = None
        self._end_block = ""
        self._returned: list[OutboxRow] = []
        self._alone = 0
        self._is_doubtful = True
        self._search: StoredPrefix | None = None
        self._not_known = 0
        self._choice = FormChoice()
        self._has_followed = False
        self._stored_at = 0.0

    def next_shipment(self) -> Shipment | None:
        if self._returned and not self._in_flight:
            self._ready.extendleft(sorted(self._returned, key=lambda row: row.row_id, reverse=True))
            self._returned = []
        if self._returned or not self._ready:
            return None
        takes_batches = self._terms.takes_batches.get(self._ready[0].block)
        goes_one_by_one = takes_batches is False or loop_time() < self._batches_from
        if (self._is_doubtful or takes_batches is None) and not goes_one_by_one:
            return self._question()
        # Where rows go one by one, each answer says whether its row was known.
        # A search that is abandoned concerns rows that are about to leave.
        self._is_doubtful, self._search = False, None
        if not self._in_flight:
            return self._leader(goes_one_by_one=goes_one_by_one)
        may_follow = not goes_one_by_one and self._end and not self._turns and len(self._in_flight) == 1
        return self._follower() if may_follow else None

    def _leader(self, *, goes_one_by_one: bool) -> Shipment:
        rows = [self._ready[0]]
        if self._alone:
            self._alone -= 1
            # Nothing follows it: that would be those that are to go alone, too.
            self._end = None
        elif not goes_one_by_one:
            rows, _ = self._flight.batch()
            if rows[0].size >= self._terms.alone_from(rows[0].block):
                # What followed a row that may be refused would be refused, too.
                self._end = None
        if self._end and rows[0].block != self._end_block:
            self._end = None
        behind = self._end
        self._end = ShipmentPlace(rows[-1].subject, behind.sequence + len(rows)) if behind else None
        self._end_block = rows[0].block
        if behind and self._form_of(rows) is Form.CHAIN:
            return self._flight.ship(rows, Form.CHAIN, behind)
        return self._flight.ship(rows, Form.BATCH if len(rows) > 1 else Form.SINGLE)

    def _form_of(self, rows: Sequence[OutboxRow]) -> Form:
        if len(rows) < WORTH_A_CHAIN or not self._has_followed or not _has_one_writer(rows[0]):
            return Form.BATCH
        return self._choice.of(sum([row.size for row in rows]) // len(rows))

    def _follower(self) -> Shipment | None:
        if self._ready[0].block != self._end_block:
            # It may go into another stream, where the one in flight stands nowhere.
            return None
        rows, _ = self._flight.batch()
        if rows and rows[0].size >= self._terms.alone_from(self._end_block):
            return None
        if len(rows) < BATCH_ROWS // 2 and sum(row.size for row in rows) < self._window.byte_limit // 4:
            # What has come by the time the one in flight is answered makes a fuller batch.
            return None
        assert self._end is not None
        form = self._form_of(rows)
        if form is Form.CHAIN and any(shipment.form is not Form.CHAIN for shipment, _ in self._in_flight.values()):
            return None
        behind, self._end = self._end, ShipmentPlace(rows[-1].subject, self._end.sequence + len(rows))
        return self._flight.ship(rows, form, behind)

    def take_answer(self, shipment: Shipment, answer: Answer, sent_at: float) -> LaneVerdict | None:
        rows = shipment.rows
        if shipment.form in (Form.BATCH, Form.QUESTION) and answer.outcome is not Outcome.BUSY:
            self._busy_since = 0.0
        if shipment.form is Form.QUESTION:
            return self._take_answer_to_question(answer)
        if answer.outcome is Outcome.STORED and _is_whole(shipment, answer):
            self._flight.acknowledge(rows)
            self._note_speed(shipment, sent_at)
            if shipment.behind:
                self._has_followed = True
                self._longest_turn = max(self._longest_turn // 2, 1)
            elif self._turns:
                self._turns -= 1
            self._note_end(ShipmentPlace(rows[-1].subject, answer.sequence) if answer.sequence else None)
        elif shipment.form is Form.SINGLE and answer.outcome is Outcome.TOO_LARGE:
            # Its batch was refused for this row: the others leave together.
            self._end, self._alone = None, 0
            return LaneVerdict.TOO_LARGE
        elif shipment.form is Form.SINGLE:
            return LaneVerdict.REFUSED
        elif shipment.form is Form.CHAIN:
            self._take_back_chain(rows)
        else:
            self._take_back(rows, answer)
        return None

    def send_again(self, row: OutboxRow) -> None:
        self._window.take_back((row.row_id,))
        self._returned.append(row)
        self._alone += 1

    def _note_end(self, end: ShipmentPlace | None) -> None:
        """Keep the end of the last answered shipment.

        One in flight that was to stand behind another place will be refused. What followed that one could be stored:
        where others have written as many messages before as it has rows, the subject ends at the very place.
        """
        if not self._in_flight:
            self._end = end
        elif any(shipment.behind != end for shipment, _ in self._in_flight.values()):
            self._end = None

    def _note_speed(self, shipment: Shipment, sent_at: float) -> None:
        now = loop_time()
        if len(shipment.rows) >= WORTH_A_CHAIN:
            self._choice.note_stored(shipment.form, shipment.size, now - max(sent_at, self._stored_at))
        self._stored_at = now

    def _take_back_chain(self, rows: Sequence[OutboxRow]) -> None:
        """Return a broken chain to the queue: a question finds its stored rows, batches show other errors."""
        self._window.take_back(row.row_id for row in rows)
        self._returned.extend(rows)
        self._end, self._is_doubtful = None, True
        self._turns, self._has_followed = max(self._turns, 1), False
        self._choice.note_broken()

    def _take_back(self, rows: Sequence[OutboxRow], answer: Answer) -> None:
        self._window.take_back(row.row_id for row in rows)
        self._returned.extend(rows)
        self._end = None
        match answer.outcome:
            case Outcome.MISPLACED:
                self._turns = self._longest_turn
                self._longest_turn = min(self._longest_turn * 2, LONGEST_TURN)
            case Outcome.DUPLICATE if rows[0].row_id != self._not_known:
                self._is_doubtful = True
            case Outcome.BUSY:
                self._pause_while_busy()
            case Outcome.NO_BATCHES:
                pass
            case _:
                # The stream refuses one of them: sent alone, its answer says why. Or the stream's window of message ids
                # no longer covers the first ones.
                self._alone = len(rows)

    def _question(self) -> Shipment | None:
        if self._in_flight:
            return None
        if self._search is None:
            # The region has a block's rows without a hole, except for those that were too large; their order among
            # another block's rows proves nothing after a loss.
            block = self._ready[0].block
            ours = takewhile(lambda row: row.block == block, self._ready)
            self._search = StoredPrefix([least_size(row) for row in ours])
        place = self._search.question
        assert place is not None
        return self._flight.shipment((self._ready[place],), Form.QUESTION)

    def _take_answer_to_question(self, answer: Answer) -> LaneVerdict | None:
        search = self._search
        if search is None:
            # It was given up meanwhile: rows go one by one, and each answer says whether its row was known.
            return None
        match answer.outcome:
            case Outcome.DUPLICATE | Outcome.STORED | Outcome.MISPLACED:
                place = search.question
                assert place is not None
                search.learn(place, is_known=answer.outcome is not Outcome.MISPLACED)
                if search.question is None:
                    self._skip_stored(search)
            case Outcome.BUSY:
                self._search = None
                self._pause_while_busy()
            case Outcome.NO_BATCHES | Outcome.TOO_LARGE:
                self._search = None
            case _:
                return LaneVerdict.REFUSED
        return None

    def _pause_while_busy(self) -> None:
        """Wait a moment for room; where there was none for long, go one by one for a while."""
        now = loop_time()
        self._busy_since = self._busy_since or now
        if now - self._busy_since >= BUSY_PATIENCE:
            self._batches_from = now + ONE_BY_ONE_FOR * jitter()
        else:
            self.paused_until = now + BUSY_PAUSE * jitter()

    def _skip_stored(self, search: StoredPrefix) -> None:
        """Count the rows that the region has as acknowledged."""
        known = [self._ready.popleft() for _ in range(search.known)]
        for row in known:
            self._window.add(row.row_id, row.size)
        self._flight.acknowledge(known)
        self._search = None
        if search.has_met_unknown:
            self._is_doubtful, self._not_known = False, self._ready[0].row_id


def _has_one_writer(row: OutboxRow) -> bool:
    """Return True if permissions reserve a block's subjects for it: in a chain, a foreign message could match."""
    subject = parse_subject(row.subject)
    if subject is None or subject.record_type is not RecordType.COPY:
        return False
    return subject.block_id.block == row.block


def _is_whole(shipment: Shipment, answer: Answer) -> bool:
    """Return True if all rows are stored at the expected place; a duplicate is answered with its old sequence."""
    if shipment.form is not Form.CHAIN:
        return True
    assert shipment.behind is not None
    return answer.sequence == shipment.behind.sequence + len(shipment.rows)

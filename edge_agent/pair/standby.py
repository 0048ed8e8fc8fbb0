"""Standing by: pass the log's entries to the followers, and take the lead when no member has it any more.

The lead is taken when every entry is followed and the log answers but has had no entry for ``takeover_after`` by
this member's own clock; at once if the leader has resigned, or was an earlier run of this member itself. A member that
has handed the lead over takes it back only if the other does not take it for as long.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec

from edge_agent.core.block_state import PairMark
from edge_agent.core.replay import OutOfStep
from edge_agent.observability.status_board import PairPhase
from edge_agent.pair.deliveries import Deliveries
from edge_agent.pair.follower import Follower
from edge_agent.pair.log import Entry, EntryKind, LogOutrun, LogRecord, LogUnavailable, PairLog, Writer
from edge_agent.runtime.pace import loop_time
from edge_agent.store.sqlite_store import SqliteStore
from shared.tasks import cancel_all, is_cancelled

LOOK_EVERY = 0.25
MOST_AT_ONCE = 16
RETRY_AFTER = 1.0
LAG_UNSAID = 5.0
"""How long, in seconds, a member may be behind and still report that it stands by."""


class _Lag:
    """The lag of the followers behind the log's end, which keeps moving."""

    def __init__(self, followers: Iterable[Follower]) -> None:
        self._followers = list(followers)
        self._ends = [0 for _ in self._followers]
        self._ended_at = self._reached = float("-inf")

    @property
    def is_none(self) -> bool:
        return all(each.has_followed(each.given) for each in self._followers)

    @property
    def is_small(self) -> bool:
        """True if they have followed up to the log's end of a moment ago."""
        return loop_time() - self._reached <= LAG_UNSAID

    def look(self) -> None:
        """Update the lag; call it when the followers have received every entry."""
        if all(each.has_followed(end) for each, end in zip(self._followers, self._ends, strict=True)):
            self._reached = self._ended_at
            self._ends, self._ended_at = [each.given for each in self._followers], loop_time()
        if self.is_none:
            self._reached = loop_time()


class Standby(msgspec.Struct, frozen=True):
    """One time of standing by. ``takeover_after`` is in seconds.

    ``hear`` is called with every entry, and whether it was appended after ``run`` began; ``say`` with every phase and
    its reason.
    """

    log: PairLog
    writer: Writer
    store: SqliteStore
    followers: Mapping[str, Follower]
    deliveries: Deliveries
    takeover_after: float
    has_handed_over: bool
    hear: Callable[[LogRecord, bool], Awaitable[None]]
    say: Callable[[PairPhase, str], None]

    async def run(self, cursor: int, last: LogRecord) -> PairMark:
        """Follow the entries behind ``cursor`` until the lead is taken; return its mark. The log ended with ``last``.

        Raise OutOfStep if the entries cannot be followed, LogUnavailable if the log has lost its end.
        """
        self.say(PairPhase.CATCHING_UP, "")
        reading = asyncio.create_task(self._read_log(cursor, last), name="log of the pair")
        following = [asyncio.create_task(each.run(), name="follower") for each in self.followers.values()]
        try:
            done, _ = await asyncio.wait((reading, *following), return_when=asyncio.FIRST_COMPLETED)
            for part in done - {reading}:
                part.result()
            return await reading
        finally:
            await cancel_all((reading, *following))

    async def _read_log(self, cursor: int, last: LogRecord) -> PairMark:
        heard_at = loop_time()
        newest, most, lag = last, 1, _Lag(self.followers.values())
        while not is_cancelled():
            try:
                found = await self.log.entries_after(cursor, most)
            except LogUnavailable as error:
                self.say(PairPhase.UNREACHABLE, str(error))
                await self._await_log(cursor)
                # Time in which the log could not be read does not count as silence.
                heard_at, most = loop_time(), 1
                continue
            for logged in found:
                self._check_order(logged, cursor, last)
                cursor, newest, heard_at = logged.sequence, logged, loop_time()
                await self._take(logged, is_live=cursor > last.sequence)
            if len(found) == most:
                # One by one, a member far from the log would never reach its end: each round trip adds entries.
                most = min(2 * most, MOST_AT_ONCE)
                continue
            most = 1
            lag.look()
            self.say(PairPhase.STANDING_BY if lag.is_small else PairPhase.CATCHING_UP, "")
            if lag.is_none and cursor == newest.sequence and self._may_lead(newest, loop_time() - heard_at):
                mark = await self._take_lead(newest)
                if mark is not None:
                    return mark
            await self.log.change(LOOK_EVERY)
        raise asyncio.CancelledError

    async def _await_log(self, cursor: int) -> None:
        """Wait until the log answers again; raise LogUnavailable if it has lost its end."""
        while not is_cancelled():
            await asyncio.sleep(RETRY_AFTER)
            try:
                await self.log.open()
                end = await self.log.last()
            except LogUnavailable as error:
                self.say(PairPhase.UNREACHABLE, str(error))
                continue
            if end is None or end.sequence < cursor:
                raise LogUnavailable("the log has lost its end")
            return

    def _check_order(self, logged: LogRecord, cursor: int, last: LogRecord) -> None:
        if logged.entry.generation != last.entry.generation:
            raise OutOfStep("the log was begun anew")
        if logged.sequence != cursor + 1:
            raise OutOfStep(f"entries {cursor + 1} to {logged.sequence - 1} of the log are gone")

    async def _take(self, logged: LogRecord, *, is_live: bool) -> None:
        await self.hear(logged, is_live)
        for lane, row_id in self.deliveries.row_ids_of(logged.entry.delivered).items():
            self.store.delete_through(lane, row_id)
        follower = self.followers.get(logged.entry.block)
        if follower is not None:
            await follower.give(logged)

    def _may_lead(self, newest: LogRecord, silence: float) -> bool:
        entry = newest.entry
        is_own = entry.writer.member == self.writer.member
        is_free = not self.has_handed_over if is_own else entry.kind is EntryKind.RESIGNED
        return is_free or silence >= self.takeover_after

    async def _take_lead(self, newest: LogRecord) -> PairMark | None:
        generation, delivered = newest.entry.generation, self.deliveries.delivered
        entry = Entry(kind=EntryKind.LEADS, generation=generation, writer=self.writer, delivered=delivered)
        try:
            return PairMark(generation, await self.log.append(entry, behind=newest.sequence))
        except LogOutrun:
            return None

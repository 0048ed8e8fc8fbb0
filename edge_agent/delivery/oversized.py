"""Retries of records that their target refused for their size, when the limit may have risen.

The servers' limit can be asked for: records that now fit return to their lane. An agent may lack the permission to ask
for a stream's limit, so the smallest row of each block is tried from time to time, with growing pauses; once it is
accepted, all dead letters of that block and limit follow. A start of the agent tries at once, and so does a change of
the servers' limit, since both limits are often changed together. Notes of dropped records are deleted once the record
would fit, so that people are not asked to raise a limit that is high enough.

Retried rows are appended behind everything that waits, so their order is lost. Copies return only while none is on the
fast path: a row of the same subject between two others could be taken for the first of them (see copy_lane.py).
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence

from edge_agent.core.records import Lane, SizeLimit
from edge_agent.delivery.fast_path import FastPath
from edge_agent.delivery.port import Upstream
from edge_agent.delivery.shipment import Terms
from edge_agent.runtime.pace import loop_time
from edge_agent.store.port import DROPPED_LATELY, DroppedTooLarge, OutboxStore, Retry, StoreUnwritable
from shared.backoff import Backoff, jitter

LOOK_EVERY = 30.0
LOOK_AT_TRIALS_EVERY = 1.0
FIRST_TRIAL, LONGEST_PAUSE = 60.0, 1_800.0
SLICE_BYTES = 8 << 20
FAST_PATH_PATIENCE = 5.0

_Key = tuple[Lane, str, SizeLimit]


class OversizedRetry:
    """Loop of retries, next to the uploader's.

    By lane, block and limit: the time of the next trial, the pauses after it, the row on trial.
    """

    def __init__(self, store: OutboxStore, upstream: Upstream, fast_path: FastPath, terms: Terms) -> None:
        self._store, self._upstream, self._fast_path, self._terms = store, upstream, fast_path, terms
        self._due_at: dict[_Key, float] = {}
        self._pauses: dict[_Key, Backoff] = {}
        self._on_trial: dict[_Key, int] = {}
        self._limit = 0

    async def run(self) -> None:
        """Run until cancelled; wait while there is neither a dead letter nor a note of a dropped record."""
        looked_at = float("-inf")
        news_wait = 0.0 if await self._store.smallest_set_apart() else FIRST_TRIAL
        while True:
            await self._store.wait_for_too_large()
            # The reading loop reports a store that is full or locked.
            with contextlib.suppress(StoreUnwritable):
                await self._end_trials()
                if loop_time() - looked_at >= LOOK_EVERY:
                    await self._begin_trials(news_wait)
                    news_wait, looked_at = FIRST_TRIAL, loop_time()
            await asyncio.sleep(min(LOOK_AT_TRIALS_EVERY, LOOK_EVERY) if self._on_trial else LOOK_EVERY * jitter())

    async def _begin_trials(self, news_wait: float) -> None:
        smallest = await self._store.smallest_set_apart()
        dropped = await self._store.dropped_too_large()
        known = self._upstream.max_payload
        waiting = [*(each.too_large for each in smallest), *(each.too_large for each in dropped)]
        is_asked = any(each.limit is SizeLimit.MAX_PAYLOAD or each.needed > known for each in waiting)
        limit = await self._upstream.ask_max_payload() if is_asked else known
        if self._limit and limit != self._limit:
            self._pauses.clear()
            self._due_at = dict.fromkeys(self._due_at, 0.0)
        self._limit = limit
        await self._forget(dropped, limit)
        for each in smallest:
            key = each.lane, each.block, each.too_large.limit
            due_at = self._due_at.setdefault(key, loop_time() + news_wait)
            # Whether the servers would accept it now is known from their limit.
            is_due = loop_time() >= due_at or each.too_large.limit is SizeLimit.MAX_PAYLOAD
            if key not in self._on_trial and is_due and each.too_large.needed <= limit:
                for row_id in await self._retry(Retry(*key, each.too_large.needed, byte_limit=1)):
                    self._on_trial[key] = row_id

    async def _forget(self, dropped: Sequence[DroppedTooLarge], limit: int) -> None:
        """Delete notes of dropped records that are old, or fit by the servers' limit or an accepted message."""
        oldest = time.time_ns() // 1000 - DROPPED_LATELY
        past = [
            each
            for each in dropped
            if each.at <= oldest
            or (each.too_large.limit is SizeLimit.MAX_PAYLOAD and each.too_large.needed <= limit)
            or each.too_large.needed <= self._terms.largest_accepted(each.block)
        ]
        if past:
            await self._store.forget_dropped(past)
        self._terms.dropped = {each.block for each in dropped if each not in past}

    async def _end_trials(self) -> None:
        """End trials of rows that have left their lane: retry the other rows if it was accepted; pause if not."""
        through = self._store.acknowledged_through()
        for key, row_id in list(self._on_trial.items()):
            if through[key[0]] < row_id:
                continue
            if await self._store.has_set_apart(row_id):
                pauses = self._pauses.setdefault(key, Backoff(FIRST_TRIAL, LONGEST_PAUSE))
                self._due_at[key] = loop_time() + pauses.next() * jitter()
            else:
                self._due_at.pop(key, None)
                self._pauses.pop(key, None)
                # Rows that were refused again meanwhile have later ids.
                others = Retry(*key, self._upstream.max_payload, before=row_id, byte_limit=SLICE_BYTES)
                while await self._retry(others):
                    pass
            del self._on_trial[key]

    async def _retry(self, which: Retry) -> list[int]:
        if which.lane is not Lane.COPIES:
            return await self._store.retry(which)
        with self._fast_path.hold_closed():
            return await self._store.retry(which) if await self._fast_path.wait_until_empty(FAST_PATH_PATIENCE) else []

"""The reading loop of one stream block: read, decide, commit, acknowledge, in this order; one transaction per batch.

While one batch is committed the next is read and decided. The agent's own clock only paces the loop; decisions depend
on the stream's time alone.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic

import msgspec

from edge_agent.core.block_mode import BlockDraft, D, Decider
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import BlindCause, Restriction
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import PolicyRevisions
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext
from edge_agent.core.senders import NO_CHANGES
from edge_agent.core.stream_past import StreamFacts, describe_change, is_gap, past_change
from edge_agent.core.unproven import exceeds_bound, longest_quiet, with_span
from edge_agent.delivery.fast_path import BlockFastPath
from edge_agent.ingest.block import BlockRules, IngestPhase, Watermarks, phase_of, report_pause, watermark_context
from edge_agent.ingest.commits import LONGEST_RETRY, BatchLimit, CommitQueue, FastPathCommits, ReopenBackoff
from edge_agent.ingest.port import Progress
from edge_agent.ingest.thinning import Thinning
from edge_agent.runtime.pace import Stretch
from edge_agent.source.port import ConsumerState, OpenResult, Source, SourceUnavailable, StreamCheck
from edge_agent.store.port import EVERYTHING, BatchCommit, BatchStore, StoreUnwritable
from shared.identifiers import SourcePosition
from shared.instants import SECOND, format_instant
from shared.tasks import cancel_all, is_cancelled

log = logging.getLogger("muster.agent")

LONGEST_CHECK_INTERVAL = 1 * SECOND
POLL_EVERY = 2.0
"""How often, in seconds, the consumer is polled while no check is made."""

CHECK_AGAIN_AFTER = 0.5
"""Seconds by which a check may be late; later, messages that were read are not decided before another check."""


class Ingest(Generic[D]):
    """One stream block's loop.

    ``decider`` is None if the store does not hold the block yet. ``report`` is called with every change of phase and
    its reason.
    """

    def __init__(
        self,
        rules: BlockRules[D],
        source: Source,
        store: BatchStore,
        decider: Decider[D] | None,
        report: Callable[[IngestPhase, str], None],
        fast_path: BlockFastPath | None = None,
    ) -> None:
        self._rules = rules
        self._intake = rules.intake
        self._emitter = rules.emitter
        self._source = source
        self._store = store
        if fast_path is None:
            self._commits = CommitQueue(store, source, self._report_pause, rules.journal)
        else:
            self._commits = FastPathCommits(store, source, self._report_pause, rules.emitter.block_id, fast_path)
        self._decider = decider
        self._journal = rules.journal
        self._oldest_forwarded = 0
        self._watermarks = Watermarks(rules.watermark_interval)
        if decider is not None:
            self._watermarks.begin(decider.state)
        self._report = report
        self._server_at = self._stored_at = 0
        self._thinning = Thinning()
        self._lifted: dict[Restriction, StreamFacts] = {}
        """The facts that first showed a restriction lifted, until everything stored before them is read."""
        self.read_at = 0.0
        self._checked: StreamCheck | None = None
        self._checked_at = 0.0
        self._consumer = ConsumerState()
        self._consumer_at = 0.0
        self._moved_at = 0.0

    @property
    def decider(self) -> Decider[D]:
        """The decider; set by the first open."""
        assert self._decider is not None
        return self._decider

    @property
    def progress(self) -> Progress | None:
        """The progress of reading; None before the first check."""
        if self._decider is None or self._checked is None:
            return None
        state, checked = self._decider.state, self._checked
        now, consumer = asyncio.get_running_loop().time(), self._consumer
        ago = int((now - self._checked_at) * SECOND)
        return Progress(
            pending=consumer.pending,
            server_at=checked.facts.server_at + ago,
            checked_ago=ago,
            observed_through=state.observed_through,
            senders=self._decider.sender_counts(),
            mode=state.mode,
            blind_after=state.policy.blind_after,
            storage_fault=checked.publish_error or checked.facts.storage_fault,
            loss=state.loss,
            is_covered=not state.is_suspended,
            has_unopened_batches=bool(state.seen.batch),
            pending_ago=int((now - self._consumer_at) * SECOND),
            idle_for=int((now - self._moved_at) * SECOND) if consumer.pending else 0,
            expires_after=consumer.expires_after,
            contradiction=self._rules.contradiction(state, checked.facts.server_at + ago),
            unacknowledged=consumer.unacknowledged,
        )

    @property
    def watermark_count(self) -> int:
        """The number of watermarks of this run."""
        return self._watermarks.count

    @property
    def has_left(self) -> bool:
        """True if the region has acknowledged all advisories and watermarks."""
        return not self._store.depths()[Lane.ADVISORIES].rows

    def restatement(self, condition: str, number: int) -> OutboxRow | None:
        """Return the last watermark for the ``number``-th time, with the condition that keeps time from advancing.

        None if an advisory that it counts, or an earlier watermark, still waits in the outbox.
        """
        covered = self._watermarks.covered
        if covered is None or self._decider is None or not self.has_left:
            return None
        self._watermarks.claim = covered
        context = msgspec.structs.replace(self._watermark_context(), condition=condition, number=number)
        return self._emitter.watermark(covered, context)

    @property
    def state(self) -> BlockState | None:
        """The state after the last adopted draft; None before the first open."""
        return self._decider.state if self._decider else None

    async def run(self) -> None:
        """Read until cancelled; after a failure of the source, resume at the committed position."""
        self._report(IngestPhase.STARTING, "")
        polling = asyncio.create_task(self._poll_consumer(), name="consumer")
        try:
            await self._keep_reading(polling)
        finally:
            await cancel_all([polling])
            await self._commits.stop()

    async def _poll_consumer(self) -> None:
        """Keep the number of pending messages current also while reading stands: a full outbox or disk, no source."""
        while not is_cancelled():
            await asyncio.sleep(POLL_EVERY)
            if asyncio.get_running_loop().time() - self._consumer_at > POLL_EVERY:
                with contextlib.suppress(SourceUnavailable):
                    polled = await self._source.poll()
                    self._note_consumer(polled.consumer)
                    if self._checked is None and polled.consumer.pending:
                        # Progress shows the pending messages also before the first check.
                        self._checked, self._checked_at = polled, self._consumer_at

    def _note_consumer(self, consumer: ConsumerState) -> None:
        self._consumer, self._consumer_at = consumer, asyncio.get_running_loop().time()
        if not consumer.pending:
            self._moved_at = self._consumer_at

    async def _keep_reading(self, polling: asyncio.Task[None]) -> None:
        loop, backoff = asyncio.get_running_loop(), ReopenBackoff(self._source)
        while not is_cancelled():
            try:
                if polling.done():
                    polling.result()
                await self._open()
                self._report(IngestPhase.READING, "")
                opened_at, opened_behind = loop.time(), self.decider.state.position
                self._moved_at = opened_at
                try:
                    await self._read_on()
                finally:
                    # An open alone is no success: it may succeed each time and reading fail at once.
                    if self.decider.state.position != opened_behind or loop.time() - opened_at >= LONGEST_RETRY:
                        backoff.reset()
            except SourceUnavailable as error:
                await self._commits.finish()
                self._report(phase_of(error), str(error))
                await self._commits.settle()
                await backoff.wait()

    async def _open(self) -> None:
        if self._decider is None:
            facts, sequence = await self._source.resolve_start()
            position = SourcePosition(self._rules.stream, facts.incarnation(), sequence)
            await self._compare_clocks(facts)
            # Orders about senders that were given before are void, also for later pasts of the stream.
            revisions = PolicyRevisions(given_at=min(facts.server_at, self._rules.clock_bound(None)))
            state = BlockState(
                position,
                self._rules.policy_after(revisions),
                revisions=revisions,
                rebuilding=self._rules.rebuilding,
                store_began_at=position.incarnation.epoch_at,
                mode=self._rules.mode,
            )
            await self._commit(state)
            self._decider = self._rules.decides(state)
        else:
            policy = self._rules.policy_after(self._decider.state.revisions)
            if policy != self._decider.state.policy:
                await self._apply(lambda draft: draft.change_policy(policy))
        opened = await self._open_source()
        if opened.change is not None:
            change = describe_change(opened.change, self.decider.state.position, opened.facts)
            await self._begin_epoch(opened.facts, opened.sequence, because=change)
            opened = await self._open_source()
            if opened.change is not None:
                raise SourceUnavailable(f"the stream changed again while it was opened: {opened.change}")
        if opened.is_gap:
            await self._note_gap()
        await self._compare_clocks(opened.facts)
        # Before pending messages are read: deadlines that they settle depend on it.
        await self._look_at(opened.facts, opened.facts.publish_error or None)
        self._note_server(opened.facts)
        self._thinning.begin(self.decider.state, opened.facts)
        self._stored_at = self.decider.state.position.stored_at

    async def _compare_clocks(self, facts: StreamFacts) -> None:
        if self._rules.clock is not None:
            await self._rules.clock.compare(facts.server_at)

    def _note_server(self, facts: StreamFacts) -> None:
        self._server_at = min(facts.server_at, self._rules.clock_bound(self.decider.state))

    async def _look_at(self, facts: StreamFacts, publish_error: str | None) -> None:
        """Note the stream's configuration, and whether it refuses messages (None: unknown, as before).

        A restriction holds from when it is seen. It is lifted once everything is read that was stored before the first
        facts without it.
        """
        seen, lifted = self.decider.state.seen, self._lifted
        refuses = seen.refuses if publish_error is None else bool(publish_error)
        at = min(facts.server_at, self._rules.clock_bound(self.decider.state))
        facts = msgspec.structs.replace(facts, server_at=at)
        now_lifted = self.decider.draft().lifts(facts, refuses=refuses)
        took_all = lifted.get(Restriction.TAKES_LESS)
        if took_all is not None and Restriction.TAKES_LESS not in now_lifted:
            # It took everything for a while and takes less again: senders heard meanwhile may be missed too.
            took_all = msgspec.structs.replace(took_all, refuses_by_subject=seen.by_subject)
            await self._apply(lambda draft: draft.look_at(took_all, refuses=seen.refuses))
        state = self.decider.state
        self._lifted = {restriction: lifted.get(restriction, facts) for restriction in now_lifted}
        unread = {restriction for restriction, at in self._lifted.items() if state.observed_through < at.server_at}
        takes = state.takes if Restriction.TAKES_LESS in unread else facts.takes
        by_subject = facts.refuses_by_subject or Restriction.BY_SUBJECT in unread
        refuses = refuses or Restriction.REFUSES in unread
        facts = msgspec.structs.replace(facts, takes=takes, refuses_by_subject=by_subject)
        await self._apply(lambda draft: draft.look_at(facts, refuses=refuses))

    async def _check(self) -> StreamCheck:
        return await self._source.check(self.decider.state.policy.blind_after)

    async def _open_source(self) -> OpenResult:
        state = self.decider.state
        return await self._source.open(state)

    async def _read_on(self) -> None:
        loop = asyncio.get_running_loop()
        check_at = loop.time()
        while not is_cancelled():
            await self._wait_for_room()
            await self._apply_orders()
            patience = max(check_at - loop.time(), 0.0)
            messages = await self._source.read(self._commits.read_patience(patience))
            if messages:
                self.read_at = self._moved_at = loop.time()
                if self.read_at - check_at > CHECK_AGAIN_AFTER:
                    # The agent was paused: deadlines depend on what the stream takes now.
                    checked = await self._check()
                    await self._look_at(checked.facts, checked.publish_error)
                    self._note_server(checked.facts)
                await self._take(messages)
            await self._commits.keep_up(has_read=bool(messages))
            if loop.time() >= check_at:
                await self._commits.finish()
                check_interval = min(LONGEST_CHECK_INTERVAL, self.decider.state.policy.blind_after // 8)
                check_at = loop.time() + check_interval / SECOND
                checked = await self._check()
                await self._take_check(checked)
                # Not before: until then the state is older than the check.
                self._checked, self._checked_at = checked, loop.time()
                self._note_consumer(checked.consumer)
            if self._watermarks.are_due(loop.time()):
                await self._emit_watermark()

    async def _take(self, messages: Sequence[SourceMessage]) -> None:
        """Decide and commit messages; behind the stream, more go into the same batch while few decisions are made."""
        filling, draft = BatchLimit(), self.decider.draft()
        while messages:
            draft = await self._give(draft, messages)
            must_wait = self._commits.is_under_way
            takes_more = filling.takes_more(messages, len(draft.decisions), must_wait=must_wait)
            messages = await self._source.read_on() if takes_more else ()
        await self._adopt(draft)

    async def _give(self, draft: D, messages: Sequence[SourceMessage]) -> D:
        """Add messages to as many drafts as they need; return the last one, not yet adopted."""
        max_age = self._rules.policy.max_age
        self._oldest_forwarded = oldest_forwarded = self._server_at - max_age if max_age else 0
        intake, stretch, before = self._intake, Stretch(), EVERYTHING
        give, slow_count = intake.give, intake.slow_count
        thinning = self._thinning
        looks_for_holes = thinning.must_look(messages)
        bound, is_ahead = self._rules.clock_bound(self.decider.state), draft.clock_ahead
        stored_at, quiet = self._stored_at, longest_quiet(self.decider.state.policy)
        for message in messages:
            at = message.stored_at
            if (at > bound) is not is_ahead:
                is_ahead = not is_ahead
                draft = await self._see_clock(draft, is_ahead=is_ahead)
            # A clock that does not go back against the message before has not stepped back.
            if at < before and draft.steps_back(at):
                await self._adopt(draft)
                await self._step_back((await self._check()).facts)
                draft = self.decider.draft()
            before = at
            if at - stored_at > quiet:
                draft = await self._fill(draft, partial(_pass_unproven, stored_at, at))
            stored_at = max(stored_at, at)
            if looks_for_holes and (thinning.is_thinned or message.sequence != thinning.expected):
                sender_count = sum(self.decider.sender_counts().values())
                thinned = thinning.take(message, self.decider.state, self._server_at, sender_count)
                while not draft.find_thinned(thinned=thinned):
                    draft = await self._next_after(draft)
            elif looks_for_holes:
                thinning.pass_on(message)
            too_old = at < oldest_forwarded
            while not give(draft, message, too_old=too_old):
                draft = await self._next_after(draft)
            if intake.slow_count != slow_count:
                # The systemd watchdog runs on the same loop.
                slow_count = intake.slow_count
                await stretch.yield_to_loop()
        thinning.pass_on(messages[-1])
        self._stored_at = stored_at
        return draft

    async def _take_check(self, checked: StreamCheck) -> None:
        state, facts = self.decider.state, checked.facts
        self._note_server(facts)
        if past_change(state.position, facts) is not None:
            raise SourceUnavailable("the stream's past has changed")
        # A gap behind delivered messages that are still unread is found when they are read.
        if not self._source.holds_unread and is_gap(max(state.read_through, self._source.delivered_sequence), facts):
            await self._note_gap()
        await self._look_at(facts, checked.publish_error)
        self._thinning.look_at(facts, self.decider.state, checked.examined_sequence)
        if checked.examined_sequence:
            await self._apply(lambda draft: draft.find_thinned(thinned=self._thinning.is_thinned))
        if not checked.caught_up_through:
            if checked.examined_sequence:
                await self._apply(lambda draft: draft.examine(checked.examined_sequence))
            return
        await self._judge_clock(facts.server_at)
        if self.decider.draft().steps_back(facts.server_at):
            await self._step_back(facts)
        # The consumer was asked after the stream: nothing is known of the stream, or of a clock set since, later.
        through = min(checked.caught_up_through, facts.server_at)
        if through - self._stored_at > longest_quiet(state.policy):
            await self._apply(partial(_pass_unproven, self._stored_at, through))
        elif self._waits_for_proof(through):
            await self._apply(lambda draft: draft.examine(checked.examined_sequence))
            return
        await self._apply(lambda draft: draft.prove(through, checked.examined_sequence))

    def _waits_for_proof(self, through: int) -> bool:
        """Return whether too much would be unproven if the quiet since the last message were: it may yet become so."""
        state = self.decider.state
        spans = with_span(state.unproven, self._stored_at, through, state.policy)
        return not state.seen.unsteady and exceeds_bound(spans, state.observed_since, through, state.policy)

    async def _judge_clock(self, site_at: int) -> None:
        """Follow the stream's clock, or stop following it, by the other clocks."""
        clock, state = self._rules.clock, self.decider.state
        if clock is None:
            return
        is_ahead = site_at > clock.bound(state)
        if is_ahead is not state.clock_ahead:
            await self._adopt(await self._see_clock(self.decider.draft(), is_ahead=is_ahead))
        if not is_ahead:
            clock.follow(site_at)

    async def _see_clock(self, draft: D, *, is_ahead: bool) -> D:
        reference = self._rules.clock.reference() if self._rules.clock is not None else 0
        return await self._fill(draft, lambda each: each.see_clock(is_ahead=is_ahead, reference=reference))

    async def _step_back(self, facts: StreamFacts) -> None:
        position = self.decider.state.position
        because = f"the clock of stream {position.stream}'s server was set back"
        await self._begin_epoch(facts, position.sequence, position.stored_at, because=because)

    async def _begin_epoch(self, facts: StreamFacts, sequence: int, stored_at: int = 0, *, because: str) -> None:
        block, through = self._emitter.block_id.block, self.decider.state.observed_through
        since = f" from {format_instant(through)}" if through else ""
        if because:
            text = "stream %s: %s; a new epoch begins: the time is unknown%s until the next proof"
            log.warning(text, block, because, since, extra={"fields": {"stream": block}})
        incarnation = facts.incarnation(self.decider.state.position.incarnation)
        await self._apply(lambda draft: draft.begin_epoch(incarnation, sequence, stored_at))
        self._stored_at = stored_at

    async def _apply_orders(self) -> None:
        """Apply new revisions of the hub's policy, in one commit if it can hold them."""
        if self._rules.orders is None:
            return
        draft = None
        for give in self._rules.orders.inputs(self.decider.state):
            draft = await self._fill(draft or self.decider.draft(), give)
        if draft is not None:
            await self._adopt(draft)

    async def _note_gap(self) -> None:
        draft = self.decider.draft()
        draft.lose(BlindCause.GAP)
        await self._adopt(draft)

    async def _apply(self, give: Callable[[D], bool]) -> None:
        await self._adopt(await self._fill(self.decider.draft(), give))

    async def _fill(self, draft: D, give: Callable[[D], bool]) -> D:
        """Apply one input to as many drafts as it needs; return the last one, not yet adopted."""
        while not give(draft):
            draft = await self._next_after(draft)
        return draft

    async def _next_after(self, draft: D) -> D:
        """Adopt a draft that is full, and begin the next one."""
        await self._adopt(draft)
        return self.decider.draft()

    async def _adopt(self, draft: D) -> None:
        """Adopt a draft and begin to commit it, unless it only advanced time, which can be proved again."""
        if not draft.changes_nothing:
            state = draft.state()
            rows = self._emitter.rows(draft.decisions, state, self._watermark_context())
            await self._commits.hand_over(
                BatchCommit(
                    self._emitter.block_id,
                    state,
                    draft.changes(),
                    rows,
                    draft.recorded,
                    draft.decisions,
                    self._oldest_forwarded,
                    self._source.is_behind,
                )
            )
        elif self._journal is not None:
            await self._commits.finish()
            await self._journal.prove(self._emitter.block_id, draft.state())
        self.decider.adopt(draft)

    async def _emit_watermark(self) -> None:
        state = self.decider.state
        if not self._watermarks.has_progress(state) or self._commits.has_undelivered:
            return
        row = self._emitter.watermark(state, self._watermark_context())
        # Also without one: with a filter, only the examined sequence distinguishes a gap from filtered messages.
        await self._commit(state, [] if row is None else [row])
        self._watermarks.note(state, asyncio.get_running_loop().time())

    def _watermark_context(self) -> WatermarkContext:
        counts, block = self.decider.sender_counts(), self._emitter.block_id.block
        return watermark_context(counts, self._store, block, self._rules.conditions(), self._watermarks.claim)

    async def _commit(self, state: BlockState, rows: Sequence[OutboxRow] = ()) -> None:
        """Commit a state that touches no sender, and wait until that is done."""
        await self._commits.begin(BatchCommit(self._emitter.block_id, state, NO_CHANGES, rows))
        await self._commits.finish()

    def _report_pause(self, error: StoreUnwritable | None) -> None:
        report_pause(self._report, IngestPhase.READING, error)

    async def _wait_for_room(self) -> None:
        if self._store.is_paused():
            await self._commits.settle()
            self._report(IngestPhase.OUTBOX_FULL, "what may not be dropped has reached store.max_outbox")
            await self._store.wait_for_room()
            self._report(IngestPhase.READING, "")


def _pass_unproven(started_at: int, ended_at: int, draft: BlockDraft) -> bool:
    return draft.pass_unproven(started_at, ended_at)

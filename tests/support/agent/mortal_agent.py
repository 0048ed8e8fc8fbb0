"""An agent's ingest over a real SQLite file and a scripted stream: killed at any commit, and started again."""

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import copy
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import RecordedInput
from edge_agent.core.draft import Draft
from edge_agent.core.intake import Intake, SenderByPath
from edge_agent.core.observation import IntakeResult, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter
from edge_agent.core.tracker import Tracker
from edge_agent.core.unproven import longest_quiet
from edge_agent.ingest.block import BlockRules
from edge_agent.ingest.loop import Ingest
from edge_agent.store.files import prepare
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId, Incarnation
from shared.instants import SECOND
from tests.support.core.scripted_stream import ScriptedStream, TrueClock
from tests.support.pair.shadow_follower import ShadowFollower

BLOCK_ID = BlockId("eu-west", "dub1", "nodes")
KEY = bytes(32)
FOREVER = 1 << 30
MAX_AHEAD = 1000 * SECOND


class Killed(BaseException):
    """The process ended here, without another word."""


class MortalStore(SqliteStore):
    """A store whose process may end just before or just after one of its next commits."""

    on_commit: Callable[[BatchCommit], None]
    commits_to_live = FOREVER
    dies_after_commit = False

    async def commit(self, batch: BatchCommit) -> None:
        self.commits_to_live -= 1
        if self.commits_to_live < 0 and not self.dies_after_commit:
            raise Killed
        await super().commit(batch)
        self.on_commit(batch)
        if self.commits_to_live < 0:
            raise Killed

    async def die(self) -> None:
        """Let go of the file without writing anything more."""
        self._flusher.cancel()
        await asyncio.gather(self._flusher, return_exceptions=True)
        await self._database.close()


class HastyTracker(Tracker):
    """A tracker whose commits carry few decisions."""

    limit = 1

    def draft(self, *, decision_limit: int = 0, detect_blind_spans: bool = True) -> Draft:
        return super().draft(decision_limit=decision_limit or self.limit, detect_blind_spans=detect_blind_spans)


class StoreLife(msgspec.Struct):
    """What one store was told, from its making to its loss: all that a straight run needs."""

    began_as: BlockState
    read: list[tuple[Incarnation, IntakeResult]] = []
    recorded: list[RecordedInput] = []
    observed_through: int = 0
    is_lost: bool = False


class MortalAgent:
    """One agent at a time, on one file. ``lives`` grows by one with every store that had to be made."""

    def __init__(self, path: Path, stream: ScriptedStream, policy: Policy, decision_limit: int) -> None:
        self.stream = stream
        self.policy = policy
        self.lives: list[StoreLife] = []
        self._path = path
        self._decision_limit = decision_limit
        self._boots = 0
        self._intake = Intake(SenderByPath("sender"), "urgent")
        self._taken: list[SourceMessage] = []
        self._shadow: ShadowFollower
        self.store: MortalStore
        self.ingest: Ingest[Draft]

    @property
    def life(self) -> StoreLife:
        """Give the present store's life."""
        return self.lives[-1]

    @property
    def tracker(self) -> Tracker:
        """Give what the agent has in memory."""
        assert isinstance(self.ingest.decider, Tracker)
        return self.ingest.decider

    def emitter(self) -> Emitter:
        """Give what writes this boot's records."""
        return Emitter(BLOCK_ID, "dub1-a", f"boot-{self._boots}", "1.0", "sender", KEY)

    async def start(self, *, commits_to_live: int = FOREVER, dies_after_commit: bool = False) -> None:
        """Open the store, or make it, and then the stream."""
        self._boots += 1
        rebuilding = prepare(self._path).replaces_lost
        self.store = await MortalStore.open(self._path, 1 << 30)
        self.store.on_commit = self._note_commit
        self.store.commits_to_live, self.store.dies_after_commit = commits_to_live, dies_after_commit
        known = await self.store.load_block(BLOCK_ID.block)
        tracker = HastyTracker(*known) if known else None
        clock = TrueClock(self.stream, MAX_AHEAD)
        rules = BlockRules(
            "REGISTRATION",
            self.policy,
            self._intake,
            self.emitter(),
            Tracker,
            SECOND,
            rebuilding=rebuilding,
            clock=clock,
        )
        self.ingest = Ingest(rules, self.stream, self.store, tracker, lambda _phase, _reason: None)
        self._taken = []
        await self.ingest._open()
        await self.ingest._commits.finish()
        if tracker is None:
            tracker = HastyTracker(self.tracker.state)
            self.ingest._decider = tracker
        tracker.limit = self._decision_limit

    async def read(self, count: int) -> None:
        """Take the next messages in one batch, which comes in two parts."""
        # Copies: after a restore the same message may be read again, in another past.
        self._taken = [copy(message) for message in self.stream.next_messages(count)]
        half = len(self._taken) // 2
        self.stream.following = self._taken[half:] if half else []
        await self.ingest._take(self._taken[:half] or list(self._taken))
        if self.stream.following:
            # A batch that held enough has left the rest to the next.
            rest, self.stream.following = self.stream.following, []
            await self.ingest._take(rest)
        await self.ingest._commits.finish()

    async def check(self) -> None:
        """Look at the stream, and prove, where it was read to its end, that nothing more was stored."""
        checked = await self.stream.check(self.policy.blind_after)
        # The real source's checks find probes in a quiet stream, for which the script has no messages.
        if checked.caught_up_through - self.ingest._stored_at <= longest_quiet(self.tracker.state.policy):
            self.ingest._stored_at = max(self.ingest._stored_at, checked.caught_up_through)
        await self.ingest._take_check(checked)
        await self.ingest._commits.finish()

    async def reopen(self) -> None:
        """Look at the stream anew, as after every reconnect."""
        self._taken = []
        await self.ingest._open()
        await self.ingest._commits.finish()

    async def retire(self, sender_id: str) -> None:
        """Take an operator's word that a sender is gone."""
        await self.ingest._apply(lambda draft: draft.retire(sender_id))
        await self.ingest._commits.finish()

    async def vouch(self) -> None:
        """Make a watermark, where there is anything new to vouch for."""
        await self.ingest._emit_watermark()

    async def lose_store(self) -> None:
        """End at once, and lose the file."""
        await self.store.die()
        self.life.recorded = self.recorded_inputs()
        # Its last commit may have left an instant half settled.
        self.life.observed_through = self.tracker.state.observed_through + 1
        self.life.is_lost = True
        for suffix in ("", "-wal", "-shm"):
            self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)

    def recorded_inputs(self) -> list[RecordedInput]:
        """Read from the file what was recorded beside the stream."""
        with closing(sqlite3.connect(self._path)) as database:
            bodies = database.execute("SELECT body FROM recorded_input ORDER BY row_id").fetchall()
        return [msgspec.json.decode(body, type=RecordedInput) for (body,) in bodies]

    def _note_commit(self, batch: BatchCommit) -> None:
        position = batch.state.position
        if not self.lives or self.life.is_lost:
            self.lives.append(StoreLife(batch.state))
            shadow = HastyTracker(batch.state)
            shadow.limit = self._decision_limit
            self._shadow = ShadowFollower(shadow, self._intake)
            return
        read = []
        while self._taken and self._taken[0].sequence <= position.sequence:
            read.append(self._taken.pop(0))
        self.life.read += [(position.incarnation, self._intake.read(message)) for message in read]
        self._shadow.follow(batch, read)

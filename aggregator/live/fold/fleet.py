"""Fold of the hub's archive into the current state of every sender and block. Pure: no clock, no I/O.

Invariants:
- The state is a function of the archive's messages up to a position, in the archive's order. Batch limits and
  duplicates change nothing.
- A sender's state is that of its last advisory in the order of the tables: (at, rank of kind, event id). Instants are
  those that ``records/judge.py`` believes.
- A sender is unknown if the last of its block's stores (``archive/stores.py``) has not announced it, or, until
  ``unheard_until``, if its stream had stopped accepting its registrations.
- A retired sender without an advisory for ``KEPT`` is removed, unless two agents have reported for its block at once.

``coverage.py`` decides how far a block is covered, ``view.py`` derives the state as of an instant.
"""

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from operator import attrgetter

from msgspec import UNSET

from aggregator.archive import contests
from aggregator.archive.hub_clock import ClockStep, HubClock, without_steps
from aggregator.archive.stores import store_of
from aggregator.live.fold.changes import (
    NEW_RANK,
    RANKS,
    RETIRED_RANK,
    Changes,
    History,
    Outdated,
    Revision,
    StoryEntry,
    place_rank,
    unheard_until,
)
from aggregator.live.fold.coverage import Block, Gap, Life, Mark, contests_of, known_until, reopen, settle
from aggregator.live.fold.senders import LOST, RETIRED, STALE, UNHEARD, UP, Senders, event_key
from aggregator.records.episode import Advised, EpisodeFold
from aggregator.records.judge import (
    REACH,
    SKEW,
    AdvisoryBody,
    AdvisorySubject,
    BelievedTimes,
    QuarantineReason,
    SiteBlocks,
    believed,
    judged_advisory,
    judged_revision,
    judged_watermark,
    named_by,
)
from shared.identifiers import BlockId
from shared.instants import DAY, EARLIEST
from shared.policy import CancelMaintenance, DeclareMaintenance, ForwardSender, RetireSender, Scope
from shared.wire import PAIR_ALONE, STOPPING, Watermark

_STEP = 16
"""Messages in one step of ``take``, at most."""
_AHEAD = -1
"""The rank of an advisory whose claimed instant the hub has not reached: it precedes every later advisory."""
_SEQUENCE = attrgetter("sequence")
_COMPARED = 64
"""An advisory whose ordinal has arrived before is compared with this number of the sender's last advisories."""
_LONGEST_TEXT = 256
_MOST_CONDITIONS = 16
_LONGEST_CONDITION = 64
KEPT = 90 * DAY
"""Retired senders, superseded advisories and gaps are kept for this time; the tables keep them indefinitely."""


class Fleet:
    """The state. ``sequence`` is the archive's last message in it, ``clock`` the hub's after that message.

    ``steps`` are the backward steps that the hub's clock has made up for, as far as a record may reach back.
    ``stamped_through`` is the largest stamp of any message. ``versions`` counts the changes of each block and of the
    senders in it. ``outdated`` has the blocks whose senders have an old state until ``rebuild_outdated``.
    """

    def __init__(self, choria_region: str = "", history: History = lambda _sequence: None) -> None:
        self.choria_region = choria_region
        self.sequence = self.stamped_through = 0
        self.clock, self.steps = HubClock(), list[ClockStep]()
        self.blocks: list[Block] = []
        self.versions: list[int] = []
        self.counts: list[list[int]] = []
        self.stale: list[set[int]] = []
        self.members: list[dict[str, int]] = []
        self.senders = Senders()
        self.revisions: dict[tuple[int, int], Revision] = {}
        self.refused: dict[str, int] = {}
        self.site_blocks = SiteBlocks()
        self.kept = KEPT
        self._history = history
        self._numbers: dict[tuple[str, str, str], int] = {}
        self._times = BelievedTimes()
        self._unheard: list[tuple[int, int]] = []
        self._day_ends_at = 0
        self.outdated: dict[int, Outdated] = {}

    def fold(self, messages: Iterable[tuple[int, bytes, int, bytes]], changes: Changes | None = None) -> Changes:
        """Fold the next messages (each ``Archived``, or a tuple like it), and return ``changes`` with theirs added."""
        changes = Changes() if changes is None else changes
        for steps in self.take(messages, changes), self.rebuild_outdated(changes):
            for _ in steps:
                pass
        return changes

    def take(self, messages: Iterable[tuple[int, bytes, int, bytes]], changes: Changes) -> Iterator[None]:
        """Fold the next messages, and add their changes to ``changes``. Yield after each bounded step.

        The state is whole after ``rebuild_outdated``. Between two steps, it may be read and not be changed.
        """
        clock = self.clock
        for sequence, subject, stamp, payload in messages:
            if sequence <= self.sequence:
                continue
            self.sequence = sequence
            self.stamped_through = max(self.stamped_through, stamp)
            changes.message_count += 1
            if changes.message_count % _STEP == 0:
                yield
            named = named_by(subject, self.choria_region)
            if named is None:
                continue
            self.steps += clock.read(sequence, stamp)
            archived_at = clock.time
            if archived_at >= self._day_ends_at or self._unheard:
                yield from self._pass_time(archived_at, changes)
            if type(named) is AdvisorySubject:
                earliest = archived_at - REACH
                judged = judged_advisory(payload, named, earliest if earliest > EARLIEST else EARLIEST)
                number = self._block_of(judged)
                if number is not None:
                    self._advisory(number, judged, sequence, archived_at, changes)  # type: ignore[arg-type]
            elif type(named) is BlockId:
                self._watermark(judged_watermark(payload, named, archived_at - REACH), archived_at, changes)
                yield
            elif type(named) is Scope:
                self._revision(named, payload, changes)

    def _pass_time(self, now: int, changes: Changes) -> Iterator[None]:
        """Retire and forget the senders that are due by ``now``. Yield after each sender."""
        if now >= self._day_ends_at:
            yield from self.rebuild_outdated(changes)
            yield from self._forget_retired(changes)
        if self._unheard and self._unheard[0][0] <= now:
            yield from self._end_unheard(changes)

    def rebuild_outdated(self, changes: Changes) -> Iterator[None]:
        """Bring the senders of ``outdated`` blocks up to date. Yield after each step.

        This is done once for a batch: it costs as much as all senders of a block have reported, and one record can
        cause it. Done for each record, the work would grow with the square of what a site sends.
        """
        while self.outdated:
            number, change = next(iter(self.outdated.items()))
            block = self.blocks[number]
            for sender in self.members[number].values():
                if change is Outdated.OTHER_AGENT_BELIEVED:
                    yield from self._rebuild_sender(sender, block, changes)
                elif self.senders.word[sender] and (change.concerns_all or self.senders.state[sender] == LOST):
                    self._set_state(sender, self._state(sender, announced=self._is_announced(sender, block, changes)))
                    changes.senders.add(sender)
                yield
            del self.outdated[number]
            changes.blocks.add(number)
            self.versions[number] += 1
        if self._unheard and self._unheard[0][0] <= self.known_through:
            yield from self._end_unheard(changes)

    def _rebuild_sender(self, sender: int, block: Block, changes: Changes) -> Iterator[None]:
        """Derive the state of a sender from the advisories that count in its story. Yield after each advisory."""
        counting = []
        for entry in self.story(sender, changes):
            if entry.counts(block.silent):
                counting.append(entry)
            yield
        self.senders.forget(sender)
        self._set_state(sender, 0)
        announced = any(block.is_of_latest_store(entry.incarnation, entry.sequence) for entry in counting)
        for entry in reversed(counting):
            self._apply(entry, event_key(entry.event_id), announced=announced)
            yield
        changes.senders.add(sender)

    @property
    def known_through(self) -> int:
        """The hub's time of the last message about the fleet."""
        return self.clock.time

    def number_of(self, block_id: tuple[str, str, str]) -> int | None:
        """Return the number of a block; None if it has no record."""
        return self._numbers.get(block_id)

    def restore_block(self, block: Block) -> int:
        """Add a stored or new block and return its number."""
        number = self._numbers[block.region, block.site, block.block] = len(self.blocks)
        self.site_blocks.add(block.region, block.site, block.block)
        self.blocks.append(block)
        self.versions.append(0)
        self.counts.append([0] * (LOST + 1))
        self.stale.append(set())
        self.members.append({})
        return number

    def restored(self) -> None:
        """Count the senders after blocks and senders were restored."""
        senders = self.senders
        for sender, (block, state, name) in enumerate(zip(senders.block, senders.state, senders.names, strict=False)):
            if not name:
                continue
            self.counts[block][state] += 1
            self.members[block][name] = sender
            if state == STALE:
                self.stale[block].add(sender)
        self._day_ends_at = _end_of_day(self.known_through)
        self._index_unheard()

    def _index_unheard(self) -> None:
        self._unheard = [(until, sender) for sender, until in self.senders.until.items()]
        heapq.heapify(self._unheard)

    def check_invariants(self) -> None:
        """Raise AssertionError if counts or sets differ from the columns."""
        counts: list[list[int]] = [[0] * (LOST + 1) for _ in self.blocks]
        for sender in self.senders.numbers:
            block, state = self.senders.block[sender], self.senders.state[sender]
            counts[block][state] += 1
            assert (sender in self.stale[block]) == (state == STALE)
            assert self.members[block][self.senders.names[sender]] == sender
        assert counts == self.counts
        for each in self.blocks:
            assert each.known_since <= each.known_until <= self.known_through

    def _block_of(self, judged: AdvisoryBody | Watermark | QuarantineReason) -> int | None:
        """Return the number of a record's block; None, and count the reason, if the record does not count."""
        if not isinstance(judged, QuarantineReason):
            block_id = judged.region, judged.site, judged.block
            number = self._numbers.get(block_id)
            if number is not None or self.site_blocks.admits(*block_id):
                return self.restore_block(Block(*block_id)) if number is None else number
            judged = QuarantineReason.TOO_MANY_BLOCKS
        self.refused[judged] = self.refused.get(judged, 0) + 1
        return None

    def _advisory(self, number: int, said: AdvisoryBody, sequence: int, archived_at: int, changes: Changes) -> None:
        block, senders = self.blocks[number], self.senders
        changes.blocks.add(number)
        self.versions[number] += 1
        is_again, life, incarnation = False, None, said.incarnation or ""
        if said.ordinal is not None and said.incarnation is not None:
            life = block.lives.get(incarnation) or self._begin_incarnation(number, incarnation, archived_at)
            is_again = not life.hold(said.ordinal)
            if life.waiting:
                self._settle(number, life.store, changes)
        members, rank = self.members[number], RANKS[said.kind]
        sender = members.get(said.value)
        if sender is None:
            if (is_again or rank != NEW_RANK) and self._may_be_forgotten(block, said.at_us):
                # It may belong to a sender that was removed.
                return
            sender = members[said.value] = senders.add(said.value, number)
            self.counts[number][0] += 1
        event_id, claimed = said.event_id, said.at_us
        event = event_key(event_id)
        # Once two agents have reported for a block, a sender's last advisory depends on the agent that is believed, and
        # this shortcut could compare with an outdated one.
        if not block.was_contested and senders.events[sender] == event:
            return
        # Nearly all claimed instants are in the past: the general rule would cost a tenth of the fold.
        holds, is_behind = claimed <= archived_at, self.clock.step is not None
        at, lead, is_ahead = (claimed, 0, False) if holds else believed(claimed, archived_at, is_behind)
        # Also if the incarnation has duplicate ordinals: a repeated advisory of a clock ahead would become the last.
        if is_again and life is not None and self._is_repeat(sender, said, (block, life), changes, is_ahead=is_ahead):
            return
        # Nearly always true for a new sender.
        last_seen = at if said.last_seen_us == claimed == at else self._times.last_seen(said, at, lead)
        entry = StoryEntry(
            sequence, sender, senders.head[sender], rank, at, last_seen, archived_at, event_id, incarnation,
            said.rebuilt, said.by_operator is True, unheard_until(said, lead) if rank == RETIRED_RANK else 0,
            _AHEAD if is_ahead else rank if rank != RETIRED_RANK and claimed == at else place_rank(said, last_seen, at),
        )  # fmt: skip
        changes.entries.append(entry)
        changes.senders.add(sender)
        senders.head[sender] = sequence
        if not block.silent or entry.counts(block.silent):
            if self.outdated.get(number) is not Outdated.OTHER_AGENT_BELIEVED:
                self._apply(
                    entry, event, announced=not block.latest_store or self._has_announced(entry, block, changes)
                )
            if at > block.changed_at:
                block.changed_at = at

    def _apply(self, entry: StoryEntry, event: bytes, *, announced: bool) -> None:
        """Set the state of a sender by an advisory, unless a later one has set it.

        ``announced``: the last of the block's stores has announced the sender.
        """
        senders, sender, at, rank, last_seen = self.senders, entry.sender, entry.at, entry.place_rank, entry.last_seen
        reported = entry.reported_state
        heard_at = at if reported == UP else last_seen
        reported_before, floor = senders.word[sender], senders.floor[sender]
        if reported_before:
            rank_before, at_before = senders.rank[sender], senders.at[sender]
            # A sender's last advisory is nearly always its latest.
            is_last = (at, rank, event) > (at_before, rank_before, senders.events[sender])
            if not is_last and _AHEAD not in (rank, rank_before):
                if heard_at > floor:
                    senders.floor[sender] = heard_at
                    senders.since[sender] = max(senders.since[sender], min(heard_at, at_before))
                return
        senders.since[sender] = at if reported == UP else entry.since(reported_before, floor)
        if heard_at > floor:
            senders.floor[sender] = heard_at
        senders.at[sender], senders.rank[sender], senders.last_seen[sender] = at, rank, last_seen
        senders.word[sender], senders.events[sender] = reported, event
        if entry.unheard_until:
            senders.until[sender] = entry.unheard_until
            heapq.heappush(self._unheard, (entry.unheard_until, sender))
            if len(self._unheard) > 2 * len(senders.until) + _COMPARED:
                self._index_unheard()
        elif senders.until:
            senders.until.pop(sender, None)
        is_plain = reported != UNHEARD and announced
        self._set_state(sender, reported if is_plain else self._state(sender, announced=announced))

    def _withdraw_coverage(self, block: Block, life: Life, ordinal: int) -> None:
        """Withdraw coverage by watermarks that count an ordinal which two advisories have."""
        if life.is_doubled(ordinal):
            return
        life.is_told_twice(ordinal)
        if life.put_back_from and life.put_back_from <= block.known_until:
            block.known_until = known_until(block, self.steps)
            block.known_since = min(block.known_since, block.known_until)
        newest = block.newest
        if newest is not None:
            block.put_back = block.was_put_back(newest.store)

    def _is_repeat(
        self, sender: int, said: AdvisoryBody, of: tuple[Block, Life], changes: Changes, *, is_ahead: bool
    ) -> bool:
        """Return True if an advisory with an ordinal that has arrived before is repeated; else withdraw coverage."""
        earliest, at = None, said.at_us
        for entry in islice(self.story(sender, changes), _COMPARED):
            if entry.event_id == said.event_id:
                return True
            earliest = entry
        is_cut = earliest is not None and (earliest.previous > 0 or self._may_be_forgotten(of[0], at))
        # The claimed instant of an advisory may exceed the hub's time of it by SKEW and a step of the hub's clock.
        steps = (step.length for step in (*self.steps, *([self.clock.step] if self.clock.step else ())))
        if is_cut and earliest is not None and at - SKEW - max(steps, default=0) < earliest.archived_at:
            # It may be one that is no longer stored or compared: an agent that sends everything again is not evidence
            # of a duplicate ordinal. One that is ahead would become the last again.
            return is_ahead
        self._withdraw_coverage(*of, said.ordinal or 0)
        return False

    def _may_be_forgotten(self, block: Block, at: int) -> bool:
        return block.forgotten_count > 0 and at < self.known_through - self.kept

    def has_lived(self, sender: int) -> bool:
        """Return True if a sender was in any state for any time, by the advisories that count."""
        block = self.blocks[self.senders.block[sender]]
        counting = (entry for entry in self.story(sender) if entry.counts(block.silent))
        in_order = sorted(counting, key=lambda each: (each.at, each.place_rank, event_key(each.event_id)))
        fold = EpisodeFold()
        return bool(
            fold.fold(
                Advised(place, place == 0, entry.report, entry.at, entry.last_seen, entry.unheard_until)
                for place, entry in enumerate(in_order)
            )
            or fold.end()
        )

    def story(self, sender: int, changes: Changes | None = None) -> Iterator[StoryEntry]:
        """Yield the advisories of a sender, the last first; those that are not stored yet are in ``changes``."""
        entries, head = changes.entries if changes is not None else [], self.senders.head[sender]
        while head:
            place = bisect_left(entries, head, key=_SEQUENCE)
            is_unstored = place < len(entries) and entries[place].sequence == head
            entry = entries[place] if is_unstored else self._history(head)
            if entry is None:
                return
            yield entry
            head = entry.previous

    def _has_announced(self, entry: StoryEntry, block: Block, changes: Changes) -> bool:
        """Return True if the last of a block's stores has announced the sender of ``entry``."""
        if block.is_of_latest_store(entry.incarnation, entry.sequence):
            return True
        state = self.senders.state[entry.sender]
        return state in (UP, STALE) or (
            state in (RETIRED, UNHEARD) and self._is_announced(entry.sender, block, changes)
        )

    def _is_announced(self, sender: int, block: Block, changes: Changes) -> bool:
        """Return True if the latest advisories of a sender have one of the last of a block's stores."""
        if not block.latest_store or self.senders.head[sender] < block.latest_since:
            return not block.latest_store
        since = takewhile(lambda entry: entry.sequence >= block.latest_since, self.story(sender, changes))
        return any(
            entry.counts(block.silent) and block.is_of_latest_store(entry.incarnation, entry.sequence)
            for entry in islice(since, _COMPARED)
        )

    def _state(self, sender: int, *, announced: bool) -> int:
        """Return the state of a sender by its last advisory."""
        reported = self.senders.word[sender]
        if reported == UNHEARD:
            return UNHEARD if self.senders.until.get(sender, 0) > self.known_through else RETIRED
        return reported if reported == RETIRED or announced else LOST

    def _set_state(self, sender: int, state: int) -> None:
        senders = self.senders
        before, number = senders.state[sender], senders.block[sender]
        if state == before:
            return
        counts = self.counts[number]
        counts[before] -= 1
        counts[state] += 1
        if before == STALE:
            self.stale[number].discard(sender)
        elif state == STALE:
            self.stale[number].add(sender)
        senders.state[sender] = state

    def _end_unheard(self, changes: Changes) -> Iterator[None]:
        while self._unheard and self._unheard[0][0] <= self.known_through:
            until, sender = heapq.heappop(self._unheard)
            if self.senders.until.get(sender) == until:
                del self.senders.until[sender]
                self._set_state(sender, RETIRED)
                number = self.senders.block[sender]
                changes.senders.add(sender)
                changes.blocks.add(number)
                self.versions[number] += 1
            yield

    def _forget_retired(self, changes: Changes) -> Iterator[None]:
        """Forget retired senders without an advisory for ``kept``, at the end of each of the hub's days.

        Yield after each sender.
        """
        self._day_ends_at, before = _end_of_day(self.known_through), self.known_through - self.kept
        self.steps = [step for step in self.steps if step.resumed_at >= self.known_through - REACH]
        senders, forgotten = self.senders, dict[int, int]()
        unstored = {entry.sequence: entry for entry in changes.entries}
        for sender, (state, at) in enumerate(zip(senders.state, senders.at, strict=True)):
            yield
            number = senders.block[sender]
            block = self.blocks[number]
            if state != RETIRED or at >= before or block.silent or block.contested_until:
                continue
            head = senders.head[sender]
            last = unstored.get(head) or self._history(head)
            if last is None or last.archived_at >= before:
                continue
            if senders.word[sender] == UNHEARD and any(
                entry.unheard_until >= before for entry in self.story(sender, changes)
            ):
                continue
            forgotten[sender] = head
            changes.blocks.add(number)
            self.versions[number] += 1
            block.forgotten_count += 1
            self.counts[number][RETIRED] -= 1
            del self.members[number][senders.names[sender]]
            senders.remove(sender)
        if forgotten:
            changes.senders -= forgotten.keys()
            changes.entries = [entry for entry in changes.entries if entry.sender not in forgotten]
            for sender, last_entry in forgotten.items():
                head = last_entry
                while head in unstored:
                    head = unstored[head].previous
                changes.forgotten.append((sender, head))

    def _watermark(self, said: Watermark | QuarantineReason, archived_at: int, changes: Changes) -> None:
        number = self._block_of(said)
        if number is None or isinstance(said, QuarantineReason):
            return
        block = self.blocks[number]
        life = block.lives.get(said.incarnation) or self._begin_incarnation(number, said.incarnation, archived_at)
        # One run of an agent sends its watermarks in the order of the instants that they claim.
        is_again = block.boot_id == said.boot_id[:_LONGEST_TEXT] and said.observed_through_us <= life.claimed_through
        last_at = min(archived_at, life.last.through) if is_again and life.last else archived_at
        through, lead, _ = believed(said.observed_through_us, last_at, self.clock.step is not None)
        since = self._times.since(said, through, lead)
        condition = "" if said.condition is UNSET else said.condition[:_LONGEST_TEXT]
        block.boot_id, block.version = said.boot_id[:_LONGEST_TEXT], said.version[:_LONGEST_TEXT]
        # A watermark that is sent again late does not describe the present; one that repeats the last does.
        is_newest = through >= max((each.last.through for each in block.lives.values() if each.last), default=0)
        if is_newest or not block.agent:
            block.agent = said.agent[:_LONGEST_TEXT]
        if condition == STOPPING:
            block.stopped_boot_id = block.boot_id
        else:
            block.condition = condition
            if is_newest:
                conditions = () if said.conditions is UNSET else said.conditions
                block.conditions = tuple(name[:_LONGEST_CONDITION] for name in conditions[:_MOST_CONDITIONS])
                # By the hub's time, and from the start after a silence: coverage says nothing of the pair.
                goes_on = block.alone_since and archived_at - block.heard_at <= said.stale_after
                since_now = block.alone_since if goes_on else archived_at
                block.alone_since = since_now if PAIR_ALONE in conditions else 0
        block.heard_at = archived_at
        changes.blocks.add(number)
        self.versions[number] += 1
        if condition and life.last is not None and said.observed_through_us <= life.claimed_through:
            # A repeated watermark reports nothing of the stream: the tables also keep only the first of its kind.
            return
        # An older release of the agent does not name the store that a newer one began before it.
        life.store = max(life.store, store_of(said))
        life.since = min(life.since or since, since)
        life.first_archived_at = life.first_archived_at or archived_at
        life.last_archived_at = life.last_archived_at if is_again else archived_at
        block.add(life, Mark(since, through, said.advisory_ordinal), said.observed_through_us)
        block.claimed_through = said.observed_through_us
        block.stale_after, block.blind_after = said.stale_after, said.blind_after
        block.ordinal = said.advisory_ordinal
        is_late = through <= block.known_until and len(block.lives) > 1
        if is_late:
            reopen([each for each in block.lives.values() if each.store == life.store], through)
        self._settle(number, life.store, changes)
        block.put_back = block.was_put_back(life.store)
        if is_late:
            self._contest_coverage(block, through)
        found = contests_of(block) if len(block.lives) > 1 else []
        if found or block.latest_store or any(each.store != life.store for each in block.lives.values()):
            self._follow_stores(number, found)
        if found or block.silent:
            self._contest(number, found)

    def _contest_coverage(self, block: Block, since: int) -> None:
        """Mark coverage as contested that a late watermark of another incarnation has withdrawn."""
        known = known_until(block, self.steps)
        if known < block.known_until:
            block.contested_from, block.contested_until = since, block.known_until
            block.known_until, block.known_since = known, min(block.known_since, known)

    def _contest(self, number: int, found: list[contests.Contest]) -> None:
        """Record contests of two agents for a block; the block is outdated if another agent is believed now."""
        block = self.blocks[number]
        block.was_contested = True
        # A contest disappears if another incarnation proves to have continued for longer.
        ends = [(each.ended_at, each.started_at) for each in found]
        block.contested_until, block.contested_from = max(ends, default=(0, 0))
        silent = {each.incarnation: each.since for each in sorted(contests.silences(found), reverse=True)}
        if silent != block.silent:
            block.silent = silent
            self.outdated[number] = Outdated.OTHER_AGENT_BELIEVED

    def _begin_incarnation(self, number: int, incarnation: str, archived_at: int) -> Life:
        block = self.blocks[number]
        life = block.begin_life(incarnation, archived_at, self.sequence)
        if block.latest_store:
            self._follow_stores(number, contests_of(block))
        return life

    def _follow_stores(self, number: int, found: list[contests.Contest]) -> None:
        """Find the last of a block's stores; the block is outdated if it is another one, or has more incarnations."""
        block = self.blocks[number]
        before = block.follow_stores(found)
        if change := Outdated.of_stores(before, block.latest_store):
            self.outdated[number] = max(change, self.outdated.get(number, change))

    def _settle(self, number: int, store: int, changes: Changes) -> None:
        block = self.blocks[number]
        lives = list(block.lives.values())
        if len(lives) > 1:
            lives = [life for life in lives if life.store == store]
        for span in settle(lives):
            for since, through in without_steps(self.steps, span.since, span.through):
                if since > block.known_until:
                    if block.known_until:
                        changes.gaps.append(Gap(number, block.known_until, since))
                    block.known_since = since
                block.known_until = max(block.known_until, through)

    def _revision(self, scope: Scope, payload: bytes, changes: Changes) -> None:
        said = judged_revision(payload)
        if isinstance(said, QuarantineReason):
            self.refused[said] = self.refused.get(said, 0) + 1
            return
        order, key = said.order, (said.stream_created_us, said.revision)
        if isinstance(order, DeclareMaintenance | CancelMaintenance | ForwardSender | RetireSender):
            revision = Revision(*key, scope, said.given_at_us, said.author, order)
            self.revisions[key] = revision
            changes.revisions.append(revision)


def _end_of_day(at: int) -> int:
    return (at // DAY + 1) * DAY

"""Look in the region for another living agent that publishes under our names: whoever came later withdraws.

An agent is seen by the last watermark below its names. The rules, which ``Sightings`` and ``Namesake`` apply (pure):

1. What this run has made is ours, and so is what the other member of our pair has.
2. So is what says no more than our store had read when this run began: its rows still leave, under the names of runs
   before this one.
3. Any other run is alive once ``GROWN`` later watermarks of it have come, one after the other, since it was first seen.
   What died may be the last word for ever, or come late, all at once: it does not grow from look to look.
4. Of two runs the one that began earlier goes on. Both know that from the names of the runs, and agree.
5. Who withdraws before another agent of the same site takes over where that one falls silent for long. Before another
   site's he does not: that one's link may be cut, and nobody here knows its senders.

The last watermark below a block's subject is asked for now and then, of the stream that stores it; this takes one
permission more than publishing does, and where that is missing nobody looks. At moments that do not fall in step with
our own watermarks: else ours might always be the last one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.core.block_state import BlockState
from edge_agent.source.port import is_denied
from shared.decoding import WireError
from shared.identifiers import BlockId, Incarnation, InvalidIdentifier, SourcePosition
from shared.instants import LATEST, SECOND, format_instant
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, ApiError, RequestFailed, api_prefix, request, stream_behind
from shared.nats.stream_messages import get_message
from shared.subjects import watermark_subject
from shared.tasks import Interrupted, is_cancelled, unless_set, wait_for_event
from shared.wire import Watermark, decode_watermark

T = TypeVar("T")

GROWN = 2
_DIGITS = 12
_VERSION = "7"


class NamePhase(StrEnum):
    """Whose the agent's names are, as people are told."""

    OURS = "ours"
    CONTESTED = "contested"
    TAKEN = "taken"
    UNWATCHED = "not watched"


def boot_id(at: int, random: bytes) -> str:
    """Name a run that begins at ``at``, in microseconds, as a UUID of version 7 (RFC 9562); ``random``: 10 bytes.

    >>> boot_id(1_700_000_000_000_000, bytes(10))
    '018bcfe5680070008000000000000000'
    """
    drawn = random.hex()
    return f"{at // 1000:012x}{_VERSION}{drawn[:3]}8{drawn[3:18]}"


def began_at(name: str) -> int | None:
    """Give when the run of a name began, in microseconds by its own clock; None where it does not say.

    >>> began_at(boot_id(1_700_000_000_000_000, bytes(10)))
    1700000000000000
    """
    try:
        at = int(name[:_DIGITS], 16)
    except ValueError:
        return None
    is_named_so = len(name) == 32 and name[_DIGITS] == _VERSION and at * 1000 <= LATEST
    return at * 1000 if is_named_so else None


class Namesake(msgspec.Struct, frozen=True):
    """Another run that publishes as one of our blocks; ``agent`` is its agent's own name.

    It reads a stream that was created at an instant, in microseconds.
    """

    agent: str
    boot_id: str
    block_id: BlockId
    stream: str
    created_at: int

    def reads(self, position: SourcePosition) -> bool:
        """Tell whether it reads the stream that a position is in: then it is an agent of the same site."""
        return (self.stream, self.created_at) == (position.stream, position.incarnation.created_at)

    def came_before(self, own_boot_id: str) -> bool | None:
        """Tell whether it began before the run of that name; None where that cannot be told."""
        theirs, ours = began_at(self.boot_id), began_at(own_boot_id)
        return None if theirs is None or ours is None else (theirs, self.boot_id) < (ours, own_boot_id)


class _LastSighting(msgspec.Struct):
    namesake: Namesake
    through: int
    grown: int
    at: float


class Sightings:
    """What has been seen of others below one block's names.

    ``read_through`` is how far our store had observed when this run began, ``friends`` are names of agents that may
    publish under ours.
    """

    def __init__(self, own_boot_id: str, read_through: int, friends: frozenset[str] = frozenset()) -> None:
        self._own_boot_id = own_boot_id
        self._read_through = read_through
        self._friends = friends
        self._seen: dict[str, _LastSighting] = {}

    def see(self, at: float, watermark: Watermark) -> None:
        """Take the last watermark that there is at ``at``, in seconds."""
        through, run = watermark.observed_through_us, watermark.boot_id
        if run == self._own_boot_id or watermark.agent in self._friends or through <= self._read_through:
            return
        seen = self._seen.get(run)
        if seen is None:
            self._seen = {**self._seen, run: _LastSighting(_namesake(watermark), through, 0, at)}
        elif through > seen.through:
            seen.through, seen.grown, seen.at = through, seen.grown + 1, at

    def undecided(self) -> list[Namesake]:
        """Give those of whom it is not known yet whether they live."""
        return [seen.namesake for seen in self._seen.values() if seen.grown < GROWN]

    @property
    def grown_at(self) -> float:
        """Give when somebody was last seen to have said more than before, in seconds."""
        return max((seen.at for seen in self._seen.values() if seen.grown), default=float("-inf"))

    def living(self, at: float, within: float) -> Namesake | None:
        """Give who lives: has grown, and did so less than ``within`` seconds ago; others are forgotten after that."""
        self._seen = {run: seen for run, seen in self._seen.items() if at - seen.at <= within}
        alive = [seen.namesake for seen in self._seen.values() if seen.grown >= GROWN]
        return min(alive, key=lambda each: each.boot_id, default=None)


def _namesake(watermark: Watermark) -> Namesake:
    block_id = BlockId(watermark.region, watermark.site, watermark.block)
    try:
        created_at = Incarnation.parse(watermark.incarnation).created_at
    except InvalidIdentifier:
        created_at = 0
    return Namesake(watermark.agent, watermark.boot_id, block_id, watermark.stream, created_at)


ANSWER_DEADLINE = 5.0
LONGEST_WAIT = 60.0
LOOK_EVERY = 3
FORGOTTEN_AFTER = 30
"""Both in watermark intervals: how often is looked while all is well, and how soon who falls silent is forgotten."""

HELD_LOOKS = 10
"""How often it is looked before this agent publishes all the same, where somebody may live."""

TRY_AGAIN = 3_600.0
"""How soon, in seconds, it is tried again what was not permitted or possible."""

_UNNOTICED = "a second agent of these names would not be noticed"
_STEP = 0.618


class NameTaken(Exception):
    """Another agent publishes under our names, and was there before: stop reading and publishing."""

    def __init__(self, namesake: Namesake) -> None:
        super().__init__(str(namesake.block_id))
        self.namesake = namesake


class NameFree(Exception):
    """Nobody else publishes under our names any more."""


class _Unseen(Exception):
    """It cannot be looked now; the text says why."""


class _Unlookable(_Unseen):
    """Nor soon."""


class EarlierStores:
    """Blocks for which the region holds a watermark of another run, found by the first poll of ``NameWatch``."""

    def __init__(self) -> None:
        self.blocks: set[str] = set()
        self.are_found = asyncio.Event()

    async def served(self, block: str) -> bool:
        """Return True if another store served a block that this store does not know. Wait some seconds for the region.

        Without an answer, the hub still sees it from the watermarks of both stores.
        """
        await wait_for_event(self.are_found, ANSWER_DEADLINE)
        return block in self.blocks


class NameWatch:
    """The watch over the names of one agent's blocks that make watermarks.

    ``may_publish`` is set as soon as nobody is in doubt, or has been for long: what leaves before somebody is known to
    live cannot be taken back. ``earlier`` is filled by the first poll.

    ``known`` is what the store knew of each block when this run began; ``report`` is called with every change of phase,
    with the reason.
    """

    def __init__(
        self,
        settings: AgentSettings,
        boot_id: str,
        known: Mapping[str, BlockState],
        report: Callable[[str, str], None],
        earlier: EarlierStores,
    ) -> None:
        self._boot_id = boot_id
        self._earlier = earlier
        self._known = known
        self._agent = settings.agent_name
        self._is_pair = bool(settings.pair.members)
        friends = frozenset(settings.pair.members)
        self._sightings = {
            watermark_subject(settings.block_id(block), block.target.prefix): (
                settings.block_id(block),
                Sightings(boot_id, known[block.name].observed_through if block.name in known else 0, friends),
            )
            for block in settings.stream
            if block.mode == "sample"
        }
        self._prefix = api_prefix(settings.upstream.domain)
        self._interval = settings.watermark.interval / SECOND
        self._report = report
        self.may_publish = asyncio.Event()
        if not self._sightings:
            self.may_publish.set()
        self._streams: dict[str, str] = {}
        self._asked: set[str] = set()
        self._refused = ""
        self._denied = asyncio.Event()
        self._changed = asyncio.Event()

    @property
    def forgotten_after(self) -> float:
        """Give how long somebody has to be silent, in seconds, to be forgotten."""
        return self._interval * FORGOTTEN_AFTER

    def break_off(self, _reason: str) -> None:
        """Try again on the next connection what was not possible on this one."""
        self._streams.clear()
        self._changed.set()

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that looking has caused."""
        # Over a slow link it may come long after the question was given up.
        self._refused = next((subject for subject in self._asked if is_denied(subject, reason)), "")
        if self._refused:
            self._denied.set()
        return bool(self._refused)

    async def run(self, client: Client) -> None:
        """Look until cancelled; raise NameTaken where this agent has to withdraw."""
        time = asyncio.get_running_loop().time
        count = tried = 0
        while not is_cancelled() and self._sightings:
            count += 1
            tried += client.is_connected
            if tried > HELD_LOOKS:
                self.may_publish.set()
            try:
                await self._look(client)
            except _Unlookable as error:
                self._earlier.are_found.set()
                self._report(NamePhase.UNWATCHED, str(error))
                self.may_publish.set()
                await self._pause(TRY_AGAIN)
                continue
            except _Unseen:
                await self._pause(self._wait(count, often=True))
                continue
            all_sightings = [sightings for _, sightings in self._sightings.values()]
            alive = [each.living(time(), self.forgotten_after) for each in all_sightings]
            others = [each for each in alive if each is not None]
            self._say(others[0] if others else None)
            undecided = [other for each in all_sightings for other in each.undecided()]
            if all(other.agent == self._agent for other in undecided):
                # One of our own name is mostly this agent itself, before its store was lost.
                self.may_publish.set()
            await self._pause(self._wait(count, often=bool(undecided or others)))

    async def run_withdrawn(self, client: Client, from_whom: Namesake) -> None:
        """Look until nobody else of this site has published for long: raise NameFree. Never before another site."""
        time = asyncio.get_running_loop().time
        state = self._known.get(from_whom.block_id.block)
        is_same_site = state is not None and from_whom.reads(state.position)
        self._report(NamePhase.TAKEN, _taken(from_whom, is_same_site=is_same_site))
        if not is_same_site:
            await asyncio.Event().wait()
        heard_at, count = time(), 0
        while not is_cancelled():
            count += 1
            before = heard_at
            try:
                await self._look(client)
            except _Unseen:
                heard_at = time()
            else:
                grown_at = [sightings.grown_at for _, sightings in self._sightings.values()]
                heard_at = max(before, *grown_at)
            if time() - heard_at > self.forgotten_after:
                raise NameFree
            await self._pause(self._wait(count, often=True))

    def _wait(self, count: int, *, often: bool) -> float:
        wait = min(self._interval * (1 if often else LOOK_EVERY), LONGEST_WAIT)
        return wait * (0.5 + count * _STEP % 1)

    def _say(self, other: Namesake | None) -> None:
        if other is None:
            self._report(NamePhase.OURS, "")
            return
        match other.came_before(self._boot_id):
            case True if not self._is_pair:
                raise NameTaken(other)
            case False:
                self._report(NamePhase.CONTESTED, _contested(other))
            case _:
                self._report(NamePhase.TAKEN, _unclear(other))

    async def _look(self, client: Client) -> None:
        for subject, (block_id, sightings) in self._sightings.items():
            watermark = await self._last(client, subject)
            if watermark is not None and BlockId(watermark.region, watermark.site, watermark.block) == block_id:
                sightings.see(asyncio.get_running_loop().time(), watermark)
                if watermark.boot_id != self._boot_id and not self._earlier.are_found.is_set():
                    self._earlier.blocks.add(block_id.block)
        self._earlier.are_found.set()

    async def _last(self, client: Client, subject: str) -> Watermark | None:
        """Ask for the last watermark on a subject; None: there is none that can be read."""
        if not client.is_connected:
            raise _Unseen("the connection is down")
        if subject not in self._streams:
            self._streams[subject] = await self._stream_of(client, subject)
        stream = self._streams[subject]
        try:
            direct = f"{self._prefix}.DIRECT.GET.{stream}.{subject}"
            answer = await self._unless_denied(direct, request(client, direct, b"", ANSWER_DEADLINE))
            body = b"" if "Status" in (answer.headers or {}) else answer.data
        except nats.errors.NoRespondersError:
            # Of a stream without allow_direct, its leader is asked.
            found = get_message(client, stream, {"last_by_subj": subject}, api=self._prefix, deadline=ANSWER_DEADLINE)
            try:
                message = await self._unless_denied(f"{self._prefix}.STREAM.MSG.GET.{stream}", found)
            except ApiError as error:
                why = f"stream {stream} gives no single messages ({error.description})"
                raise _Unlookable(f"{why}; {_UNNOTICED}") from error
            body = message.data if message else b""
        try:
            return decode_watermark(body)
        except WireError:
            return None

    async def _stream_of(self, client: Client, subject: str) -> str:
        try:
            stream = await self._unless_denied(subject, stream_behind(client, subject, ANSWER_DEADLINE))
        except nats.errors.NoRespondersError:
            stream = ""
        if not stream:
            raise _Unseen(f"{subject}: {NO_STREAM_ANSWERS}")
        return stream

    async def _unless_denied(self, subject: str, asking: Coroutine[Any, Any, T]) -> T:
        """Ask on a subject for no longer than it is not denied; raise NoRespondersError where nobody is there."""
        self._asked.add(subject)
        self._denied.clear()
        try:
            return await unless_set(self._denied, asking)
        except Interrupted:
            raise _Unlookable(f"not permitted: publish on {self._refused}; {_UNNOTICED}") from None
        except nats.errors.NoRespondersError:
            raise
        except (nats.errors.Error, TimeoutError, RequestFailed) as error:
            raise _Unseen(str(error) or "no answer") from error

    async def _pause(self, seconds: float) -> None:
        self._changed.clear()
        await wait_for_event(self._changed, seconds)


def _who(other: Namesake) -> str:
    at = began_at(other.boot_id)
    since = f", which began at {format_instant(at)}" if at is not None else ""
    return f"another agent, {other.agent} (run {other.boot_id}{since}), publishes as {other.block_id}"


def _taken(other: Namesake, *, is_same_site: bool) -> str:
    until = "until that one has gone" if is_same_site else "until it is started again: that one is of another site"
    return f"{_who(other)}, and was there before: this one reads and publishes nothing {until}"


def _contested(other: Namesake) -> str:
    return f"{_who(other)}, too; it came later and should withdraw"


def _unclear(other: Namesake) -> str:
    return f"{_who(other)}, too, and neither withdraws: what both say is mixed"

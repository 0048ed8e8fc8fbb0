"""Fence around an agent's names: the region stores a watermark only directly behind its predecessor.

Rules, which ``Lineage`` applies (pure):

1. A watermark is published with the sequence of the last one of its subject (``Nats-Expected-Last-Subject-Sequence``).
   A refusal does not say why: servers since 2.12 compare sequences before message ids (error 10071 after a lost
   acknowledgement, too), and after retention the last sequence is 0. One read of the last message decides: our message
   id (it is stored), no message (continue from 0), or a watermark of another run.
2. Runs of this agent are this one, those of the other member of its pair, and those whose watermark claims no more than
   the store had read when this run began: their rows still leave.
3. Any other run is alive once it has stored a watermark directly behind one of ours, or ``GROWN`` later ones since it
   was first seen. A run that died has one watermark under way at most, and the server refuses that behind one of ours;
   of an agent that publishes without the condition, it may still be stored.
4. Of two living runs the one that began earlier continues. Both know that from their boot ids, and agree.
5. An agent that withdraws takes over from another one of its site that falls silent for long. It never takes over from
   another site's agent: a cut link may be the reason, and this agent does not know the senders of that site.

Reading takes one permission more than publishing. Without it, watermarks leave without the condition.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client

from edge_agent.delivery.region_protocol import BEHIND_HEADER
from edge_agent.delivery.shipment import Answer, Form, Shipment, ShipmentPlace
from edge_agent.source.port import is_denied
from shared.decoding import WireError
from shared.identifiers import BlockId, Incarnation, InvalidIdentifier, SourcePosition
from shared.instants import LATEST, format_instant
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, ApiError, RequestFailed, request, stream_behind
from shared.nats.stream_messages import get_message
from shared.tasks import Interrupted, is_cancelled, unless_set, wait_for_event
from shared.wire import MESSAGE_ID_HEADER, Watermark, decode_watermark

T = TypeVar("T")

GROWN = 2
_DIGITS = 12
_VERSION = "7"
_LONGEST_COUNT = 20


class NamePhase(StrEnum):
    """State of the agent's names, as ``status`` shows it."""

    OURS = "ours"
    CONTESTED = "contested"
    TAKEN = "taken"
    UNWATCHED = "not watched"


def boot_id(at: int, random: bytes) -> str:
    """Return the name of a run that begins at ``at``, a UUID of version 7 (RFC 9562); ``random``: 10 bytes.

    >>> boot_id(1_700_000_000_000_000, bytes(10))
    '018bcfe5680070008000000000000000'
    """
    drawn = random.hex()
    return f"{at // 1000:012x}{_VERSION}{drawn[:3]}8{drawn[3:18]}"


def began_at(name: str) -> int | None:
    """Return when a run began, in microseconds by its own clock; None if its name does not contain it.

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

    It reads ``stream``, which was created at ``created_at``, in microseconds.
    """

    agent: str
    boot_id: str
    block_id: BlockId
    stream: str
    created_at: int

    @classmethod
    def of(cls, watermark: Watermark) -> "Namesake":
        block_id = BlockId(watermark.region, watermark.site, watermark.block)
        try:
            created_at = Incarnation.parse(watermark.incarnation).created_at
        except InvalidIdentifier:
            created_at = 0
        return cls(watermark.agent, watermark.boot_id, block_id, watermark.stream, created_at)

    def reads(self, position: SourcePosition) -> bool:
        """Return True if it reads the stream of a position: then it is an agent of the same site."""
        return (self.stream, self.created_at) == (position.stream, position.incarnation.created_at)

    def came_before(self, own_boot_id: str) -> bool | None:
        """Return True if it began before the run of that name; None if that is not known."""
        theirs, ours = began_at(self.boot_id), began_at(own_boot_id)
        return None if theirs is None or ours is None else (theirs, self.boot_id) < (ours, own_boot_id)


class AgentRun(msgspec.Struct, frozen=True):
    """This run of this agent; ``interval`` is that of its watermarks, in seconds, ``friends`` its pair's members."""

    agent: str
    boot_id: str
    interval: float
    friends: frozenset[str] = frozenset()


class FencedBlock(NamedTuple):
    """One block, with the time and position that the store had reached in its stream when this run began."""

    block_id: BlockId
    read_through: int = 0
    position: SourcePosition | None = None


class LastMessage(NamedTuple):
    """The last message of a watermark's subject, ``behind`` the sequence that its publisher named (0: none)."""

    sequence: int
    message_id: str
    behind: int
    watermark: Watermark | None


class _OtherRun(msgspec.Struct):
    namesake: Namesake
    through: int
    grown: int
    at: float


class Lineage:
    """The watermarks of one subject: the sequence of the last one, and other runs that have written some.

    ``expected`` is None until it is known.
    """

    def __init__(self, writer: AgentRun, block: FencedBlock) -> None:
        self.expected: int | None = None
        self._writer = writer
        self._block = block
        self._own = 0
        self._others: dict[str, _OtherRun] = {}

    def note_stored(self, sequence: int) -> None:
        """Note that a watermark of this agent is stored."""
        # A duplicate is answered with the sequence that it had.
        if sequence >= (self.expected or 0):
            self.expected = self._own = sequence

    def take(self, at: float, last: LastMessage | None) -> None:
        """Record the last message, None if there is none, which was read at ``at``, in seconds."""
        self.expected = last.sequence if last else 0
        watermark = last.watermark if last else None
        if last is None or watermark is None or self._is_ours(watermark):
            return
        run, through = watermark.boot_id, watermark.observed_through_us
        other = self._others.get(run)
        if other is None:
            self._others[run] = other = _OtherRun(Namesake.of(watermark), through, 0, at)
        elif through > other.through:
            other.through, other.grown, other.at = through, other.grown + 1, at
        if self._own and last.behind == self._own:
            other.grown, other.at = GROWN, at

    def _is_ours(self, watermark: Watermark) -> bool:
        if BlockId(watermark.region, watermark.site, watermark.block) != self._block.block_id:
            # Two blocks may share a subject.
            return True
        is_of_writer = watermark.boot_id == self._writer.boot_id or watermark.agent in self._writer.friends
        return is_of_writer or watermark.observed_through_us <= self._block.read_through

    def undecided(self) -> list[Namesake]:
        """Return the runs of which it is not known yet whether they live."""
        return [other.namesake for other in self._others.values() if other.grown < GROWN]

    @property
    def grown_at(self) -> float:
        """When another run last stored a later watermark, in seconds."""
        return max((other.at for other in self._others.values() if other.grown), default=float("-inf"))

    def living(self, at: float, within: float) -> Namesake | None:
        """Return the earliest run that is alive; forget those that stored nothing for ``within`` seconds."""
        self._others = {run: other for run, other in self._others.items() if at - other.at <= within}
        alive = [other.namesake for other in self._others.values() if other.grown >= GROWN]
        return min(alive, key=lambda each: each.boot_id, default=None)


ANSWER_DEADLINE = 5.0
LONGEST_WAIT = 60.0
FORGOTTEN_AFTER = 30
"""In watermark intervals: how soon another run that falls silent is forgotten."""

HELD_READS = 10
"""How often the last watermark is read before this agent publishes all the same, where another one may live."""

TRY_AGAIN = 3_600.0
"""How soon, in seconds, a read that was not permitted or possible is tried again."""

_UNNOTICED = "a second agent of these names would not be noticed"


class NameTaken(Exception):
    """Another agent publishes under our names, and was there before: stop reading and publishing."""

    def __init__(self, namesake: Namesake) -> None:
        super().__init__(str(namesake.block_id))
        self.namesake = namesake


class NameFree(Exception):
    """No other agent publishes under our names any more."""


class _Unread(Exception):
    """The last message cannot be read now; the text is the reason."""


class _Unreadable(_Unread):
    """Nor soon."""


class EarlierStores:
    """Blocks for which the region holds a watermark of another run, found by the first read of ``NameFence``."""

    def __init__(self) -> None:
        self.blocks: set[str] = set()
        self.are_found = asyncio.Event()

    async def served(self, block: str) -> bool:
        """Return True if another store served a block that this store does not know. Wait some seconds for the region.

        Without an answer, the hub still sees it from the watermarks of both stores.
        """
        await wait_for_event(self.are_found, ANSWER_DEADLINE)
        return block in self.blocks


class NameFence:
    """The fence around the names of one agent's blocks that make watermarks.

    ``blocks`` are by subject of their watermarks, ``api`` is the prefix of the region's JetStream API. ``report`` is
    called with every change of phase, with the reason. ``earlier`` is filled by the first read. ``may_publish`` is set
    as soon as no other run is in doubt, or has been for long: records that leave before another run is known to live
    cannot be taken back.
    """

    def __init__(
        self,
        link: tuple[Client, str],
        writer: AgentRun,
        blocks: Mapping[str, FencedBlock],
        report: Callable[[str, str], None],
        earlier: EarlierStores,
    ) -> None:
        self._client, self._api = link
        self._writer = writer
        self._blocks = blocks
        self._lineages = {subject: Lineage(writer, block) for subject, block in blocks.items()}
        self._wait = min(writer.interval, LONGEST_WAIT)
        self._forgotten_after = writer.interval * FORGOTTEN_AFTER
        self._report = report
        self._earlier = earlier
        self.may_publish = asyncio.Event()
        if not blocks:
            self.may_publish.set()
        self._is_open = False
        self._refused_number = 0
        self._streams: dict[str, str] = {}
        self._reading = asyncio.Lock()
        self._asked: set[str] = set()
        self._refused = ""
        self._denied = asyncio.Event()
        self._changed = asyncio.Event()

    def break_off(self, _reason: str) -> None:
        """Read again on a new connection."""
        self._streams.clear()
        self._changed.set()

    def takes_denial(self, reason: str) -> bool:
        """Return True if a read has caused a permission violation, and end that read."""
        # Over a slow link it may come long after the question was given up.
        refused = next((subject for subject in self._asked if is_denied(subject, reason)), "")
        if refused:
            # A later denial of another subject must not replace it before the read has noticed.
            self._refused = refused
            self._denied.set()
        return bool(refused)

    # For shipments

    async def find_places(self) -> None:
        """Read the last watermark of each subject of which none is known; without an answer, none has a condition."""
        with contextlib.suppress(_Unread):
            for subject, lineage in self._lineages.items():
                if lineage.expected is None and not self._is_open:
                    await self._read(subject)

    def placed(self, shipment: Shipment) -> Shipment:
        """Return a shipment with the condition of its first watermark, if there is one and its place is known."""
        if self._is_open or shipment.form is Form.QUESTION:
            return shipment
        subject = next((row.subject for row in shipment.rows if row.is_watermark), "")
        lineage = self._lineages.get(subject)
        if lineage is None or lineage.expected is None:
            return shipment
        return _behind(shipment, ShipmentPlace(subject, lineage.expected))

    def note_stored(self, shipment: Shipment, answer: Answer) -> None:
        """Note where the last watermark of a shipment is stored; a batch is stored without a hole."""
        for place, row in enumerate(reversed(shipment.rows)):
            if row.is_watermark and row.subject in self._lineages:
                self._lineages[row.subject].note_stored(answer.sequence - place)
                return

    async def settle(self, shipment: Shipment) -> Shipment | int | None:
        """Return the shipment to send after a refused condition, or the sequence where it is stored already.

        Return None if this agent withdraws. A shipment that is refused twice leaves without the condition: the read
        does not show what the server compares with (a mapped subject, a replica that is behind).
        """
        assert shipment.behind is not None
        subject = shipment.behind.subject
        is_second, self._refused_number = shipment.number == self._refused_number, shipment.number
        try:
            last = await self._read(subject)
        except _Unread:
            return _behind(shipment, None)
        self._changed.set()
        if (other := self._living()) is not None and self._withdraws_from(other):
            return None
        if shipment.form is Form.SINGLE and last and last.message_id == shipment.rows[0].headers[MESSAGE_ID_HEADER]:
            return last.sequence
        return _behind(shipment, None if is_second else ShipmentPlace(subject, last.sequence if last else 0))

    # For the agent

    async def run(self) -> None:
        """Read until this agent may publish, and judge the watermarks; raise NameTaken if this agent withdraws."""
        read_count = 0
        while self._lineages and not is_cancelled():
            wait = self._wait
            self._changed.clear()
            try:
                if self._is_open or not self.may_publish.is_set():
                    read_count += self._client.is_connected
                    await self._read_all()
                self._is_open = False
                self._judge()
            except _Unreadable as error:
                self._is_open, wait = True, TRY_AGAIN
                self._earlier.are_found.set()
                self._report(NamePhase.UNWATCHED, str(error))
                self.may_publish.set()
            except _Unread:
                pass
            undecided = [other for lineage in self._lineages.values() for other in lineage.undecided()]
            # One of our own name is mostly this agent itself, before its store was lost: a refusal shows that it lives.
            is_decided = self._earlier.are_found.is_set() and all(it.agent == self._writer.agent for it in undecided)
            if is_decided or read_count > HELD_READS:
                self.may_publish.set()
            await wait_for_event(self._changed, wait)

    async def run_withdrawn(self, from_whom: Namesake) -> None:
        """Read until no other agent of this site has published for long: raise NameFree. Never before another site."""
        time = asyncio.get_running_loop().time
        of_block = (block.position for block in self._blocks.values() if block.block_id == from_whom.block_id)
        position = next(of_block, None)
        is_same_site = position is not None and from_whom.reads(position)
        self._report(NamePhase.TAKEN, _taken(from_whom, is_same_site=is_same_site))
        if not is_same_site:
            await asyncio.Event().wait()
        heard_at = time()
        while not is_cancelled():
            try:
                await self._read_all()
            except _Unread:
                heard_at = time()
            else:
                heard_at = max(heard_at, *(lineage.grown_at for lineage in self._lineages.values()))
            if time() - heard_at > self._forgotten_after:
                raise NameFree
            await asyncio.sleep(self._wait)

    def _living(self) -> Namesake | None:
        now = asyncio.get_running_loop().time()
        alive = [lineage.living(now, self._forgotten_after) for lineage in self._lineages.values()]
        return next((other for other in alive if other is not None), None)

    def _withdraws_from(self, other: Namesake) -> bool:
        return not self._writer.friends and other.came_before(self._writer.boot_id) is True

    def _judge(self) -> None:
        other = self._living()
        if other is None:
            self._report(NamePhase.OURS, "")
        elif self._withdraws_from(other):
            raise NameTaken(other)
        elif other.came_before(self._writer.boot_id) is False:
            self._report(NamePhase.CONTESTED, _contested(other))
        else:
            self._report(NamePhase.TAKEN, _unclear(other))

    async def _read_all(self) -> None:
        is_first = not self._earlier.are_found.is_set()
        for subject, block in self._blocks.items():
            last = await self._read(subject)
            if is_first and last and last.watermark and last.watermark.boot_id != self._writer.boot_id:
                self._earlier.blocks.add(block.block_id.block)
        self._earlier.are_found.set()

    async def _read(self, subject: str) -> LastMessage | None:
        """Read the last message of a subject, and take it; None if there is none."""
        if not self._client.is_connected:
            raise _Unread("the connection is down")
        async with self._reading:
            if subject not in self._streams:
                self._streams[subject] = await self._stream_of(subject)
            last = await self._last(self._streams[subject], subject)
        self._lineages[subject].take(asyncio.get_running_loop().time(), last)
        return last

    async def _last(self, stream: str, subject: str) -> LastMessage | None:
        client = self._client
        try:
            direct = f"{self._api}.DIRECT.GET.{stream}.{subject}"
            answer = await self._unless_denied(direct, request(client, direct, b"", ANSWER_DEADLINE))
        except nats.errors.NoRespondersError:
            # Of a stream without allow_direct, its leader is asked.
            found = get_message(client, stream, {"last_by_subj": subject}, api=self._api, deadline=ANSWER_DEADLINE)
            try:
                message = await self._unless_denied(f"{self._api}.STREAM.MSG.GET.{stream}", found)
            except ApiError as error:
                why = f"stream {stream} gives no single messages ({error.description})"
                raise _Unreadable(f"{why}; {_UNNOTICED}") from error
            return _last_message(message.headers, message.seq, message.data) if message else None
        headers = answer.headers or {}
        sequence = _count_in(headers, "Nats-Sequence")
        return _last_message(headers, sequence, answer.data) if sequence else None

    async def _stream_of(self, subject: str) -> str:
        try:
            stream = await self._unless_denied(subject, stream_behind(self._client, subject, ANSWER_DEADLINE))
        except nats.errors.NoRespondersError:
            stream = ""
        if not stream:
            raise _Unread(f"{subject}: {NO_STREAM_ANSWERS}")
        return stream

    async def _unless_denied(self, subject: str, asking: Coroutine[Any, Any, T]) -> T:
        """Ask on a subject until that is denied; raise NoRespondersError if there is no responder."""
        self._asked.add(subject)
        self._denied.clear()
        try:
            return await unless_set(self._denied, asking)
        except Interrupted:
            raise _Unreadable(f"not permitted: publish on {self._refused}; {_UNNOTICED}") from None
        except nats.errors.NoRespondersError:
            raise
        except (nats.errors.Error, TimeoutError, RequestFailed) as error:
            raise _Unread(str(error) or "no answer") from error


def _behind(shipment: Shipment, place: ShipmentPlace | None) -> Shipment:
    return msgspec.structs.replace(shipment, behind=place)


def _last_message(headers: Mapping[str, str], sequence: int, body: bytes) -> LastMessage:
    try:
        watermark = decode_watermark(body)
    except WireError:
        watermark = None
    return LastMessage(sequence, headers.get(MESSAGE_ID_HEADER, ""), _count_in(headers, BEHIND_HEADER), watermark)


def _count_in(headers: Mapping[str, str], name: str) -> int:
    """Return the number in a header; 0 if there is none."""
    value = headers.get(name, "")
    return int(value) if value.isascii() and value.isdecimal() and len(value) <= _LONGEST_COUNT else 0


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

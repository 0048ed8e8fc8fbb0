"""Look in the region for another living agent that publishes under our names: whoever came later withdraws.

The last watermark below a block's subject is asked for now and then, of the stream that stores it; this takes one
permission more than publishing does, and where that is missing nobody looks. At moments that do not fall in step with
our own watermarks: else ours might always be the last one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.config.agent import AgentSettings
from edge_agent.core.block_state import BlockState
from edge_agent.core.namesake import NamePhase, Namesake, Sightings, began_at
from edge_agent.source.port import is_denied
from shared.identifiers import BlockId
from shared.instants import SECOND, format_instant
from shared.nats.jetstream_api import ANOTHER_STREAM, ApiError, PubAck, RequestFailed, api_prefix, request
from shared.nats.stream_messages import get_message
from shared.subjects import watermark_subject
from shared.tasks import Interrupted, is_cancelled, unless_set, wait_for_event
from shared.wire import Watermark, WireError, decode_watermark

T = TypeVar("T")

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


class NameWatch:
    """The watch over the names of one agent's blocks that make watermarks.

    ``may_publish`` is set as soon as nobody is in doubt, or has been for long: what leaves before somebody is known to
    live cannot be taken back.

    ``known`` is what the store knew of each block when this run began; ``report`` is called with every change of phase,
    with the reason.
    """

    def __init__(
        self,
        settings: AgentSettings,
        boot_id: str,
        known: Mapping[str, BlockState],
        report: Callable[[str, str], None],
    ) -> None:
        self._boot_id = boot_id
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

    async def _last(self, client: Client, subject: str) -> Watermark | None:
        """Ask for the last watermark on a subject; None: there is none that can be read."""
        if not client.is_connected:
            raise _Unseen("the connection is down")
        if subject not in self._streams:
            self._streams[subject] = await self._stream_of(client, subject)
        stream = self._streams[subject]
        try:
            answer = await self._ask(client, f"{self._prefix}.DIRECT.GET.{stream}.{subject}", b"")
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
            answer = await self._ask(client, subject, b"", ANOTHER_STREAM)
            stream = msgspec.json.decode(answer.data, type=PubAck).stream
        except (nats.errors.NoRespondersError, msgspec.MsgspecError):
            stream = ""
        if not stream:
            raise _Unseen(f"no stream answers on {subject}")
        return stream

    async def _ask(self, client: Client, subject: str, body: bytes, headers: Mapping[str, str] | None = None) -> Msg:
        """Ask; raise NoRespondersError where nobody is there."""
        return await self._unless_denied(subject, request(client, subject, body, ANSWER_DEADLINE, headers))

    async def _unless_denied(self, subject: str, asking: Coroutine[Any, Any, T]) -> T:
        """Ask on a subject for no longer than it is not denied."""
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

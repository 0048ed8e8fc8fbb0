"""Reader of the hub's policy for this site, from the region's copy of the hub's stream.

A durable consumer delivers only the site's own revisions; the agent's store holds which of them were applied. On every
connect, and once in LOOK_AGAIN seconds, the last revision read is requested again: if another one is in its place, or
none, the stream is another one and is read from its start. The agent does not wait for policy: a region may have none.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.core.policy import PolicyRevisions
from edge_agent.source.api import resets_consumers
from edge_agent.source.consumer import ConsumerInfo
from shared.decoding import WireError
from shared.instants import format_instant
from shared.nats.jetstream_api import (
    NO_SUCH_CONSUMER,
    NO_SUCH_STREAM,
    ApiError,
    RequestFailed,
    api_prefix,
    request_json,
)
from shared.nats.stream_messages import delivery_of
from shared.policy import STREAM, Revision, ScopedRevision, consumer_config, consumer_name, read_scoped_revision
from shared.tasks import is_cancelled, wait_for_event

REQUEST_DEADLINE = 5.0
PULL_EXPIRES = 30.0
"""How long a request waits at the server, in seconds; a new revision is delivered at once."""

LOOK_AGAIN = 300.0
"""How often, in seconds, the agent checks for a new policy stream, or another past of it."""

RETRY_AFTER = 5.0
RETRY_WHERE_UNKNOWN = 30.0
_GONE = f"there is no stream {STREAM} in this region any more: make it again (muster-aggregator apply)"
_NO_MESSAGE_STATUS = ("404", "408")


class PolicyPhase(StrEnum):
    """Whether the hub's policy reaches this agent, for status and conditions."""

    FOLLOWING = "following the hub"
    NONE = "none in this region"
    OFF = "off"
    UNHEARD = "not heard"


class _Lost(Exception):
    """A requested message does not arrive, for the reason in the text. Request it again."""


class PolicyFeed:
    """The revisions for one site. ``domain`` is the region's JetStream domain, if it is not the connection's own.

    ``report`` is called with every change of phase and its reason, except in regions that never had any policy.
    """

    def __init__(self, region: str, site: str, domain: str, report: Callable[[str, str], None]) -> None:
        self._config = consumer_config(region, site)
        self._prefix = f"{api_prefix(domain)}.CONSUMER"
        self._consumer = f"{STREAM}.{consumer_name(site)}"
        self._report = report
        self._is_known = False
        self._last = 0, 0
        self._given_at = 0
        self._orders: list[ScopedRevision] = []
        self._changed = asyncio.Event()
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._inbox = ""
        self._denied = ""

    def orders(self) -> list[ScopedRevision]:
        return self._orders

    def break_off(self, _reason: str) -> None:
        """Listen again: the connection is another."""
        self._denied = ""
        self._wake()

    def takes_denial(self, reason: str) -> bool:
        """Return True if a permission violation concerns the policy consumer; it is tried again later."""
        if self._consumer.lower() not in reason.lower():
            return False
        self._denied = reason
        self._wake()
        return True

    async def run(self, client: Client, taken: Iterable[PolicyRevisions]) -> None:
        """Listen until cancelled, on a connection to the region; ``taken`` is how far each block has come."""
        self._client = client
        behind = sorted(taken, key=lambda each: -each.revision)
        past = {each.stream_created_at: each.revision for each in behind}
        if len(past) == 1:
            ((created_at, revision),) = past.items()
            self._last, self._given_at = (created_at, revision), behind[-1].given_at
            self._is_known = revision > 0
        while not is_cancelled():
            self._changed.clear()
            if self._denied:
                self._report_phase(PolicyPhase.OFF)
                await self._pause(LOOK_AGAIN)
                self._denied = ""
                continue
            if not client.is_connected:
                # nats-py would send the subscription at the reconnect, also when it has ended.
                await self._pause(RETRY_AFTER)
                continue
            try:
                await self._listen()
            except ApiError as error:
                is_missing = error.err_code == NO_SUCH_STREAM
                is_none = is_missing and self._last[1] == 0
                reason = "" if is_none else _GONE if is_missing else str(error)
                self._report_phase(PolicyPhase.NONE if is_none else PolicyPhase.UNHEARD, reason)
                retry_after = RETRY_AFTER if self._is_known else RETRY_WHERE_UNKNOWN
                await self._pause(LOOK_AGAIN if is_none else retry_after)
            except (RequestFailed, _Lost) as error:
                if self._client.is_connected and not self._denied:
                    self._report_phase(PolicyPhase.UNHEARD, str(error))
                await self._pause(RETRY_AFTER if self._is_known else RETRY_WHERE_UNKNOWN)

    def _wake(self) -> None:
        self._changed.set()
        self._arrived.put_nowait(None)

    async def _listen(self) -> None:
        # A message comes under its own subject: nats-py would not know it for the answer to a request.
        self._inbox, self._arrived = self._client.new_inbox(), asyncio.Queue()
        try:
            subscription = await self._client.subscribe(self._inbox, cb=self._arrive)
        except nats.errors.Error as error:
            raise _Lost(f"cannot listen: {error}") from error
        try:
            await self._hear()
        finally:
            with contextlib.suppress(nats.errors.Error):
                await subscription.unsubscribe()

    async def _hear(self) -> None:
        if not resets_consumers(self._client):
            self._report_phase(PolicyPhase.OFF, "the region's nats-server cannot reset consumers, 2.14 can: upgrade it")
            await self._pause(LOOK_AGAIN)
            return
        consumer_sequence = await self._catch_up()
        self._report_phase(PolicyPhase.FOLLOWING)
        loop = asyncio.get_running_loop()
        look_again_at = loop.time() + LOOK_AGAIN
        while loop.time() < look_again_at and not is_cancelled():
            heard = await self._next()
            if heard is None:
                await self._refuse_paused()
                continue
            consumer_sequence += 1
            if heard[0] != consumer_sequence:
                raise _Lost("revisions were delivered elsewhere")
            self._take([heard[2]])

    async def _catch_up(self) -> int:
        """Read the revisions since the last one, or all of them; return the consumer's sequence."""
        _, number = self._last
        if number:
            orders, sequence = await self._read_from(number)
            first = orders[0] if orders else None
            if first is not None and self._is_last(first.revision):
                self._take(orders[1:])
                return sequence
        orders, sequence = await self._read_from(1)
        self._orders, self._given_at = [], 0
        self._take(orders)
        return sequence

    async def _read_from(self, number: int) -> tuple[list[ScopedRevision], int]:
        waiting, orders, sequence = await self._reset(number), [], 0
        while waiting:
            heard = await self._next()
            if heard is None:
                raise _Lost("revisions that wait are not delivered")
            sequence, waiting, one = heard
            orders.append(one)
        return [one for one in orders if one is not None], sequence

    def _take(self, orders: Sequence[ScopedRevision | None]) -> None:
        for one in orders:
            if one is not None:
                self._orders.append(one)
                self._last = one.revision.stream_created_us, one.revision.revision
                self._given_at = max(self._given_at, one.revision.given_at_us)

    def _is_last(self, revision: Revision) -> bool:
        """Return True if it is the last one read; a restored stream has a later one under its number."""
        is_same = (revision.stream_created_us, revision.revision) == self._last
        return is_same and revision.given_at_us <= self._given_at

    async def _reset(self, number: int) -> int:
        """Reset the consumer, created if missing, to a revision; return the number of revisions from it on."""
        try:
            # First, because a server does not answer a reset of a consumer that does not exist.
            await self._refuse_paused()
        except ApiError as error:
            if error.err_code != NO_SUCH_CONSUMER:
                raise
            await self._ask("CREATE", {"stream_name": STREAM, "config": self._config | {"deliver_policy": "all"}})
        return (await self._ask("RESET", {"seq": number})).num_pending

    async def _refuse_paused(self) -> None:
        consumer = await self._ask("INFO", None)
        if consumer.paused:
            name = self._consumer.replace(".", " ", 1)
            until = format_instant(consumer.config.pause_until)
            raise _Lost(f"somebody has paused its consumer until {until}: nats consumer resume {name}")

    async def _ask(self, action: str, body: object) -> ConsumerInfo:
        subject = f"{self._prefix}.{action}.{self._consumer}"
        return await request_json(self._client, subject, body, ConsumerInfo, deadline=REQUEST_DEADLINE)

    async def _next(self) -> tuple[int, int, ScopedRevision | None] | None:
        """Wait for a message; return its consumer sequence, the pending count and its revision, None if none came."""
        body = msgspec.json.encode({"batch": 1, "expires": int(PULL_EXPIRES * 1e9)})
        subject = f"{self._prefix}.MSG.NEXT.{self._consumer}"
        message = await self._answer(subject, body)
        status = (message.headers or {}).get("Status", "")
        if status in _NO_MESSAGE_STATUS:
            return None
        if status:
            raise _Lost(f"asking for policy: {(message.headers or {}).get('Description', status)}")
        try:
            delivery = delivery_of(message.reply)
        except WireError as error:
            raise _Lost(str(error)) from error
        return (
            delivery.consumer_sequence,
            delivery.pending,
            read_scoped_revision(message.subject, message.data, delivery.sequence),
        )

    async def _answer(self, subject: str, body: bytes) -> Msg:
        """Return the answer; raise _Lost if the connection changes meanwhile."""
        if not self._client.is_connected:
            raise _Lost("the connection is down")
        try:
            await self._client.publish(subject, body, reply=self._inbox)
            async with asyncio.timeout(PULL_EXPIRES + REQUEST_DEADLINE):
                message = await self._arrived.get()
        except (nats.errors.Error, TimeoutError) as error:
            raise _Lost(f"asking for policy: {str(error) or 'no answer'}") from error
        if message is None:
            raise _Lost("the connection has changed")
        return message

    async def _arrive(self, message: Msg) -> None:
        self._arrived.put_nowait(message)

    def _report_phase(self, phase: PolicyPhase, reason: str = "") -> None:
        if phase is PolicyPhase.FOLLOWING or self._is_known:
            self._is_known = True
            self._report(phase, reason)

    async def _pause(self, seconds: float) -> None:
        await wait_for_event(self._changed, seconds)

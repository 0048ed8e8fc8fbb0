"""Publish shipments to the region's JetStream, pipelined, and match the answers by their reply subjects.

A server says how large a message may be when a connection begins, and never again: tried on 2.15.1, a reload that
raises ``max_payload`` holds for open connections at once, in silence. So before a row is called too large the server
is asked again, over a connection of a moment, and not more often than every ``ASK_EVERY`` seconds.
"""

import asyncio
import contextlib
import logging
import re
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

import msgspec
import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from edge_agent.core.records import Lane, OutboxRow, SizeLimit
from edge_agent.delivery.name_fence import NameFence
from edge_agent.delivery.port import UpstreamUnavailable
from edge_agent.delivery.region_protocol import MessageTooLarge, answer_to, frames_of, shorter_forms
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment
from shared.nats.client import EdgeClient, LinkProgress
from shared.nats.connection import ConnectFailed
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, tells_of_nobody
from shared.nats.stream_causes import QuietAsk, explain_unanswered
from shared.tasks import wait_for_event

log = logging.getLogger("muster.agent")

ASK_EVERY = 30.0
BACKLOG_LIMIT = 256 << 10
_Kind = tuple[str, Lane, bool]
"""A block, a lane, and whether a record is a watermark: other records may have another stream."""
_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "(.+)"', re.IGNORECASE)


class JetStreamUpstream:
    """The region's servers on an open connection. ``ask_limit`` asks the server that it leads to for its limit.

    ``domain`` is the one of the settings, ``user`` names the user of the connection. Watermarks pass ``fence``.
    """

    def __init__(
        self,
        client: EdgeClient,
        ask_limit: Callable[[], Awaitable[int]],
        domain: str = "",
        user: str = "this user",
        fence: NameFence | None = None,
    ) -> None:
        self._client = client
        self._fence = fence
        self._domain, self._user = domain, user
        self._causes: dict[_Kind, str] = {}
        self._explained_at: dict[_Kind, float] = {}
        self._explaining = asyncio.Lock()
        self._ask_limit = ask_limit
        self._asking = asyncio.Lock()
        self._asked_at = float("-inf")
        self._questions: set[asyncio.Task[None]] = set()
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._unanswered: dict[int, Shipment] = {}
        self._denied: set[str] = set()
        self._answers: list[Answer] = []
        self._arrived = asyncio.Event()
        self._broken = ""
        self._progress = LinkProgress()
        self._is_heard = True

    def break_off(self, reason: str) -> None:
        """Make the next call raise UpstreamUnavailable: the connection has changed, publishes may be lost."""
        self._broken = self._broken or reason
        self._arrived.set()

    def takes_denial(self, reason: str) -> bool:
        """Apply a permission violation that a publish caused: servers report it instead of an answer."""
        found = _DENIED_PUBLISH.search(reason)
        if found is None:
            return False
        subject = found[1].lower()
        for shipment in [each for each in self._unanswered.values() if _goes_to(subject, each)]:
            del self._unanswered[shipment.number]
            self._answers.append(Answer(shipment.number, Outcome.REFUSED, reason="publishing there is not permitted"))
            # Each message of many is denied, and the first denial answers for all.
            self._denied.update(row.subject.lower() for row in shipment.rows)
            self._arrived.set()
        return subject in self._denied

    @property
    def max_payload(self) -> int:
        return self._client.max_payload

    async def ask_max_payload(self) -> int:
        """Return the limit as the server reports it now, or reported it less than ``ASK_EVERY`` seconds ago."""
        async with self._asking:
            if not self._has_asked:
                try:
                    self._client.learn_max_payload(await self._ask_limit())
                except (ConnectFailed, nats.errors.Error, OSError) as error:
                    log.debug("the region's servers were not asked for their limit: %s", error)
                self._asked_at = asyncio.get_running_loop().time()
        return self.max_payload

    @property
    def _has_asked(self) -> bool:
        return asyncio.get_running_loop().time() - self._asked_at < ASK_EVERY

    def give_up(self) -> None:
        """Cancel the questions to the servers; nothing that waits for their answers is published."""
        for question in self._questions:
            question.cancel()
        self._explained_at.clear()

    def poke(self) -> None:
        self._arrived.set()

    def takes_more(self) -> bool:
        return self._progress.goes_on(self._client.connection)

    async def ready(self) -> None:
        """Subscribe to a fresh inbox, so that answers to an older connection's messages never match new ones."""
        if self._unanswered and not (self._is_heard or self._broken):
            self._client.note_silence()
        self._broken, self._is_heard = "", False
        if not self._client.is_established:
            raise UpstreamUnavailable("the connection to the region's servers is down")
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        self.give_up()
        self._answers = []
        self._unanswered, self._denied = {}, set()
        self._inbox = self._client.new_inbox()
        try:
            self._subscription = await self._client.subscribe(
                f"{self._inbox}.*", cb=self._receive, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        except nats.errors.Error as error:
            raise UpstreamUnavailable(f"cannot listen for acknowledgements: {error}") from error
        if self._fence is not None:
            await self._fence.find_places()

    async def send(self, shipment: Shipment) -> None:
        if self._broken:
            raise UpstreamUnavailable(self._broken)
        if self._fence is not None and shipment.lane is Lane.ADVISORIES:
            shipment = self._fence.placed(shipment)
        await self._send(shipment)

    async def _send(self, shipment: Shipment) -> None:
        try:
            parts = self._frames(shipment)
        except MessageTooLarge as error:
            # A server closes the connection of a client that sends more.
            if shipment.form is Form.SINGLE and not self._has_asked:
                self._begin(self._send_or_not(shipment), "ask for max_payload")
                return
            parts = self._framed_shorter(shipment) if shipment.form is Form.SINGLE else []
            if not parts:
                outcome = Outcome.TOO_LARGE if shipment.form in (Form.SINGLE, Form.QUESTION) else Outcome.REFUSED
                self._answers.append(Answer(shipment.number, outcome, reason=str(error), limit=SizeLimit.MAX_PAYLOAD))
                self._arrived.set()
                return
        self._unanswered[shipment.number] = shipment
        try:
            if self._client.pending_data_size > BACKLOG_LIMIT:
                # An advisory cannot overtake bytes that wait in the client.
                await self._client.drained()
            await self._client.publish_framed(parts)
        except (nats.errors.Error, OSError) as error:
            raise UpstreamUnavailable(f"cannot publish: {error}") from error

    def _begin(self, question: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(question, name=name)
        self._questions.add(task)
        task.add_done_callback(self._questions.discard)

    def _frames(self, shipment: Shipment) -> list[bytes]:
        # Inboxes are drawn: no other client's batch has this name.
        batch_id = f"{self._inbox.rpartition('.')[2]}.{shipment.number}"
        return frames_of(shipment, f"{self._inbox}.{shipment.number}", batch_id, self._client.max_payload)

    def _framed_shorter(self, shipment: Shipment) -> list[bytes]:
        """Return the message without as few headers as necessary; nothing if it is still too large."""
        for row in shorter_forms(shipment.rows[0]):
            with contextlib.suppress(MessageTooLarge):
                return self._frames(msgspec.structs.replace(shipment, rows=(row,)))
        return []

    async def _send_or_not(self, shipment: Shipment) -> None:
        """Ask the server for its limit, then publish or answer; other shipments do not wait meanwhile."""
        await self.ask_max_payload()
        await self._send_later(shipment)

    async def _settle(self, fence: NameFence, shipment: Shipment) -> None:
        """Read why a watermark was refused; answer, or send it again."""
        settled = await fence.settle(shipment)
        if isinstance(settled, Shipment):
            await self._send_later(settled)
        elif settled is not None:
            self._answers.append(Answer(shipment.number, Outcome.STORED, settled))
            self._arrived.set()

    async def _send_later(self, shipment: Shipment) -> None:
        try:
            await self._send(shipment)
        except UpstreamUnavailable as error:
            self.break_off(str(error))

    async def answers(self, patience: float) -> Sequence[Answer]:
        if not self._answers and not self._broken:
            self._arrived.clear()
            await wait_for_event(self._arrived, patience)
        if self._broken and not self._answers:
            raise UpstreamUnavailable(self._broken)
        answers, self._answers = self._answers, []
        return answers

    async def _receive(self, message: Msg) -> None:
        inbox, _, number = message.subject.rpartition(".")
        if inbox != self._inbox:
            return
        if not self._is_heard:
            self._is_heard = True
            self._client.note_answer()
        shipment = self._unanswered.pop(int(number), None)
        if shipment is None:
            return
        if not message.data and tells_of_nobody(message):
            answer = Answer(shipment.number, Outcome.REFUSED, reason=self._why_unanswered(shipment.rows[-1]))
        else:
            answer = answer_to(shipment.number, shipment.form, message.data)
            if self._fence is not None and shipment.lane is Lane.ADVISORIES:
                if answer.outcome is Outcome.MISPLACED and shipment.behind is not None:
                    self._begin(self._settle(self._fence, shipment), "read the last watermark")
                    return
                if answer.outcome is Outcome.STORED:
                    self._fence.note_stored(shipment, answer)
        self._answers.append(answer)
        self._arrived.set()

    def _why_unanswered(self, row: OutboxRow) -> str:
        """Return why no stream answers such a row, as far as is known; ask again every ``ASK_EVERY`` seconds."""
        kind, now = (row.block, row.lane, row.is_watermark), asyncio.get_running_loop().time()
        if now - self._explained_at.get(kind, float("-inf")) >= ASK_EVERY:
            self._explained_at[kind] = now
            self._begin(self._find_cause(kind, row.subject), "why no stream answers")
        return self._causes.get(kind, NO_STREAM_ANSWERS)

    async def _find_cause(self, kind: _Kind, subject: str) -> None:
        # Of two simultaneous questions, one would miss the denial.
        async with self._explaining:
            cause = await explain_unanswered(QuietAsk(self._client), subject, self._domain, self._user)
        self._causes[kind] = cause.text


def _goes_to(subject: str, shipment: Shipment) -> bool:
    """Return True if a message of the shipment goes to a subject, in small letters as servers write it in a denial."""
    return any(row.subject.lower() == subject for row in shipment.rows)

"""Publish shipments to the region's JetStream, pipelined, and match the answers by their reply subjects."""

import asyncio
import contextlib
import re
from collections.abc import Sequence

import nats.errors
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from edge_agent.core.shipment import Answer, Form, Outcome, Shipment
from edge_agent.ports import UpstreamUnavailable
from edge_agent.upstream_protocol import MessageTooLarge, answer_to, framed
from shared.link_progress import LinkProgress
from shared.nats_client import EdgeClient

BACKLOG_LIMIT = 256 << 10
_NO_RESPONDERS = "503"
_DENIED_PUBLISH = re.compile(r'permissions violation for publish to "(.+)"', re.IGNORECASE)


class JetStreamUpstream:
    """The region's servers on an open connection."""

    def __init__(self, client: EdgeClient) -> None:
        self._client = client
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._unanswered: dict[int, Shipment] = {}
        self._denied: set[str] = set()
        self._answers: list[Answer] = []
        self._arrived = asyncio.Event()
        self._broken = ""
        self._progress = LinkProgress()

    def break_off(self, reason: str) -> None:
        """Let the next call raise UpstreamUnavailable: the connection has changed, publishes may be lost."""
        self._broken = self._broken or reason
        self._arrived.set()

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation that a publish has caused: a server says it in place of the answer."""
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

    def poke(self) -> None:
        """Let answers() return: there is something to send."""
        self._arrived.set()

    def takes_more(self) -> bool:
        """Tell whether the link has taken bytes since the last call, and has more to take."""
        return self._progress.goes_on(self._client.connection)

    async def ready(self) -> None:
        """Listen on a fresh inbox, so that answers to what an older connection sent are never taken for new ones."""
        self._broken = ""
        if not self._client.is_established:
            raise UpstreamUnavailable("the connection to the region's servers is down")
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        self._answers = []
        self._unanswered, self._denied = {}, set()
        self._inbox = self._client.new_inbox()
        try:
            self._subscription = await self._client.subscribe(
                f"{self._inbox}.*", cb=self._receive, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        except nats.errors.Error as error:
            raise UpstreamUnavailable(f"cannot listen for acknowledgements: {error}") from error

    async def send(self, shipment: Shipment) -> None:
        """Publish without waiting for the answer. One that no server takes is answered at once."""
        if self._broken:
            raise UpstreamUnavailable(self._broken)
        # Inboxes are drawn: no other client's batch has this name.
        batch_id = f"{self._inbox.rpartition('.')[2]}.{shipment.number}"
        try:
            parts = framed(shipment, f"{self._inbox}.{shipment.number}", batch_id, self._client.max_payload)
        except MessageTooLarge as error:
            # A server ends the connection of a client that tries.
            outcome = Outcome.TOO_LARGE if shipment.form is Form.SINGLE else Outcome.REFUSED
            self._answers.append(Answer(shipment.number, outcome, reason=str(error)))
            self._arrived.set()
            return
        self._unanswered[shipment.number] = shipment
        try:
            if self._client.pending_data_size > BACKLOG_LIMIT:
                # What waits in the client cannot be overtaken by an advisory.
                await self._client.drained()
            await self._client.publish_framed(parts)
        except (nats.errors.Error, OSError) as error:
            raise UpstreamUnavailable(f"cannot publish: {error}") from error

    async def answers(self, patience: float) -> Sequence[Answer]:
        """Give what was answered since the last call; none if none came within ``patience`` seconds or poke()."""
        if not self._answers and not self._broken:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._arrived.wait()
        if self._broken and not self._answers:
            raise UpstreamUnavailable(self._broken)
        answers, self._answers = self._answers, []
        return answers

    async def _receive(self, message: Msg) -> None:
        inbox, _, number = message.subject.rpartition(".")
        if inbox != self._inbox:
            return
        shipment = self._unanswered.pop(int(number), None)
        if shipment is not None:
            self._answers.append(_answer(shipment.number, shipment.form, message))
            self._arrived.set()


def _goes_to(subject: str, shipment: Shipment) -> bool:
    """Tell whether a message of it goes to a subject, given as servers write it in a denial: in small letters."""
    return any(row.subject.lower() == subject for row in shipment.rows)


def _answer(number: int, form: Form, message: Msg) -> Answer:
    if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
        return Answer(number, Outcome.REFUSED, reason="no stream of the region listens there")
    return answer_to(number, form, message.data)

"""Publish outbox rows to the region's JetStream, pipelined, and match the answers by their reply subjects."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from edge_agent.core.outgoing import Lane, OutboxRow
from edge_agent.ports import Acknowledgement, UpstreamUnavailable

BACKLOG_LIMIT = 256 << 10
FLUSH_DEADLINE = 10
MESSAGE_TOO_LARGE = 10054
_NO_RESPONDERS = "503"


class _Failure(msgspec.Struct):
    err_code: int = 0
    description: str = ""


class _PubAck(msgspec.Struct):
    stream: str = ""
    error: _Failure | None = None


_decoder = msgspec.json.Decoder(_PubAck)


class JetStreamUpstream:
    """The region's servers on an open connection."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._subscription: Subscription | None = None
        self._inbox = ""
        self._answers: list[Acknowledgement] = []
        self._arrived = asyncio.Event()
        self._broken = ""

    def break_off(self, reason: str) -> None:
        """Let the next call raise UpstreamUnavailable: the connection has changed, publishes may be lost."""
        self._broken = self._broken or reason
        self._arrived.set()

    def takes_denial(self, _reason: str) -> bool:
        """Leave every permission violation to break_off(): whatever may not be published waits."""
        return False

    def poke(self) -> None:
        """Let acknowledgements() return: there is something to send."""
        self._arrived.set()

    async def ready(self) -> None:
        """Listen on a fresh inbox, so that answers to what an older connection sent are never taken for new ones."""
        self._broken = ""
        if not self._client.is_connected:
            raise UpstreamUnavailable("the connection to the region's servers is down")
        if self._subscription is not None:
            await self._subscription.unsubscribe()
        self._answers = []
        self._inbox = self._client.new_inbox()
        try:
            self._subscription = await self._client.subscribe(
                f"{self._inbox}.*.*", cb=self._receive, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        except nats.errors.Error as error:
            raise UpstreamUnavailable(f"cannot listen for acknowledgements: {error}") from error

    async def publish(self, row: OutboxRow) -> None:
        """Send a row without waiting for its acknowledgement; one that no server takes is refused for good."""
        if self._broken:
            raise UpstreamUnavailable(self._broken)
        size = len(row.payload) + _header_size(row.headers)
        if size > self._client.max_payload:
            # A server ends the connection of a client that tries.
            refused = f"{size} bytes are more than the region's servers take"
            self._answers.append(Acknowledgement(row.lane, row.row_id, refused, is_final=True))
            self._arrived.set()
            return
        try:
            if self._client.pending_data_size > BACKLOG_LIMIT:
                # What waits in the client cannot be overtaken by an advisory.
                await self._client.flush(FLUSH_DEADLINE)
            await self._client.publish(
                row.subject, row.payload, reply=f"{self._inbox}.{row.lane:d}.{row.row_id}", headers=dict(row.headers)
            )
        except (nats.errors.Error, OSError) as error:
            raise UpstreamUnavailable(f"cannot publish: {error}") from error

    async def acknowledgements(self, patience: float) -> Sequence[Acknowledgement]:
        """Give what was answered since the last call; none if none came within ``patience`` seconds or poke()."""
        if not self._answers and not self._broken:
            self._arrived.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._arrived.wait()
        if self._broken:
            raise UpstreamUnavailable(self._broken)
        answers, self._answers = self._answers, []
        return answers

    async def _receive(self, message: Msg) -> None:
        inbox, lane, row_id = message.subject.rsplit(".", 2)
        if inbox == self._inbox:
            self._answers.append(_answer(Lane(int(lane)), int(row_id), message))
            self._arrived.set()


def _header_size(headers: Mapping[str, str]) -> int:
    """Count the bytes that headers take on the wire, first line and end included."""
    return sum(len(name) + len(value.encode()) + 4 for name, value in headers.items()) + 12


def _answer(lane: Lane, row_id: int, message: Msg) -> Acknowledgement:
    if not message.data and (message.headers or {}).get("Status") == _NO_RESPONDERS:
        return Acknowledgement(lane, row_id, "no stream of the region listens there")
    try:
        reply = _decoder.decode(message.data)
    except msgspec.MsgspecError as error:
        return Acknowledgement(lane, row_id, f"not an acknowledgement: {error}")
    if reply.error is not None:
        is_final = reply.error.err_code == MESSAGE_TOO_LARGE
        return Acknowledgement(lane, row_id, reply.error.description or str(reply.error.err_code), is_final)
    if not reply.stream:
        return Acknowledgement(lane, row_id, "the answer names no stream: it was not stored")
    return Acknowledgement(lane, row_id)

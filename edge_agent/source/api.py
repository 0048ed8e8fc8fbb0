"""JetStream API requests for one stream and one consumer: facts, reset, pulls, start positions.

Raw requests: nats-py supports neither CONSUMER.RESET nor the server's clock in replies, and rounds instants through a
float.
"""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import nats.errors
from nats.aio.client import Client

from edge_agent.core.stream_past import PastChange, StreamFacts, is_forgotten
from edge_agent.source.consumer import WORK_QUEUE, ConsumerInfo, SourceAddress, creation, unsuitable
from edge_agent.source.port import SourceUnavailable
from edge_agent.source.stream_facts import INTEREST, StreamInfo
from shared.identifiers import SourcePosition
from shared.instants import format_instant
from shared.nats.jetstream_api import (
    NO_SUCH_CONSUMER,
    ApiError,
    RequestFailed,
    api_prefix,
    request_json,
)
from shared.nats.server_version import FINDS_BY_TIME, RESETS_CONSUMERS, is_older, release_of, unusable
from shared.nats.stream_messages import StoredMessage, get_message

log = logging.getLogger("muster.agent")

T = TypeVar("T")

REQUEST_DEADLINE = 5.0
_NANOSECONDS = 1_000_000_000


def resets_consumers(client: Client) -> bool:
    """Return True if the connected server supports CONSUMER.RESET; an older one leaves it unanswered."""
    return not is_older(client, RESETS_CONSUMERS)


class SourceApi:
    """The API of one stream's domain, for one durable consumer."""

    def __init__(
        self, client: Client, address: SourceAddress, resets: Callable[[Client], bool] = resets_consumers
    ) -> None:
        self._resets = resets
        self._client = client
        self.address = address
        self._prefix = api_prefix(address.domain)
        self._stream = address.stream
        self._consumer = address.consumer

    async def facts(self) -> StreamFacts:
        info = await self._info()
        if not self.address.filter_subject:
            return info.facts
        # Filtered messages leave holes too.
        return msgspec.structs.replace(info.facts, shows_holes=info.config.deletes_singly, subject_count=0)

    async def consumer_info(self) -> ConsumerInfo:
        """Return the consumer's progress; raise SourceUnavailable if its configuration has become unsuitable."""
        info = await self._request(f"CONSUMER.INFO.{self._stream}.{self._consumer}", None, ConsumerInfo)
        if problem := unsuitable(info, self.address):
            raise SourceUnavailable(problem)
        return info

    async def ensure_consumer(self) -> ConsumerInfo:
        """Return the durable consumer, created if it is missing and we may; raise SourceUnavailable if unsuitable."""
        try:
            info = await self._ask(f"CONSUMER.INFO.{self._stream}.{self._consumer}", None, ConsumerInfo)
        except ApiError as error:
            if error.err_code != NO_SUCH_CONSUMER:
                raise self._unavailable(error) from error
            if not self.address.creates_consumer:
                raise SourceUnavailable(
                    f"consumer {self._consumer} of stream {self._stream} does not exist and create_consumer is false: "
                    "create it (durable, pull, ack policy all) or let the agent"
                ) from error
            info = await self._create_consumer((await self._info()).config.retention)
        problem = unsuitable(info, self.address)
        if self.address.is_shared and (await self._info()).config.retention == WORK_QUEUE:
            problem = (
                f"stream {self._stream} is a work queue: a message read by one member of a pair is gone for the other; "
                "take [pair] out of the settings, or give the stream another retention"
            )
        if problem:
            raise SourceUnavailable(problem)
        return info

    async def is_forgotten(self, position: SourcePosition, info: ConsumerInfo, facts: StreamFacts) -> bool:
        """Return True, and log it, if more was read through the consumer before its reset than ``position`` shows.

        A consumer that acknowledges each message also counts those it passed over; a pair's log has its own epochs.
        """
        floor = info.ack_floor.stream_seq
        if not info.delivered.consumer_seq or info.acknowledges_each or self.address.is_shared:
            return False
        if not is_forgotten(position, floor, facts) or not await self._still_holds(floor):
            return False
        log.warning(
            "consumer %s of stream %s was acknowledged through %d, and the store has read through %d: an older copy of "
            "the store was put back, or somebody else reads with this consumer; a new epoch begins",
            self._consumer,
            self._stream,
            floor,
            position.sequence,
        )
        return True

    async def _still_holds(self, sequence: int) -> bool:
        """Return True if the stream holds a message: deleted ones, and all before them, count as acknowledged."""
        try:
            return await self._sequence_of({"seq": sequence}) == sequence
        except SourceUnavailable:
            # Not every agent is permitted to ask.
            return False

    async def reset(self, sequence: int) -> int:
        """Make the consumer deliver from ``sequence`` on, its own sequence from 1; return the number of messages."""
        if not self._resets(self._client):
            return await self._recreate(sequence)
        subject = f"CONSUMER.RESET.{self._stream}.{self._consumer}"
        return (await self._request(subject, {"seq": sequence}, ConsumerInfo)).num_pending

    async def _recreate(self, sequence: int) -> int:
        """Replace CONSUMER.RESET on servers before 2.14: delete the consumer and create it at ``sequence``."""
        why = f"this server cannot reset consumer {self._consumer} of stream {self._stream}, 2.14 can"
        if not self.address.creates_consumer:
            raise SourceUnavailable(f"{why}: upgrade it, or let create_consumer be true")
        retention = (await self._info()).config.retention
        if retention == INTEREST:
            raise SourceUnavailable(f"{why}; without the consumer, the stream would drop what was not read: upgrade it")
        await self._request(f"CONSUMER.DELETE.{self._stream}.{self._consumer}", None, Any)
        # A work queue allows no other start than its first message.
        start = {} if retention == WORK_QUEUE else {"deliver_policy": "by_start_sequence", "opt_start_seq": sequence}
        return (await self._create_consumer(retention, **start)).num_pending

    @property
    def message_subject(self) -> str:
        return f"{self._prefix}.STREAM.MSG.GET.{self._stream}"

    async def next_behind(self, sequence: int) -> int | None:
        """Return the stream leader's first message behind a sequence that passes the filter; None if there is none."""
        return await self._sequence_of({"seq": sequence + 1, "next_by_subj": self.address.filter_subject or ">"})

    async def _info(self) -> StreamInfo:
        if why := unusable(release_of(self._client)):
            raise SourceUnavailable(why)
        info = await self._request(f"STREAM.INFO.{self._stream}", None, StreamInfo)
        if info.cluster.is_leaderless:
            raise SourceUnavailable(f"stream {self._stream} has no leader among the servers of its cluster")
        return info

    async def pull(self, inbox: str, messages: int, size: int, expires: float, heartbeat: float) -> None:
        """Request the next messages on ``inbox``; ``size`` in bytes, ``expires`` and ``heartbeat`` in seconds."""
        request = {
            "batch": messages,
            "max_bytes": size,
            "expires": int(expires * _NANOSECONDS),
            "idle_heartbeat": int(heartbeat * _NANOSECONDS),
        }
        subject = f"{self._prefix}.CONSUMER.MSG.NEXT.{self._stream}.{self._consumer}"
        try:
            await self._client.publish(subject, msgspec.json.encode(request), reply=inbox)
        except nats.errors.Error as error:
            raise SourceUnavailable(f"cannot ask for messages: {error}") from error

    async def resolve_start(self) -> tuple[StreamFacts, int]:
        facts = await self.facts()
        before_first = max(facts.first_sequence - 1, 0)
        match self.address.start.kind:
            case "new":
                sequence = facts.last_sequence
            case "sequence":
                sequence = max(self.address.start.value - 1, before_first)
                if sequence > facts.last_sequence:
                    raise SourceUnavailable(
                        f"start is sequence {sequence + 1}, but stream {self._stream} ends at {facts.last_sequence}: "
                        "waiting for it"
                    )
            case "time":
                sequence = await self._sequence_before(self.address.start.value, facts)
            case "delta":
                sequence = await self._sequence_before(facts.server_at - self.address.start.value, facts)
            case _:
                sequence = before_first
        return facts, sequence

    async def sequence_after_change(self, change: PastChange, last_stored_at: int, facts: StreamFacts) -> int:
        """Return the sequence behind which a stream with a changed past is to be read.

        A restored copy still holds messages that were read: reading resumes at the first message stored later than the
        last one read. A recreated stream holds none of them, unless it is a mirror, which keeps times.
        """
        is_recreated = change is PastChange.RECREATED and not 0 < facts.first_stored_at < facts.created_at
        if is_recreated or not last_stored_at:
            return max(facts.first_sequence - 1, 0)
        unread_at = last_stored_at + 1
        return await self._sequence_before(
            min(unread_at, facts.created_at) if change is PastChange.RECREATED else unread_at, facts
        )

    async def _sequence_before(self, at: int, facts: StreamFacts) -> int:
        """Return the last sequence before the first message stored at an instant or later."""
        if is_older(self._client, FINDS_BY_TIME):
            return await self._narrow_down(at, facts)
        found = await self._sequence_of({"start_time": format_instant(at)})
        return facts.last_sequence if found is None else found - 1

    async def _narrow_down(self, at: int, facts: StreamFacts) -> int:
        """Replace ``start_time`` on servers before 2.11 by a binary search."""
        first, behind_last = facts.first_sequence, facts.last_sequence + 1
        while first < behind_last:
            middle = (first + behind_last) // 2
            found = await self._message_of({"seq": middle, "next_by_subj": ">"})
            if found is None or found.time >= at:
                behind_last = middle
            else:
                first = found.seq + 1
        return first - 1

    async def _sequence_of(self, wanted: dict[str, object]) -> int | None:
        found = await self._message_of(wanted)
        return None if found is None else found.seq

    async def _message_of(self, wanted: dict[str, object]) -> StoredMessage | None:
        try:
            return await get_message(self._client, self._stream, wanted, api=self._prefix, deadline=REQUEST_DEADLINE)
        except RequestFailed as error:
            raise SourceUnavailable(str(error)) from error
        except ApiError as error:
            raise self._unavailable(error) from error

    async def _create_consumer(self, retention: str, **start: object) -> ConsumerInfo:
        body = creation(self.address, retention, **start)
        return await self._request(f"CONSUMER.CREATE.{self._stream}.{self._consumer}", body, ConsumerInfo)

    async def _request(self, subject: str, body: object, model: type[T]) -> T:
        try:
            return await self._ask(subject, body, model)
        except ApiError as error:
            raise self._unavailable(error) from error

    async def _ask(self, subject: str, body: object, model: type[T]) -> T:
        try:
            return await request_json(self._client, f"{self._prefix}.{subject}", body, model, deadline=REQUEST_DEADLINE)
        except RequestFailed as error:
            raise SourceUnavailable(str(error)) from error

    def _unavailable(self, error: ApiError) -> SourceUnavailable:
        return SourceUnavailable(f"stream {self._stream}: {error}")

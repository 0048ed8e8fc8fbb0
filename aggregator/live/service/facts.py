"""Find the last sample of a sender's registrations that the hub's archive holds, when somebody asks for it.

Nothing is kept: the subjects of a block's registrations name no sender, so the headers of the last ones are looked
through, within bounds, and the one that is wanted is got whole.
"""

import asyncio
from collections.abc import Iterator

from aggregator.archive.consumer import NOTHING_LEFT, Messages, StreamConsumer
from aggregator.archive.direct_gets import DirectGets
from aggregator.config import Reading
from aggregator.live.api import SenderFacts
from shared.identifiers import BlockId
from shared.instants import HOUR, format_instant
from shared.nats.connection import connect
from shared.nats.dispatch import DirectClient
from shared.nats.jetstream_api import api_prefix
from shared.nats.settings import ConnectionSettings
from shared.nats.stream_messages import StoredMessage, get_message
from shared.subjects import registration_subject
from shared.wire import REASON_HEADER, SENDER_HEADER, sender_header

DEADLINE = 15.0
LOOKS_BACK = (HOUR, 26 * HOUR)
"""So long before a sender was last heard its last sample is looked for: most are taken every hour, or every day."""
MOST_BATCHES = 3
"""So many batches (10,000 headers each) are looked through for one look."""
MOST_TEXT = 64 << 10
"""So much of a sample is given, in bytes."""
MOST_AT_ONCE = 2


class FactsFinder:
    """Looks through one archive, for few at a time."""

    def __init__(self, hub: ConnectionSettings, stream: str, reading: Reading) -> None:
        self._hub, self._stream, self._reading = hub, stream, reading
        self._api = api_prefix(hub.domain)
        self._free = asyncio.Semaphore(MOST_AT_ONCE)

    async def last(self, block_id: BlockId, sender_id: str, about: int) -> SenderFacts | None:
        """Give the last sample of a sender stored before an instant, or soon after it; None where none is found.

        Raise TimeoutError, ConnectFailed, ApiError, RequestFailed.
        """
        subject = registration_subject(block_id)
        async with asyncio.timeout(DEADLINE), self._free:
            client = await connect(self._hub, name="muster-live facts", deadline=DEADLINE)
            async with client:
                for looks_back in LOOKS_BACK:
                    found = await self._look(client, subject, sender_id, about - looks_back)
                    if found is not None and (facts := await self._got(client, *found)) is not None:
                        return facts
        return None

    async def _look(self, client: DirectClient, subject: str, sender_id: str, since: int) -> tuple[int, str] | None:
        first = await self._message(client, start_time=format_instant(max(since, 0)), next_by_subj=subject)
        if first is None:
            return None
        following, found = first.seq, None
        async with self._batches(client, subject) as batches:
            for _ in range(MOST_BATCHES):
                messages, wrong = await batches.fetch(following, 1 << 40)
                if messages is not None:
                    found = next(_samples(messages, subject, sender_id), found)
                    following = int(messages.sequences[-1]) + 1
                if messages is None or wrong == NOTHING_LEFT:
                    break
        return found

    def _batches(self, client: DirectClient, subject: str) -> StreamConsumer | DirectGets:
        if self._reading == "direct":
            return DirectGets(client, self._api, self._stream)
        return StreamConsumer(client, self._api, self._stream, DEADLINE, [subject], headers_only=True)

    async def _got(self, client: DirectClient, sequence: int, reason: str) -> SenderFacts | None:
        got = await self._message(client, seq=sequence)
        if got is None:
            return None
        text = got.data[:MOST_TEXT].decode(errors="replace")
        return SenderFacts(got.seq, got.time, reason, len(got.data), text)

    async def _message(self, client: DirectClient, **which: object) -> StoredMessage | None:
        return await get_message(client, self._stream, which, api=self._api, deadline=DEADLINE)


def _samples(messages: Messages, subject: str, sender_id: str) -> Iterator[tuple[int, str]]:
    """Give the samples of a sender among messages, the last first: where each stands, and why it was taken."""
    wanted, on_subject = f"\r\n{SENDER_HEADER}: {sender_header(sender_id)}\r\n".encode(), subject.encode()
    for place in range(len(messages.headers) - 1, -1, -1):
        headers = messages.headers[place]
        if wanted in headers and messages.subjects[place] == on_subject:
            _, _, rest = headers.partition(f"\r\n{REASON_HEADER}: ".encode())
            yield int(messages.sequences[place]), rest.partition(b"\r\n")[0].decode(errors="replace")[:32]

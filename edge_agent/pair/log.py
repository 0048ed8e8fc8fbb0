"""The log of a redundant pair in a JetStream stream: append, read in order, wait for entries.

It records the leader, and the inputs of each of its commits other than the site's stream. An entry is appended only
behind the last one that its writer has read: a member that has missed an entry, such as a former leader that was
suspended, cannot append.
"""

import asyncio
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from itertools import takewhile
from typing import Any

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import RecordedInput
from edge_agent.delivery.region_protocol import BEHIND_HEADER
from shared.decoding import Decoder, WireError
from shared.nats.jetstream_api import (
    NO_STREAM_ANSWERS,
    NO_SUCH_STREAM,
    ApiError,
    Failure,
    RequestFailed,
    api_prefix,
    decode_pub_ack,
    request,
    request_json,
)
from shared.nats.stream_messages import get_message
from shared.tasks import wait_for_event

LARGE = 16 << 10
LARGEST = 256 << 20
"""Bytes of an entry when it is unpacked: zlib can pack a thousand to one."""


class EntryKind(StrEnum):
    """Kind of an entry.

    LEADS: from here on its writer leads. RENEWED: it still does. RESIGNED: it has ended in order. BEGUN: a block begins
    in ``state``. DECIDED: a commit's recorded inputs, and the state after it. PROVED: as DECIDED, but only time
    advanced.
    """

    LEADS = "leads"
    RENEWED = "renewed"
    RESIGNED = "resigned"
    BEGUN = "begun"
    DECIDED = "decided"
    PROVED = "proved"


class Writer(msgspec.Struct, frozen=True):
    """The member and its run that write an entry.

    ``key`` is the fingerprint of its secret for message ids, ``settings`` are those of each block's decisive settings.
    """

    member: str
    boot_id: str
    key: str
    settings: dict[str, str]


Delivered = dict[str, dict[str, int]]
"""By block and lane: the entry up to which everything decided has been acknowledged by the region."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="protocol", tag="muster:pair:1"):
    """One entry.

    ``generation`` names the log since its first entry, which has ``founds``: ``"empty"`` if the member's store was
    empty, ``"history"`` if it continues its own. ``recorded`` are the recorded inputs of one commit of ``block``,
    ``oldest_forwarded`` the instant before which messages were too old to be forwarded.
    """

    kind: EntryKind
    generation: str
    writer: Writer
    founds: str = ""
    block: str = ""
    state: BlockState | None = None
    recorded: tuple[RecordedInput, ...] = ()
    oldest_forwarded: int = 0
    delivered: Delivered = {}


def encode_entry(entry: Entry) -> bytes:
    """Return an entry as JSON, compressed if it is large: one commit may have clamped thousands of messages."""
    body = msgspec.json.encode(entry)
    return body if len(body) < LARGE else zlib.compress(body, 1)


_entry = Decoder(Entry, "an entry that this agent reads")


def decode_entry(body: bytes) -> Entry:
    """Return the entry; raise WireError if this agent cannot read the body."""
    if body.startswith(b"{"):
        return _entry(body)
    unpacking = zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(body, LARGEST)
    except zlib.error as error:
        raise WireError(f"not an entry that this agent reads: {error}") from error
    if not unpacking.eof:
        raise WireError(f"not an entry that this agent reads: it is cut off, or larger than {LARGEST:,} bytes")
    return _entry(unpacked)


class LogRecord(msgspec.Struct, frozen=True):
    """An entry with its place in the log; ``stored_at`` by the server's clock, in microseconds."""

    sequence: int
    entry: Entry
    stored_at: int


DEADLINE = 2.0
MAX_BYTES = 64 << 20
"""Hours of a busy site, days of a quiet one: a member that was away for longer copies the other's store."""

_WRONG_LAST_SEQUENCE = (10071, 10164)
_STREAM_HEADER = "Nats-Expected-Stream"


class LogUnavailable(Exception):
    """The log cannot be reached or did not answer, for the reason in the text; an append may have succeeded."""


class NoLog(LogUnavailable):
    """The log's stream does not exist."""


class OtherKey(Exception):
    """The stream is the log of a pair with another secret."""


class LogOutrun(Exception):
    """Nothing was appended: the log has entries that the writer has not read."""


class _LogConfig(msgspec.Struct):
    subjects: tuple[str, ...] = ()


class _LogInfo(msgspec.Struct):
    config: _LogConfig


class LogAddress(msgspec.Struct, frozen=True):
    """Address of a site's log: the stream, its domain, and the replicas with which it is created.

    Only the pair has ``secret``. A server stores its answer to a publish under any subject that the publisher names as
    the reply, which no permission forbids: a node that could name the log's subject would write into it.
    """

    region: str
    site: str
    secret: str
    domain: str = ""
    replicas: int = 1

    @property
    def stream(self) -> str:
        return f"MUSTER_PAIR_{self.site}"

    def subject(self, what: str = "log") -> str:
        """Return the log's subject, or another secret one: ``copy``."""
        return f"muster.pair.{self.region}.{self.site}.{self.secret}.{what}"

    @property
    def announcements(self) -> str:
        """The subject on which members announce themselves, also to a member with another secret."""
        return f"muster.pair.{self.region}.{self.site}.here"


class PairLog:
    """The log, on an open connection. Every method may raise LogUnavailable."""

    def __init__(self, client: Client, address: LogAddress) -> None:
        self._client = client
        self._address = address
        self._api = api_prefix(address.domain)
        self._arrived = asyncio.Event()
        self._is_open = False

    async def look(self) -> None:
        """Raise NoLog if there is no stream, OtherKey if it is another pair's."""
        stream = self._address.stream
        try:
            info = await self._ask(f"STREAM.INFO.{stream}", None, _LogInfo)
        except ApiError as error:
            kind = NoLog if error.err_code == NO_SUCH_STREAM else LogUnavailable
            raise kind(f"stream {stream}: {error}") from error
        if self._address.subject() not in info.config.subjects:
            raise OtherKey(stream)

    async def open(self) -> None:
        """Create the stream if it is missing, and subscribe to it; raise OtherKey."""
        stream, subject = self._address.stream, self._address.subject()
        config = {
            "name": stream,
            "subjects": [subject],
            "retention": "limits",
            "discard": "old",
            "max_bytes": MAX_BYTES,
            "storage": "file",
            "num_replicas": self._address.replicas,
        }
        try:
            await self.look()
        except NoLog:
            try:
                await self._ask(f"STREAM.CREATE.{stream}", config, dict[str, Any])
            except ApiError as failure:
                raise LogUnavailable(f"stream {stream} cannot be made: {failure}") from failure
        if not self._is_open:
            await self._client.subscribe(subject, cb=self._notice)
            self._is_open = True

    async def last(self) -> LogRecord | None:
        """Return the last entry; None if there is none."""
        return await self._get({"last_by_subj": self._address.subject()})

    async def next_after(self, sequence: int) -> LogRecord | None:
        """Return the first entry behind ``sequence``; None if there is none yet."""
        return await self._get({"seq": sequence + 1, "next_by_subj": self._address.subject()})

    async def entries_after(self, sequence: int, most: int) -> list[LogRecord]:
        """Return the first entries behind ``sequence``, at most ``most`` of them, in one round trip."""
        found = await asyncio.gather(*(self.next_after(sequence + number) for number in range(most)))
        return [record for record in takewhile(lambda record: record is not None, found) if record is not None]

    async def change(self, within: float) -> None:
        """Wait until an entry may have been appended, for at most ``within`` seconds."""
        await wait_for_event(self._arrived, within)
        self._arrived.clear()

    async def append(self, entry: Entry, behind: int) -> int:
        """Append behind ``behind`` (0: as the first); return the sequence; raise LogOutrun if it is not the last."""
        headers = {BEHIND_HEADER: str(behind), _STREAM_HEADER: self._address.stream}
        subject = self._address.subject()
        try:
            answer = await request(self._client, subject, encode_entry(entry), DEADLINE, headers)
            stored = decode_pub_ack(answer.data)
        except nats.errors.NoRespondersError as error:
            raise LogUnavailable(f"{subject}: {NO_STREAM_ANSWERS}") from error
        except (nats.errors.Error, TimeoutError, WireError) as error:
            raise LogUnavailable(f"{subject}: {str(error) or 'no answer'} within {DEADLINE:g} s") from error
        # A refused publish has a sequence too: 0.
        if stored.error is None and stored.seq > 0:
            return stored.seq
        failure = stored.error or Failure(description="not an answer of a stream")
        if failure.err_code in _WRONG_LAST_SEQUENCE:
            raise LogOutrun(failure.description)
        raise LogUnavailable(f"{subject}: {failure.description}")

    async def _notice(self, _message: Msg) -> None:
        # A message received here may not have been stored: it is only a reason to read the log.
        self._arrived.set()

    async def _get(self, what: dict[str, object]) -> LogRecord | None:
        stream = self._address.stream
        try:
            with self._answered():
                found = await get_message(self._client, stream, what, api=self._api, deadline=DEADLINE)
        except ApiError as error:
            kind = NoLog if error.err_code == NO_SUCH_STREAM else LogUnavailable
            raise kind(f"stream {stream}: {error}") from error
        if found is None:
            return None
        try:
            entry = decode_entry(found.data)
        except WireError as error:
            raise LogUnavailable(f"entry {found.seq} of stream {stream}: {error}") from error
        return LogRecord(found.seq, entry, found.time)

    async def _ask(self, subject: str, body: object, model: Any) -> Any:
        with self._answered():
            return await request_json(self._client, f"{self._api}.{subject}", body, model, deadline=DEADLINE)

    @contextmanager
    def _answered(self) -> Iterator[None]:
        if not self._client.is_connected:
            raise LogUnavailable("the connection to the site's servers is down")
        try:
            yield
        except RequestFailed as error:
            raise LogUnavailable(str(error)) from error

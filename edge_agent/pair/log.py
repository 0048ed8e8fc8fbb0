"""Keep a pair's log in a JetStream stream: append behind what one knows, read in order, notice that more has come.

It says who leads, and what every commit of the leader's depends on beside the site's stream. Every entry is written
behind the last one its writer knows of, or not at all: whoever has missed an entry, a former leader that was suspended
say, can write no more.
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
    """What an entry says.

    LEADS: from here on its writer leads. RENEWED: it still does. RESIGNED: it has ended in order. BEGUN: a block begins
    in ``state``. DECIDED: what a commit depends on, and the state that it leads to. PROVED: as DECIDED, but only time
    went on.
    """

    LEADS = "leads"
    RENEWED = "renewed"
    RESIGNED = "resigned"
    BEGUN = "begun"
    DECIDED = "decided"
    PROVED = "proved"


class Writer(msgspec.Struct, frozen=True):
    """Which run of which member writes.

    ``key`` is the fingerprint of its secret for message ids, ``settings`` that of what its blocks' decisions depend on.
    """

    member: str
    boot_id: str
    key: str
    settings: dict[str, str]


Delivered = dict[str, dict[str, int]]
"""By block and lane: the entry up to which everything decided has been acknowledged by the region."""


class Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="protocol", tag="muster:pair:1"):
    """One entry.

    ``generation`` names the log since it was founded, which an entry with ``founds`` did: ``"empty"`` by a member whose
    store knew nothing, ``"history"`` by one that went on from its own. ``recorded`` are the recorded inputs of one
    commit of ``block``, ``oldest_forwarded`` the instant before which messages were too old to be forwarded.
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
    """Write an entry as JSON, packed where it is large: one commit may have clamped thousands of messages."""
    body = msgspec.json.encode(entry)
    return body if len(body) < LARGE else zlib.compress(body, 1)


_entry = Decoder(Entry, "an entry that this agent reads")


def decode_entry(body: bytes) -> Entry:
    """Return the entry; raise WireError if the body is none that this agent reads."""
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
    """An entry where it stands in the log; ``stored_at`` by the server's clock, in microseconds."""

    sequence: int
    entry: Entry
    stored_at: int


DEADLINE = 2.0
MAX_BYTES = 64 << 20
"""Hours of a busy site, days of a quiet one: a member that was away for longer copies the other's store."""

_WRONG_LAST_SEQUENCE = (10071, 10164)
_STREAM_HEADER = "Nats-Expected-Stream"


class LogUnavailable(Exception):
    """The log cannot be reached, or did not answer: what was appended may be in it, or not. The text says why."""


class NoLog(LogUnavailable):
    """There is no stream for it."""


class OtherKey(Exception):
    """The stream is the log of a pair whose secret is another."""


class LogOutrun(Exception):
    """Nothing was appended: the log's end is not where the writer believed it."""


class _LogConfig(msgspec.Struct):
    subjects: tuple[str, ...] = ()


class _LogInfo(msgspec.Struct):
    config: _LogConfig


class LogAddress(msgspec.Struct, frozen=True):
    """Where a site's log is: the stream, its domain, how many servers keep it where it has to be made.

    ``secret`` is known to the pair alone. A server stores its answer to a publish under whatever subject the publisher
    names for that, which no permission forbids: a node that could name the log's would write into it.
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
        """Name the log's subject, or another that nobody else shall know: ``copy``."""
        return f"muster.pair.{self.region}.{self.site}.{self.secret}.{what}"

    @property
    def announcements(self) -> str:
        """Name the subject on which members of any secret hear each other."""
        return f"muster.pair.{self.region}.{self.site}.here"


class PairLog:
    """The log, on an open connection. Everything may raise LogUnavailable."""

    def __init__(self, client: Client, address: LogAddress) -> None:
        self._client = client
        self._address = address
        self._api = api_prefix(address.domain)
        self._arrived = asyncio.Event()
        self._is_open = False

    async def look(self) -> None:
        """Raise NoLog where there is no stream, OtherKey where it is another pair's."""
        stream = self._address.stream
        try:
            info = await self._ask(f"STREAM.INFO.{stream}", None, _LogInfo)
        except ApiError as error:
            kind = NoLog if error.err_code == NO_SUCH_STREAM else LogUnavailable
            raise kind(f"stream {stream}: {error}") from error
        if self._address.subject() not in info.config.subjects:
            raise OtherKey(stream)

    async def open(self) -> None:
        """Make the stream where there is none, and listen for what is appended; raise OtherKey."""
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
        """Give the last entry; None where there is none."""
        return await self._get({"last_by_subj": self._address.subject()})

    async def next_after(self, sequence: int) -> LogRecord | None:
        """Give the first entry behind ``sequence``; None where there is none yet."""
        return await self._get({"seq": sequence + 1, "next_by_subj": self._address.subject()})

    async def entries_after(self, sequence: int, most: int) -> list[LogRecord]:
        """Give the first entries behind ``sequence`` that are there by now, in one round trip: ``most``, if not all."""
        found = await asyncio.gather(*(self.next_after(sequence + number) for number in range(most)))
        return [record for record in takewhile(lambda record: record is not None, found) if record is not None]

    async def change(self, within: float) -> None:
        """Wait until something may have been appended, for so many seconds at most."""
        await wait_for_event(self._arrived, within)
        self._arrived.clear()

    async def append(self, entry: Entry, behind: int) -> int:
        """Append behind ``behind`` (0: as the first), give its sequence; raise LogOutrun where another is there."""
        headers = {BEHIND_HEADER: str(behind), _STREAM_HEADER: self._address.stream}
        subject = self._address.subject()
        try:
            answer = await request(self._client, subject, encode_entry(entry), DEADLINE, headers)
            stored = decode_pub_ack(answer.data)
        except nats.errors.NoRespondersError as error:
            raise LogUnavailable(f"{subject}: {NO_STREAM_ANSWERS}") from error
        except (nats.errors.Error, TimeoutError, WireError) as error:
            raise LogUnavailable(f"{subject}: {str(error) or 'no answer'} within {DEADLINE:g} s") from error
        # What is refused has a sequence, too: 0.
        if stored.error is None and stored.seq > 0:
            return stored.seq
        failure = stored.error or Failure(description="not an answer of a stream")
        if failure.err_code in _WRONG_LAST_SEQUENCE:
            raise LogOutrun(failure.description)
        raise LogUnavailable(f"{subject}: {failure.description}")

    async def _notice(self, _message: Msg) -> None:
        # What is heard may not have been stored: it only says that it is worth looking.
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

"""Read on from one sequence of a stream, a batch at a time, through a consumer of the server's that leaves nothing.

It acknowledges nothing, lives in memory and goes when nobody asks it any more: what is read twice is the same twice.
The server numbers what a consumer delivers, so that a loss on the way (a reconnect in mid-batch) shows, and it is one
stream's own: no mirror answers for it. All that is known of a message stands in the reply subject of its delivery:
nothing is added to a message's headers, as there is where messages are got one by one.

A server that is given several subjects looks at each subject of a block of its file for each message: 12 us with the
subjects of 17 sites in a block, 330 us with those of 1,000 that alternate, against 3 us where it gives all. So all is
asked for as long as most of it is wanted, of messages and of bytes, and the rest is passed over here.

Source: ADR-13 (pull requests, ``no_wait``), ADR-15 (the reply subject of a delivery).
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence, Sized
from itertools import compress
from typing import Any, NamedTuple, Self, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from nats.aio.subscription import Subscription
from pyarrow import csv

from aggregator.records.judge import cached_by_subject
from shared.nats.connection import ApiError, RequestFailed
from shared.nats.dispatch import DirectClient, Frame
from shared.nats.stream_messages import create_consumer
from shared.subjects import covers

SILENCE = 15.0
"""Seconds without a message after which a batch is given up, and asked for again from where it broke off."""
UNUSED_SECONDS = 30
"""After which the server forgets a consumer that nobody closed."""
SPREADING = 0.1
"""Seconds for a new consumer to become known in all of a cluster: with three servers, 4 of 180 were not at once."""
BATCH_MESSAGES = 10_000
BATCH_BYTES = 8 << 20
CHOSEN_MESSAGES = 2_000
"""In a batch that the server chooses by several subjects, for the sake of the time that it may take."""
NOTHING_LEFT = "nothing is left"
LOST = "messages were lost on the way"

Numbers: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]

COMPLETE = ""
_STATUS = re.compile(rb"NATS/1\.0 (\d{3}) ?([^\r]*)")
_NO_MORE = {"404": NOTHING_LEFT, "408": NOTHING_LEFT}
_NOBODY = "503 nobody answers"
_TOO_LARGE = "409 Message Size Exceeds MaxBytes"
_BETWEEN_DOTS = csv.ParseOptions(delimiter=".", quote_char=False, escape_char=False)


class Messages(NamedTuple):
    """Messages of a stream in their order, at least one: a column for each thing known of them.

    ``archived_at`` is the server's time in microseconds. ``headers`` are the publisher's, in one block, empty for none.
    """

    sequences: Numbers
    subjects: Sequence[bytes]
    archived_at: Numbers
    headers: Sequence[bytes]
    payloads: Sequence[bytes]

    def part(self, begin: int, end: int) -> "Messages":
        """Give those from the index ``begin`` on, before ``end``."""
        return self._each(lambda column: column[begin:end])

    def at(self, indices: Sequence[int]) -> "Messages":
        """Give those at ``indices``."""
        return self._each(
            lambda column: column[indices] if isinstance(column, np.ndarray) else [column[index] for index in indices]
        )

    def _each(self, chosen: Callable[[Any], Any]) -> "Messages":
        return Messages(*map(chosen, self))


class StreamConsumer:
    """A consumer of ``stream``, made where reading begins, and anew where it broke off. A context manager.

    With ``subjects`` (none: all) it gives only what is on one of them, with ``headers_only`` no payloads.
    A batch has ``most_bytes`` at most (None: BATCH_BYTES), or one message.
    """

    def __init__(
        self,
        client: DirectClient,
        api: str,
        stream: str,
        deadline: float,
        subjects: Sequence[str] = (),
        *,
        headers_only: bool = False,
    ) -> None:
        self._client, self._api, self._stream, self._deadline = client, api, stream, deadline
        self._subjects_wanted, self._headers_only = list(subjects), headers_only
        self.most_bytes: int | None = None
        self._is_wanted = cached_by_subject(self._is_on_one)
        self._server_chooses, self._others_are_large = bool(subjects), False
        self._subscription: Subscription | None = None
        self._inbox, self._reply, self._name = b"", b"", ""
        self._requests = self._delivered = self._wanted = self._bytes_left = 0
        self._ended: asyncio.Future[str]
        self._forget()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._close()

    async def fetch(self, sequence: int, count: int) -> tuple[Messages | None, str]:
        """Ask for ``count`` messages at most, behind those that came before, the first at or after ``sequence``.

        Give those that came in an unbroken row, None for none, with what is wrong: ``NOTHING_LEFT`` where the stream
        ends here.
        """
        messages, wrong = await self._fetch(sequence, count)
        if len(self._subjects_wanted) < 2:
            return messages, wrong
        if self._server_chooses:
            if messages is not None and not self._others_are_large and self._is_dense(messages.sequences):
                await self._have_server_choose(False)
            return messages, wrong
        wanted = [] if messages is None else list(map(self._is_wanted, messages.subjects))
        count_wanted = sum(wanted)
        is_rare = 2 * count_wanted < len(wanted)
        if messages is not None and not is_rare and count_wanted < len(wanted):
            sizes = list(map(len, messages.payloads))
            self._others_are_large = 2 * sum(compress(sizes, wanted)) < sum(sizes)
        if is_rare or self._others_are_large or (wrong == NOTHING_LEFT and not wanted):
            await self._have_server_choose(True)
        if messages is None or count_wanted == len(wanted):
            return messages, wrong
        if not count_wanted:
            return await self.fetch(sequence, count)
        return messages.at([place for place, is_wanted in enumerate(wanted) if is_wanted]), wrong

    async def _have_server_choose(self, chooses: bool) -> None:
        self._server_chooses = chooses
        await self._close()

    @property
    def _most(self) -> int:
        is_slow = self._server_chooses and len(self._subjects_wanted) > 1
        return min(CHOSEN_MESSAGES, BATCH_MESSAGES) if is_slow else BATCH_MESSAGES

    def _is_dense(self, sequences: Numbers) -> bool:
        """Tell whether more seem to wait, and at least every other message of the stream is among those that came."""
        return len(sequences) >= self._most and bool(sequences[-1] - sequences[0] < 2 * len(sequences))

    def _is_on_one(self, subject: bytes) -> bool:
        text = subject.decode(errors="backslashreplace")
        return any(covers(each, text) for each in self._subjects_wanted)

    async def _fetch(self, sequence: int, count: int) -> tuple[Messages | None, str]:
        count = min(count, self._most)
        try:
            is_new = self._subscription is None
            if is_new:
                await self._open(sequence)
            messages, wrong = await self._asked(count, self.most_bytes or BATCH_BYTES)
            if is_new and wrong == _NOBODY:
                await asyncio.sleep(SPREADING)
                messages, wrong = await self._asked(count, self.most_bytes or BATCH_BYTES)
            if messages is None and wrong == _TOO_LARGE:
                messages, wrong = await self._asked(1, 0)
            if messages is not None and messages.sequences[0] < sequence:
                messages, wrong = None, LOST
        except (ApiError, RequestFailed) as error:
            messages, wrong = None, str(error)
        if messages is None or wrong not in (COMPLETE, _TOO_LARGE, NOTHING_LEFT):
            await self._close()
        return messages, wrong

    async def _open(self, sequence: int) -> None:
        inbox = self._client.new_inbox()
        self._inbox, self._delivered = b"%s." % inbox.encode(), 0
        self._subscription = await self._client.subscribe_frames(f"{inbox}.*", self._on_frames)
        config: dict[str, Any] = {
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": sequence,
            "num_replicas": 1,
            **({"filter_subjects": self._subjects_wanted} if self._server_chooses else {}),
            **({"headers_only": True} if self._headers_only else {}),
        }
        created = await create_consumer(
            self._client, self._stream, config, api=self._api, deadline=self._deadline, unused_seconds=UNUSED_SECONDS
        )
        self._name = created.name

    async def _close(self) -> None:
        """Have the server forget the consumer. Where it cannot be asked, it does so by itself."""
        subscription, name, self._subscription, self._name = self._subscription, self._name, None, ""
        if subscription is None or self._client.is_closed:
            return
        await subscription.unsubscribe()
        if name and self._client.is_connected:
            await self._client.publish(f"{self._api}.CONSUMER.DELETE.{self._stream}.{name}")

    async def _asked(self, count: int, max_bytes: int) -> tuple[Messages | None, str]:
        self._forget()
        self._wanted, self._bytes_left, self._ended = count, max_bytes, asyncio.get_running_loop().create_future()
        # The server may have more to say of a request that is served: where each has its own reply subject, that shows.
        self._requests += 1
        self._reply = b"%s%d" % (self._inbox, self._requests)
        request = {"batch": count, "no_wait": True, "max_bytes": max_bytes}
        subject = f"{self._api}.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        await self._client.publish(subject, msgspec.json.encode(request), reply=self._reply.decode())
        outcome = await outcome_of(self._ended, self._replies, self._client)
        if not self._replies:
            return None, outcome
        told = _deliveries(self._replies)
        if told is None:
            return None, LOST
        sequences, numbers, nanoseconds = told
        wanted = np.arange(self._delivered + 1, self._delivered + 1 + len(numbers))
        unbroken = len(numbers) if (numbers == wanted).all() else int((numbers != wanted).argmax())
        self._delivered += unbroken
        messages = Messages(sequences, self._subjects, nanoseconds // 1_000, self._headers, self._payloads)
        return messages.part(0, unbroken) if unbroken else None, outcome if unbroken == len(numbers) else LOST

    def _forget(self) -> None:
        self._replies, self._subjects = list[bytes](), list[bytes]()
        self._headers, self._payloads = list[bytes](), list[bytes]()

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        # Every delivery has a reply subject, what a server says itself has none.
        said = [frame for frame in frames if not frame[1] and frame[0].startswith(self._inbox)]
        if said:
            frames = [frame for frame in frames if frame[1] or not frame[0].startswith(self._inbox)]
        if frames:
            columns = self._subjects, self._replies, self._headers, self._payloads
            for column, values in zip(columns, zip(*frames, strict=True), strict=True):
                column.extend(values)
                # As the server counts; where nothing is left of what it was asked for, it ends a batch without a word.
                self._bytes_left -= sum(map(len, values))
            if len(self._replies) == self._wanted or not self._bytes_left:
                self._end(COMPLETE)
        for subject, _, header, _ in said:
            if subject == self._reply:
                self._end(status_of(header, _NO_MORE) or "an answer that is none")

    def _end(self, outcome: str) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)


def _deliveries(replies: Sequence[bytes]) -> tuple[Numbers, Numbers, Numbers] | None:
    """Read of deliveries, at least one, the stream's sequence, the consumer's and the time; None where one is none.

    ``$JS.ACK.[<domain>.<hash>.]<stream>.<consumer>.<delivered>.<sequence>.<consumer sequence>.<ns>.<pending>[.<rnd>]``

    >>> [int(number) for (number,) in _deliveries([b"$JS.ACK.A.c.1.70.7.1795352694706774538.9"])]
    [70, 7, 1795352694706774538]
    >>> [int(number) for (number,) in _deliveries([b"$JS.ACK._.Xj2hKf.A.c.1.70.7.1795352694706774538.9"])]
    [70, 7, 1795352694706774538]
    >>> [int(number) for (number,) in _deliveries([b"$JS.ACK.hub.Xj2hKf.A.c.1.70.7.1795352694706774538.9.rnd"])]
    [70, 7, 1795352694706774538]
    >>> _deliveries([b"$JS.ACK.A.c.1.70.7.1795352694706774538.9", b"$JS.ACK.A.c.1.71"]) is None
    True
    """
    text = b"\n".join(replies) + b"\n"
    begin = 5 if replies[0].count(b".") == 8 else 7
    columns = [f"f{number}" for number in range(begin, begin + 3)]
    wanted = csv.ConvertOptions(include_columns=columns, column_types=dict.fromkeys(columns, pa.int64()))
    whole = csv.ReadOptions(use_threads=False, autogenerate_column_names=True, block_size=len(text) + 1)
    try:
        found = csv.read_csv(pa.BufferReader(text), whole, _BETWEEN_DOTS, wanted)
    except (pa.ArrowException, KeyError):
        return None
    if found.num_rows != len(replies) or any(column.null_count for column in found.columns):
        return None
    # Arrow's own way to numpy loads pandas: a fifth of a second, and its memory.
    values = (column.combine_chunks().buffers()[1] for column in found.columns)
    sequences, numbers, nanoseconds = (np.frombuffer(each, np.int64, found.num_rows) for each in values)
    return sequences, numbers, nanoseconds


def status_of(header: bytes, meanings: Mapping[str, str]) -> str | None:
    r"""Read what a server says instead of a message, with what some codes mean; None where it says nothing so.

    >>> status_of(b"NATS/1.0 409 Consumer Deleted\r\n\r\n", {}), status_of(b"NATS/1.0 404 \r\n\r\n", _NO_MORE)
    ('409 Consumer Deleted', 'nothing is left')
    """
    found = _STATUS.match(header)
    if found is None:
        return None
    code, words = (part.decode(errors="replace") for part in found.groups())
    return meanings.get(code, f"{code} {words or 'nobody answers'}")


async def outcome_of(ended: asyncio.Future[str], received: Sized, client: DirectClient) -> str:
    """Wait until a batch has ended, and say how; or that nothing was ``received`` for ``SILENCE``."""
    count = -1
    while len(received) > count:
        count = len(received)
        await asyncio.wait({ended}, timeout=SILENCE)
        if ended.done():
            return ended.result()
    # A server that forbids to ask gives no answer, too.
    why = " (stalled, cut off, or no permission)" if client.is_connected else ", the connection is down"
    return f"no answer within {SILENCE:g} s{why}"

"""Read on from one sequence of a stream, a batch at a time, by direct gets: who asks leaves nothing and makes nothing.

So a key that may do nothing else is enough: whoever may make a consumer may have it deliver anywhere. It is slower than
a consumer (``consumer.py``), for the server writes what is known of a message behind the message's own headers, and
a mirror may answer for its origin. Each message names the stream that it is of, and the one that was sent before it.

Source: ADR-31 (direct gets, in batches since nats-server 2.11).
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
from nats.aio.subscription import Subscription

from aggregator.archive.consumer import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    COMPLETE,
    LOST,
    NOTHING_LEFT,
    Messages,
    outcome_of,
    status_of,
)
from shared.nats.dispatch import DirectClient, Frame

MIRRORS = 20
"""How often a batch is asked for again that another stream answered: of two that may, one of a million has no luck."""

_STREAM = b"Nats-Stream: "
_OF_THE_SERVER = re.compile(
    rb"Nats-Stream: ([^\r]*)\r\nNats-Subject: ([^\r]*)\r\nNats-Sequence: (\d{1,16})\r\n"
    rb"Nats-Time-Stamp: ([\d.:T-]+)Z\r\nNats-Num-Pending: \d+\r\nNats-Last-Sequence: (\d{1,16})\r\n\r\n\Z"
)
"""The last headers of a message: those before are its own, and may say anything."""
_FIRST_LINE = b"NATS/1.0\r\n"
_ENDS = {"204": COMPLETE, "404": NOTHING_LEFT}


class DirectGets:
    """Batches of ``stream``, each of which begins where it is told. A context manager."""

    def __init__(self, client: DirectClient, api: str, stream: str) -> None:
        self._client, self._stream = client, stream
        self.most_bytes: int | None = None
        self._subject = f"{api}.DIRECT.GET.{stream}"
        self._subscription: Subscription | None = None
        self._inbox, self._reply = "", b""
        self._requests = 0
        self._frames: list[tuple[bytes, bytes]] = []
        self._wanted = 0
        self._ended: asyncio.Future[str]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exception: object) -> None:
        if self._subscription is not None and not self._client.is_closed:
            await self._subscription.unsubscribe()

    async def fetch(self, sequence: int, count: int) -> tuple[Messages | None, str]:
        """Ask for ``count`` messages at most, the first at or after ``sequence``.

        Give those that came in an unbroken row, None for none, with what is wrong: ``NOTHING_LEFT`` where the stream
        ends here.
        """
        other = ""
        for _ in range(MIRRORS):
            outcome = await self._asked(sequence, min(count, BATCH_MESSAGES))
            if not self._frames:
                return None, outcome
            other, messages, whole = _read(self._stream.encode(), self._frames)
            if not other:
                return messages, outcome if whole else LOST
        return None, f"{other} answers in its place"

    async def _asked(self, sequence: int, count: int) -> str:
        if self._subscription is None:
            self._inbox = self._client.new_inbox()
            self._subscription = await self._client.subscribe_frames(f"{self._inbox}.*", self._on_frames)
        self._frames, self._wanted = [], count
        self._ended = asyncio.get_running_loop().create_future()
        # What was asked for before, and given up, may still come.
        self._requests += 1
        self._reply = f"{self._inbox}.{self._requests}".encode()
        request = {"seq": sequence, "batch": count, "max_bytes": self.most_bytes or BATCH_BYTES}
        await self._client.publish(self._subject, msgspec.json.encode(request), reply=self._reply.decode())
        return await outcome_of(self._ended, self._frames, self._client)

    def _on_frames(self, frames: Sequence[Frame]) -> None:
        for subject, _, header, payload in frames:
            if subject != self._reply:
                continue
            status = status_of(header, _ENDS)
            # A message may have been published with a status line of its own.
            if status is not None and _of_the_server(header) is None:
                self._end(status)
                continue
            self._frames.append((header, payload))
            if len(self._frames) == self._wanted:
                self._end(COMPLETE)

    def _end(self, outcome: str) -> None:
        if not self._ended.done():
            self._ended.set_result(outcome)


def _of_the_server(header: bytes) -> re.Match[bytes] | None:
    return _OF_THE_SERVER.match(header, header.rfind(_STREAM))


def _read(stream: bytes, frames: Sequence[tuple[bytes, bytes]]) -> tuple[str, Messages | None, bool]:
    r"""Read frames: the name of another stream that answered, else the messages in an unbroken row, and if it is whole.

    >>> told = b"Nats-Stream: A\r\nNats-Subject: a.b\r\nNats-Sequence: %d\r\nNats-Time-Stamp: 2026-01-01T00:00:00.5Z"
    >>> told += b"\r\nNats-Num-Pending: 0\r\nNats-Last-Sequence: %d\r\n\r\n"
    >>> own = b"NATS/1.0\r\nNats-Sequence: 99\r\n"
    >>> frames = [(own + told % (7, 0), b"x"), (b"NATS/1.0\r\n" + told % (9, 7), b""), (told % (12, 11), b"")]
    >>> _, messages, whole = _read(b"A", frames)
    >>> messages.sequences.tolist(), messages.subjects, messages.archived_at.tolist(), whole
    ([7, 9], [b'a.b', b'a.b'], [1767225600500000, 1767225600500000], False)
    >>> messages.headers
    [b'NATS/1.0\r\nNats-Sequence: 99\r\n\r\n', b'']
    >>> _read(b"B", frames)
    ('A', None, True)
    """
    sequences, subjects, times, headers, payloads = [], [], [], [], []
    before = 0
    for header, payload in frames:
        found = _of_the_server(header)
        if found is None or int(found[5]) != before:
            break
        if found[1] != stream:
            return found[1].decode(errors="replace"), None, True
        before = int(found[3])
        sequences.append(before)
        subjects.append(found[2])
        times.append(found[4].decode())
        own = header[: found.start()]
        headers.append(own + b"\r\n" if own != _FIRST_LINE else b"")
        payloads.append(payload)
    if not sequences:
        return "", None, False
    try:
        archived_at = np.array(times, "datetime64[ns]").astype(np.int64) // 1_000
    except ValueError:
        return "", None, False
    messages = Messages(np.array(sequences, np.int64), subjects, archived_at, headers, payloads)
    return "", messages, len(sequences) == len(frames)

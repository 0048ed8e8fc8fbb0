"""Hand messages to whoever waits for them as they are parsed: no queue, no task and no copy per message.

nats-py's parser copies the rest of its buffer for every message and matches seven patterns, and every message then
passes a queue and a task: that is most of what reading a stream costs. Frames are read here in place; control lines go
to nats-py's parser, one at a time, and so do messages of subscriptions that were not made here.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import ParseResult

from nats.aio.client import Client, Srv
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

READ_SIZE = 256 << 10
_LOST = "Connection lost"
_END = b"\r\n"
_MESSAGES = {b"MSG": 5, b"HMSG": 6}
"""The lines before messages, and how many fields they have where there is a reply subject."""


Receiver = Callable[[str, str, bytes, dict[str, str] | None], None]
"""Takes a message's subject, its reply subject ("" where it has none), its bytes and its headers."""


Frame = tuple[bytes, bytes, bytes, bytes]
"""A message's subject, its reply subject, its block of headers and its bytes, as they came; or b""."""

FramesReceiver = Callable[[Sequence[Frame]], None]
"""Takes the messages, at least one, that one piece of what the connection brings holds whole."""


class WideTransport(TcpTransport):
    """A connection that is read in large pieces: each piece wakes a task, and at 32 KiB holds two large messages.

    One that is lost is an OSError to whoever writes: nats-py tries again after those. uvloop raises RuntimeError.
    """

    _is_fresh = True

    def __bool__(self) -> bool:
        """Tell whether it is worth keeping: also before it was ever connected, or nats-py makes one of its own."""
        return self._is_fresh or bool(self._io_writer and self._io_reader)

    async def connect(self, uri: ParseResult, buffer_size: int, connect_timeout: int) -> None:
        self._is_fresh = False
        await super().connect(uri, max(buffer_size, READ_SIZE), connect_timeout)

    async def connect_tls(
        self, uri: str | ParseResult, ssl_context: ssl.SSLContext, buffer_size: int, connect_timeout: int
    ) -> None:
        """Go on encrypted; raise ConnectionResetError where the connection is lost already.

        Nothing may come between that look and the first step of start_tls(), which does not notice: no wait_for().
        """
        plain = self._writer.transport
        if plain.is_closing():
            raise ConnectionResetError
        reader = asyncio.StreamReader(max(buffer_size, READ_SIZE))
        protocol = asyncio.StreamReaderProtocol(reader)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(connect_timeout):
            name = uri if isinstance(uri, str) else uri.hostname
            encrypted = await loop.start_tls(plain, protocol, ssl_context, server_hostname=name)
        if encrypted is None:
            # asyncio's answer where the connection was aborted meanwhile.
            raise ConnectionResetError
        # asyncio would warn of an end that cannot be half open.
        vars(protocol)["_over_ssl"] = True
        self._io_reader, self._io_writer = reader, asyncio.StreamWriter(encrypted, protocol, reader, loop)

    def write(self, payload: bytes) -> None:
        try:
            self._writer.write(payload)
        except RuntimeError as error:
            raise ConnectionResetError(_LOST) from error

    def writelines(self, payload: Iterable[bytes]) -> None:
        try:
            self._writer.writelines(payload)
        except RuntimeError as error:
            raise ConnectionResetError(_LOST) from error

    @property
    def _writer(self) -> asyncio.StreamWriter:
        assert self._io_writer is not None, "connect() comes first"
        return self._io_writer

    async def read(self, buffer_size: int) -> bytes:
        data: bytes = await super().read(max(buffer_size, READ_SIZE))
        return data


class DirectClient(Client):
    """A client whose subscriptions may take their messages directly."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers: dict[bytes, Receiver] = {}
        self.frame_receivers: dict[bytes, FramesReceiver] = {}
        self._ps = _FrameParser(self)

    async def _connect_to_server(self, s: Srv) -> None:
        """Connect by a WideTransport: nats-py takes no transport from outside."""
        if not self._transport and s.uri.scheme not in ("ws", "wss"):
            self._transport = WideTransport()  # type: ignore[no-untyped-call]
        await super()._connect_to_server(s)

    async def subscribe_directly(self, subject: str, receive: Receiver) -> Subscription:
        """Subscribe; ``receive`` is called while the connection is read: it must be quick, and must not raise."""
        subscription = await self.subscribe(subject)
        self.receivers[b"%d" % subscription._id] = receive  # noqa: SLF001 - the id is in no other place
        return subscription

    async def subscribe_frames(self, subject: str, receive: FramesReceiver) -> Subscription:
        """Subscribe as ``subscribe_directly`` does, to many at a time; nobody reads headers and subjects for it."""
        subscription = await self.subscribe(subject)
        self.frame_receivers[b"%d" % subscription._id] = receive  # noqa: SLF001 - as above
        return subscription

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        """Remove the receiver with its subscription: nats-py reports an end of one nowhere else."""
        super()._remove_sub(sid, max_msgs)
        if sid not in self._subs:
            self.receivers.pop(b"%d" % sid, None)
            self.frame_receivers.pop(b"%d" % sid, None)

    def count_direct(self, messages: int, size: int) -> None:
        """Count messages that were taken directly, and their bytes."""
        self.stats["in_msgs"] += messages
        self.stats["in_bytes"] += size

    async def headers_of(self, block: bytes) -> dict[str, str] | None:
        headers: dict[str, str] | None = await self._process_headers(block)
        return headers

    async def queue_message(self, frame: "_Message", header: bytes, body: bytes) -> None:
        """Queue a message as nats-py does; its reader would die of a subject that is not UTF-8."""
        subject, reply = (_text(each).encode() for each in (frame.subject, frame.reply))
        await self._process_msg(int(frame.sid), subject, reply, body, header)


class _Message(NamedTuple):
    """The line before a message: ``header_size`` bytes of its ``size`` are headers."""

    subject: bytes
    sid: bytes
    reply: bytes
    header_size: int
    size: int


def _message(kind: bytes, fields: list[bytes]) -> _Message:
    """Read ``MSG <subject> <sid> [reply] <size>`` or ``HMSG ... <header size> <size>``."""
    try:
        *names, header_size, size = fields if kind == b"HMSG" else (*fields[:-1], b"0", fields[-1])
        _, subject, sid, *reply = names
        int(sid)
        return _Message(subject, sid, reply[0] if reply else b"", int(header_size), int(size))
    except ValueError as error:
        raise ProtocolError(f"not a message: {b' '.join(fields)!r}") from error


def _size(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise ProtocolError(f"not the size of a message: {digits!r}") from error


class _FrameParser(Parser):
    """Read whole frames where they lie. ``buf`` and ``state``, nats-py's own, are at rest between control lines."""

    def __init__(self, client: DirectClient) -> None:
        super().__init__(client)
        self._client = client
        self._subject, self._subject_text = b"", ""

    def reset(self) -> None:
        """Forget what was read of a frame: the connection is another."""
        super().reset()
        self._rest = b""
        self._connection = object()

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived; an incomplete frame waits for the rest of it."""
        arrived: dict[bytes, list[Frame]] = {sid: [] for sid in self._client.frame_receivers}
        try:
            await self._parse(data, arrived)
        finally:
            for sid, frames in arrived.items():
                receive = self._client.frame_receivers.get(sid)
                if frames and receive is not None:
                    receive(frames)

    async def _parse(self, data: bytes, arrived: dict[bytes, list[Frame]]) -> None:
        connection, receivers = self._connection, self._client.receivers
        data = self._rest + data if self._rest else data
        size = len(data)
        at = taken = taken_size = 0
        while (line_end := data.find(_END, at)) >= 0:
            body = line_end + 2
            # A server writes one space between fields; a subject may hold whatever else split() takes for a blank.
            fields = data[at:line_end].split(b" ")
            kind = fields[0]
            if (
                arrived
                and len(fields) > 3
                and (frames := arrived.get(fields[2])) is not None
                and (most_fields := _MESSAGES.get(kind))
            ):
                header_end = body if kind == b"MSG" else body + _size(fields[-2])
                end = body + _size(fields[-1])
                if end + 2 > size:
                    break
                at = end + 2
                taken += 1
                taken_size += end - header_end
                reply = fields[3] if len(fields) == most_fields else b""
                frames.append((fields[1], reply, data[body:header_end], data[header_end:end]))
            elif kind == b"MSG" and len(fields) == 5 and (receive := receivers.get(fields[2])):
                # What a stream delivers: most of what ever comes, so nothing is done for it that is not needed.
                _, subject, _, reply, digits = fields
                try:
                    end, reply_text = body + int(digits), reply.decode()
                except ValueError:
                    end, reply_text = body + _size(digits), _text(reply)
                if end + 2 > size:
                    break
                at = end + 2
                taken += 1
                taken_size += end - body
                receive(self._text_of(subject), reply_text, data[body:end], None)
            elif kind in _MESSAGES:
                message = _message(kind, fields)
                end = body + message.size
                if end + 2 > size:
                    break
                at = end + 2
                payload = body + message.header_size
                await self._take(message, data[body:payload], data[payload:end])
            else:
                await super().parse(data[at:body])
                at = body
            if self._connection is not connection:
                # It ended the connection: what else came over that is void.
                return
        self._rest = data[at:]
        self._client.count_direct(taken, taken_size)

    async def _take(self, frame: _Message, header: bytes, body: bytes) -> None:
        receive = self._client.receivers.get(frame.sid)
        if receive is None:
            await self._client.queue_message(frame, header, body)
            return
        headers = await self._client.headers_of(header) if header else None
        self._client.count_direct(1, len(body))
        receive(_text(frame.subject), _text(frame.reply), body, headers)

    def _text_of(self, subject: bytes) -> str:
        """Give a subject as text; many messages in a row have the same."""
        if subject != self._subject:
            self._subject, self._subject_text = subject, _text(subject)
        return self._subject_text


def _text(subject: bytes) -> str:
    """Decode a subject; servers pass on such as are not UTF-8."""
    return subject.decode(errors="backslashreplace")

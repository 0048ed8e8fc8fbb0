"""Hand messages to whoever waits for them as they are parsed: no queue, no task and no copy per message.

nats-py's parser copies the rest of its buffer for every message and matches seven patterns, and every message then
passes a queue and a task: that is most of what reading a stream costs. Frames are read here in place; control lines go
to nats-py's parser, one at a time, and so do messages of subscriptions that were not made by ``subscribe_directly``.
"""

from collections.abc import Callable

import msgspec
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import ProtocolError
from nats.protocol.parser import Parser

_END = b"\r\n"


class Received(msgspec.Struct, frozen=True, gc=False):
    """A message as it arrived."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


Receiver = Callable[[Received], None]


class DirectClient(Client):
    """A client whose subscriptions may take their messages directly."""

    def __init__(self) -> None:
        super().__init__()
        self._receivers: dict[int, Receiver] = {}
        self._ps = _FrameParser(self)

    async def subscribe_directly(self, subject: str, receive: Receiver) -> Subscription:
        """Subscribe; ``receive`` is called while the connection is read: it must be quick, and must not raise."""
        subscription = await self.subscribe(subject)
        self._receivers[subscription._id] = receive  # noqa: SLF001 - the id is in no other place
        return subscription

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        super()._remove_sub(sid, max_msgs)
        if sid not in self._subs:
            self._receivers.pop(sid, None)

    async def take_message(self, frame: "_Frame", body: bytes) -> None:
        """Give a message to its receiver, or the way of nats-py."""
        subject, sid, reply, header_size, _ = frame
        receive = self._receivers.get(sid)
        if receive is None:
            await self._process_msg(sid, subject, reply, body[header_size:], body[:header_size])
            return
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(body) - header_size
        headers = None
        if header_size:
            headers, body = await self._process_headers(body[:header_size]), body[header_size:]
        # Servers pass on subjects that are not UTF-8.
        receive(
            Received(subject.decode(errors="backslashreplace"), reply.decode(errors="backslashreplace"), body, headers)
        )


# Subject, subscription, reply, size of the headers, size of the whole. No NamedTuple: it costs as much as parsing does.
_Frame = tuple[bytes, int, bytes, int, int]


def _frame(line: bytes) -> _Frame | None:
    """Read ``MSG <subject> <sid> [reply] <size>`` or ``HMSG ... <header size> <size>``; None where it is neither."""
    has_headers = line.startswith(b"HMSG ")
    if not (has_headers or line.startswith(b"MSG ")):
        return None
    # A server writes one space between fields; a subject may hold whatever else split() alone takes for a blank.
    fields = line.split(b" ")
    try:
        size = int(fields.pop())
        header_size = int(fields.pop()) if has_headers else 0
        return fields[1], int(fields[2]), fields[3] if len(fields) > 3 else b"", header_size, size
    except (ValueError, IndexError) as error:
        raise ProtocolError(f"not a message: {line!r}") from error


class _FrameParser(Parser):
    """Read whole frames where they lie. ``buf`` and ``state``, nats-py's own, are at rest between control lines."""

    def __init__(self, client: DirectClient) -> None:
        super().__init__(client)
        self._client = client

    def reset(self) -> None:
        """Forget what was read of a frame: the connection is another."""
        super().reset()
        self._rest = b""
        self._connection = object()

    async def parse(self, data: bytes = b"") -> None:
        """Take what has arrived; an incomplete frame waits for the rest of it."""
        connection = self._connection
        data = self._rest + data if self._rest else data
        at = 0
        while (line_end := data.find(_END, at)) >= 0:
            body = line_end + 2
            frame = _frame(data[at:line_end])
            if frame is None:
                await super().parse(data[at:body])
                at = body
            else:
                end = body + frame[-1]
                if end + 2 > len(data):
                    break
                await self._client.take_message(frame, data[body:end])
                at = end + 2
            if self._connection is not connection:
                # It ended the connection: what else came over that is void.
                return
        self._rest = data[at:]

"""Make nats-py's client fit for links that fail for hours: it must not hang, give up, or fall back to clear text.

Derived from reading nats-py 2.16.0; every override names the behaviour that it replaces.
"""

import asyncio
import contextlib
import fcntl
import socket
import ssl
import struct
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

import nats.errors
from nats.aio.client import Server, Srv
from nats.aio.msg import Msg
from nats.protocol.parser import PERMISSIONS_ERR, STALE_CONNECTION

from shared.backoff import Backoff, jitter
from shared.nats.dispatch import DirectClient
from shared.nats.secrets import Login, sign, tls_context
from shared.nats.settings import TlsSettings
from shared.tasks import keep_cancellation
from shared.tolerant_json import text_of

WORTH_WAITING = 1024
"""Fewer bytes that wait say nothing: a ping that is just leaving is no message that takes long."""

# linux/tcp.h, struct tcp_info: tcpi_bytes_acked.
_BYTES_TAKEN = struct.Struct("=120xQ")
_QUEUED = struct.Struct("=i")


class Connection(Protocol):
    """The part of a socket that is asked; event loops hand out no more than a likeness of one."""

    def fileno(self) -> int:
        """Give the descriptor."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        """Read an option."""


class LinkProgress:
    """Tells a slow link from a dead one by what its far end has taken; each who waits has one of their own.

    An answer to a large message on a thin link comes late, and so does everything that waits behind it. What the far
    end's system acknowledges comes in all the while.
    """

    def __init__(self) -> None:
        self._taken = 0

    def goes_on(self, connection: Connection | None) -> bool:
        """Tell whether the far end has taken bytes since the last look, and has more to take.

        False where the system does not say: then nothing but answers tells.
        """
        if connection is None or sys.platform != "linux":
            return False
        try:
            info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_TAKEN.size)
            queued = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(_QUEUED.size))
        except OSError:
            return False
        if len(info) < _BYTES_TAKEN.size:
            return False
        before, (self._taken,) = self._taken, _BYTES_TAKEN.unpack(info)
        return self._taken > before and _QUEUED.unpack(queued)[0] >= WORTH_WAITING


UNANSWERED_REQUESTS = 3
FIRST_WAIT, LONGEST_WAIT = 5.0, 60.0


class ReconnectPolicy:
    """Decides when a connection that stands is replaced, since a new one would mend what does not work over it.

    A server drops a subscription whose permission is taken away, and does not restore it when that is given back: only
    a new connection subscribes again; and what a server allows, it says when a connection begins. So a new one is
    wanted where a subscription was denied, where a message is too large for what the server said, and where several
    requests in a row had no answer, whatever the cause. Each wait is twice as long as the one before, until none was
    wanted for a while. ``reconnect`` replaces the connection, for a reason.
    """

    def __init__(self, reconnect: Callable[[str], None]) -> None:
        self._reconnect = reconnect
        self._unanswered = 0
        self._backoff = Backoff(FIRST_WAIT, LONGEST_WAIT)
        self._wanted_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._is_of_silence = False

    def note_answer(self) -> None:
        """Note that a request was answered, well or not."""
        self._unanswered = 0
        if self._is_of_silence:
            self.stop()

    def note_silence(self) -> None:
        """Note that a request was not answered in time, on a connection that stands."""
        self._unanswered += 1
        if self._unanswered >= UNANSWERED_REQUESTS:
            self._want(f"{self._unanswered} requests in a row had no answer", is_of_silence=True)

    def note_denial(self) -> None:
        """Note that the server has dropped or refused a subscription."""
        self._want("a subscription was denied", is_of_silence=False)

    def note_limit(self) -> None:
        """Note that a message is larger than the server said when the connection began: it says so no other time."""
        self._want("a message is larger than the server said it takes", is_of_silence=False)

    def stop(self) -> None:
        """Want nothing more of this connection: another begins, or none."""
        self._unanswered, self._is_of_silence = 0, False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _want(self, reason: str, *, is_of_silence: bool) -> None:
        if self._timer is not None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() - self._wanted_at > 2 * LONGEST_WAIT:
            self._backoff.reset()
        self._wanted_at = loop.time()
        self._is_of_silence = is_of_silence
        self._timer = loop.call_later(self._backoff.next() * jitter(), self._due, reason)

    def _due(self, reason: str) -> None:
        self.stop()
        self._reconnect(reason)


FIRST_RETRY = 0.1
LONGEST_RETRY = 5.0
_LIVED = 10.0
_CLOSE_DEADLINE = 2.0


class EdgeClient(DirectClient):
    """A NATS client that reconnects for ever, and whose every wait ends.

    ``on_disconnect`` is told why a connection ended, before nats-py forgets it. ``longest_retry``, in seconds, bounds
    the wait before another attempt. A connection of one that ``reconnects`` is recreated where that may help
    (ReconnectPolicy); ``on_own_disconnect`` is told why, in place of ``on_disconnect``.
    """

    def __init__(
        self,
        login: Login,
        tls: TlsSettings | None,
        *,
        wants_tls: bool,
        on_disconnect: Callable[[Exception], None],
        on_own_disconnect: Callable[[str], None],
    ) -> None:
        super().__init__()
        self._login = login
        self._tls = tls or TlsSettings()
        self._wants_tls = wants_tls
        self._on_disconnect = on_disconnect
        self._on_renewal = on_own_disconnect
        self.reconnects = False
        self._reconnect_policy = ReconnectPolicy(self._begin_reconnect)
        self._reconnect_task: asyncio.Task[None] | None = None
        self.longest_retry = LONGEST_RETRY
        self._backoff = Backoff(FIRST_RETRY, LONGEST_RETRY)
        self._connected_at = 0.0
        self._deniable: dict[str, asyncio.Event] = {}
        self.attempted = ""
        self.reached = False
        self._has_ended = False

    @property
    def ssl_context(self) -> ssl.SSLContext:
        """Read the certificates as they are in their files now: ours may be short-lived."""
        return tls_context(self._tls)

    def signature(self, nonce: str) -> bytes:
        """Sign with the seed as it is in its file now."""
        assert self._login.seed is not None
        self._public_nkey, signature = sign(self._login.seed(), nonce)
        return signature

    def next_server(self, servers: list[Server], _info: dict[str, Any]) -> tuple[Server, float]:
        """Choose the server that failed least and a delay that doubles; a connection of less than 10 s has failed."""
        if asyncio.get_running_loop().time() - self._connected_at > _LIVED and self._connected_at:
            self._backoff.reset()
            self._connected_at = 0.0
        delay = min(self.longest_retry, self._backoff.next())
        return min(servers, key=lambda server: server.reconnects), delay * jitter()

    def learn_max_payload(self, max_payload: int) -> None:
        """Take what the server says now: it tells no open connection that its configuration has changed."""
        self._max_payload = max_payload

    def abort(self) -> None:
        """Drop the connection without waiting for what is still to be sent."""
        writer = getattr(self._transport, "_io_writer", None)
        if writer is not None:
            # Python 3.11.2 forgets what is below TLS when a connection is closed twice.
            with contextlib.suppress(AttributeError):
                writer.transport.abort()

    async def publish(self, *arguments: Any, **options: Any) -> None:
        """Publish as nats-py does; what is too large for the limit that is known may not be for the one that holds."""
        try:
            await super().publish(*arguments, **options)
        except nats.errors.MaxPayloadError:
            if self.reconnects and self.is_established:
                self._reconnect_policy.note_limit()
            raise

    async def publish_framed(self, parts: Iterable[bytes]) -> None:
        """Publish messages that are written as the protocol has them; nothing is held while disconnected."""
        if self.is_closed:
            raise nats.errors.ConnectionClosedError
        if not self.is_connected:
            raise nats.errors.OutboundBufferLimitError
        before = len(self._pending)
        self._pending.extend(parts)
        self._pending_data_size += sum(map(len, self._pending[before:]))
        if self._flush_queue is not None and self._flush_queue.empty():
            await self._flush_pending()

    @property
    def is_established(self) -> bool:
        """Tell whether the connection stands, and has been told of if it is new.

        nats-py calls it connected one round trip before that, and may still give it up then without a word.
        """
        return self.is_connected and (self._reconnection_task is None or self._reconnection_task.done())

    @property
    def server_domain(self) -> str:
        """The JetStream domain of the connected server; "" where it has none."""
        return str(self._server_info.get("domain", ""))

    @property
    def connection(self) -> Connection | None:
        """Give the socket of the connection, None where there is none."""
        writer = getattr(self._transport, "_io_writer", None)
        return None if writer is None else cast("Connection | None", writer.get_extra_info("socket"))

    @property
    def peer_certificate(self) -> bytes | None:
        """Give the server's certificate, in DER; None where the connection is not encrypted, or there is none."""
        writer = getattr(self._transport, "_io_writer", None)
        encrypted = None if writer is None else writer.get_extra_info("ssl_object")
        return None if encrypted is None else cast("bytes | None", encrypted.getpeercert(binary_form=True))

    async def drained(self) -> None:
        """Wait until the connection has taken what was published, the server unasked.

        Raise FlushTimeoutError where the link takes nothing for as long as a flush may last.
        """
        progress = LinkProgress()
        progress.goes_on(self.connection)
        while True:
            waiting = self._pending_data_size
            await self._flush_pending(force_flush=True)
            if not waiting or self._pending_data_size < waiting:
                return
            if not progress.goes_on(self.connection):
                raise nats.errors.FlushTimeoutError

    @contextlib.contextmanager
    def deniable(self, subject: str) -> Iterator[asyncio.Event]:
        """Yield an event that a denial to publish on the subject sets, in place of a report of the denial."""
        key = f'publish to "{subject}"'.lower()
        event = self._deniable.setdefault(key, asyncio.Event())
        try:
            yield event
        finally:
            self._deniable.pop(key, None)

    async def request(self, *arguments: Any, **options: Any) -> Msg:
        """Ask as nats-py does, and end when told to: before Python 3.12 an answer of that moment hides it for good."""
        connected_at = self._connected_at
        try:
            with keep_cancellation():
                answer = await super().request(*arguments, **options)
        except nats.errors.NoRespondersError:
            self.note_answer()
            raise
        except nats.errors.TimeoutError:
            if self._connected_at == connected_at:
                self.note_silence()
            raise
        self.note_answer()
        return answer

    def note_answer(self) -> None:
        self._reconnect_policy.note_answer()

    def note_silence(self) -> None:
        if self.reconnects and self.is_established:
            self._reconnect_policy.note_silence()

    async def flush(self, *arguments: Any, **options: Any) -> None:
        """Flush as nats-py does, and end when told to, as request() does."""
        with keep_cancellation():
            await super().flush(*arguments, **options)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        """Do not swallow CancelledError in publish: nats-py does, on any Python."""
        with keep_cancellation():
            return await super()._flush_pending(force_flush)

    async def _connect_to_server(self, s: Srv) -> None:
        """Drop the rest of a failed attempt, and note the server that is tried; end when cancelled, as request() does.

        nats-py leaks the socket and the tasks, and reads the next bytes as the rest of a message that came half.
        """
        self._drop_attempt()
        self._ps.reset()
        self.attempted, self.reached = s.uri.netloc.rpartition("@")[2], False
        with keep_cancellation(), _as_nats_errors():
            try:
                await super()._connect_to_server(s)
            except UnicodeError as error:
                raise nats.errors.Error(f"nats: not a host name: {error}") from error
        self.reached = True

    def _drop_attempt(self) -> None:
        self.abort()
        for task in (self._reading_task, self._ping_interval_task, self._flusher_task):
            if task is not None:
                task.cancel()

    def _connect_command(self) -> bytes:
        """Refuse to send secrets, or anything, in clear text where TLS is wanted: nats-py does not mind."""
        if self._wants_tls and not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        return super()._connect_command()

    async def _process_connect_init(self) -> None:
        """Retry after any failure, and end when cancelled: nats-py's task dies of some errors, and swallows the end."""
        with keep_cancellation(), _as_nats_errors():
            await super()._process_connect_init()
        self._connected_at = asyncio.get_running_loop().time()

    async def _process_err(self, err_msg: str) -> None:
        """Reconnect after an error that nats-py takes as final (a user removed for a minute, too many connections)."""
        if self.reconnects and PERMISSIONS_ERR in err_msg:
            if "subscription" in err_msg.lower():
                self._reconnect_policy.note_denial()
            else:
                # In place of an answer to what was published.
                self._reconnect_policy.note_answer()
        if PERMISSIONS_ERR in err_msg and (denied := self._deniable.get(err_msg.partition(" for ")[2].strip("'"))):
            denied.set()
            return
        if STALE_CONNECTION in err_msg or PERMISSIONS_ERR in err_msg:
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(nats.errors.Error(f"nats: {err_msg.strip(chr(39))}"))

    async def _process_op_err(self, e: Exception) -> None:
        """Abort, then reconnect: nats-py first waits until a dead link has taken the rest, a quarter of an hour."""
        self._reconnect_policy.stop()
        if not (self.is_closed or self.is_reconnecting):
            self._on_disconnect(e)
            self._abandon()
        await super()._process_op_err(e)

    def _begin_reconnect(self, reason: str) -> None:
        # Tasks are kept, or they may be collected before they end.
        self._reconnect_task = asyncio.get_running_loop().create_task(
            self._reconnect(reason), name="renewal of a connection"
        )

    async def _reconnect(self, reason: str) -> None:
        if self.is_established:
            self._reconnect_policy.stop()
            self._on_renewal(reason)
            self._abandon()
            await self.force_reconnect()

    def _abandon(self) -> None:
        """Abort the connection; with nothing held while disconnected, the last bytes are not delivered late either."""
        self.abort()
        if self._max_pending_size <= 0:
            self._drop_pending()

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        """Take the limit of our user: who sends more is disconnected. nats-py knows the server's own alone."""
        await super()._process_info(info, initial_connection)
        if info.get("max_payload", 0) > 0:
            self.learn_max_payload(info["max_payload"])

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        """Read bytes that are not UTF-8 as Latin-1, and headers that are none as no headers.

        Servers pass on what a client sends. nats-py puts one letter in the place of every wrong byte, which makes two
        names one; of what is no header at all its reader dies.
        """
        if headers and not headers.isascii():
            headers = text_of(headers).encode()
        try:
            read: dict[str, str] | None = await super()._process_headers(headers)
        except (UnicodeDecodeError, IndexError):
            return None
        return read

    async def _process_pong(self) -> None:
        """Skip the PONG of a flush that no longer waits: nats-py's reader dies of it."""
        if self._pongs and self._pongs[0].done():
            del self._pongs[0]
            self._pings_outstanding = 0
        else:
            await super()._process_pong()

    async def _ping_interval(self) -> None:
        """Treat inbound data or send progress as liveness: on a thin link that is full, PING and PONG wait."""
        received = self.stats["in_msgs"]
        progress = LinkProgress()
        while True:
            await asyncio.sleep(self.options["ping_interval"])
            if not self.is_connected:
                continue
            if progress.goes_on(self.connection) or received != self.stats["in_msgs"]:
                received, self._pings_outstanding = self.stats["in_msgs"], 0
            self._pings_outstanding += 1
            if self._pings_outstanding > self.options["max_outstanding_pings"]:
                await self._process_op_err(nats.errors.StaleConnectionError())
                return
            try:
                await self._send_ping()
            except OSError as error:
                await self._process_op_err(error)
                return

    async def _attempt_reconnect(self) -> None:
        """End quietly where close() was faster, and leave nothing open: nats-py may have connected in the meantime."""
        # nats-py ends by setting the result of a future that may be done.
        with contextlib.suppress(asyncio.InvalidStateError):
            await super()._attempt_reconnect()
        if self._has_ended:
            self._status = self.CLOSED
            self._drop_attempt()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        """Close within 4 s, also over a link that takes nothing any more."""
        # Of first attempts that fail, nats-py closes what is left, too.
        self._has_ended = status == self.CLOSED
        if not self.is_closed and self.is_connected and self._pending_data_size > 0:
            try:
                async with asyncio.timeout(_CLOSE_DEADLINE):
                    await self.flush()
            except (TimeoutError, OSError, RuntimeError, nats.errors.Error):
                # RuntimeError: what uvloop says of a transport that is gone before its reader was told.
                self._drop_pending()
        elif not self.is_connected:
            self._drop_pending()
        self._reconnect_policy.stop()
        guard = asyncio.get_running_loop().call_later(_CLOSE_DEADLINE, self.abort)
        try:
            await super()._close(status, do_cbs)
        finally:
            guard.cancel()
            self._release_publishers()

    def _release_publishers(self) -> None:
        """End the waits of publishes for a flusher that is gone: they find the client closed."""
        while self._flush_queue is not None and not self._flush_queue.empty():
            waiting = self._flush_queue.get_nowait()
            if not waiting.done():
                waiting.set_result(None)

    def _drop_pending(self) -> None:
        self._pending, self._pending_data_size = [], 0
        self.abort()


@contextlib.contextmanager
def _as_nats_errors() -> Iterator[None]:
    """Turn any failure of an attempt into one that nats-py retries after: of others its task dies without a report."""
    try:
        yield
    except (OSError, nats.errors.Error):
        raise
    except Exception as error:
        raise nats.errors.Error(f"nats: unexpected {type(error).__name__}: {error}") from error

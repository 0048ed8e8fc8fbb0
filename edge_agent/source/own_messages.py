"""The agent's own messages in a source stream: probes, which prove that it stores, and heartbeats, which move it.

A check of a quiet stream shows that nothing was stored, not that something could have been. So a check is a proof only
if something was stored shortly before: any message, or the agent's own probe. If no probe can be published, the time in
which all senders are silent is unknown. Many causes keep a stream from storing (limits of the stream, the account or
the server, a full disk, no quorum); a refused probe shows each of them.

Heartbeats are those of the peer: the body is the time in Unix seconds, the headers name the host and the subject.
Unlike the peer's, one is sent only if nothing was read for a whole interval. No block reads one as a registration, and
only copies forward it, so it cannot circulate through relays.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from edge_agent.core.observation import HEARTBEAT_HEADER, PROBE_HEADER, SourceMessage
from edge_agent.core.stream_past import StreamFacts
from edge_agent.source.port import OwnMessagePhase, is_denied
from shared.decoding import WireError
from shared.instants import SECOND
from shared.nats.client import EdgeClient
from shared.nats.connection import ConnectFailed
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, decode_pub_ack, request, tells_of_nobody
from shared.subjects import covers
from shared.tasks import is_cancelled

PATIENCE = 5.0
RETRY = 60.0
"""Seconds after which a denied probe is tried again: a server does not announce changed permissions."""

LARGEST = 32 << 10
OVERHEAD = 128
"""Bytes of a stored probe in addition to its body."""

_OWN_TOKEN = "muster-probe"  # noqa: S105 - a token of a subject
_PROTOCOL: Final = "muster:probe:1"


class ProbeRule(msgspec.Struct, frozen=True):
    """Choice of the subject of a block's probes. ``subject`` is the configured one, "" if the agent chooses.

    It chooses ``own``, the block's, which no sender uses, if ``stream`` listens on that; else one below a wildcard of
    the stream's subjects, or of the filter by which the stream is read.
    """

    stream: str
    own: str
    subject: str = ""
    filter_subject: str = ""

    def choose(self, facts: StreamFacts) -> tuple[str, str]:
        """Return the subject for a stream, or "" and the reason.

        A stream that copies from others needs no probe: a stored probe proves nothing about them; hearing them does.
        """
        subjects = facts.takes.subjects
        if facts.copies:
            return "", ""
        if facts.refuses_by_subject:
            why = "the stream refuses by subject, and that it stores a probe says nothing of others"
            return "", f"{why}: take discard_new_per_subject from it"
        if self.subject:
            if self._is_heard(self.subject, subjects):
                return self.subject, ""
            return "", f"the stream does not listen on {self.subject}: add it to its subjects"
        patterns = (self.filter_subject,) if self.filter_subject else subjects
        for subject in (self.own, *(_below(pattern) for pattern in patterns if _has_wildcard(pattern))):
            if self._is_heard(subject, subjects):
                return subject, ""
        needed = "set source.probe_subject to one that passes"
        if self._passes(self.own):
            needed = f"add {self.own} to the stream's subjects"
        read = self.filter_subject or ", ".join(subjects)
        return "", f"no subject below {read} is free for a probe: {needed}"

    def _is_heard(self, subject: str, subjects: Sequence[str]) -> bool:
        return self._passes(subject) and any(covers(each, subject) for each in subjects)

    def _passes(self, subject: str) -> bool:
        return not self.filter_subject or covers(self.filter_subject, subject)


def _has_wildcard(pattern: str) -> bool:
    return not pattern.startswith("$") and not {"*", ">"}.isdisjoint(pattern.split("."))


def _below(pattern: str) -> str:
    """Return a subject that a pattern covers and no registration uses.

    >>> _below("registration.>"), _below("site.*.facts")
    ('registration.muster-probe', 'site.muster-probe.facts')
    """
    return ".".join(_OWN_TOKEN if token in ("*", ">") else token for token in pattern.split("."))


class Probe:
    """One block's probes. ``origin`` names the block in them.

    ``report`` is called with every change of phase and its reason; ``ask_max_payload`` asks the server for its limit
    again. ``publish_error`` is why the stream refused the last probe, "" if it did not; None if that is not known yet.
    """

    def __init__(
        self,
        client: EdgeClient,
        rule: ProbeRule,
        origin: str,
        report: Callable[[OwnMessagePhase, str], None],
        ask_max_payload: Callable[[], Awaitable[int]],
    ) -> None:
        self.publish_error: str | None = None
        self._ask_max_payload = ask_max_payload
        self._client = client
        self._rule = rule
        self._headers = {PROBE_HEADER: origin}
        self._origin = origin
        self._report = report
        self._subject = ""
        self._subscription: Subscription | None = None
        self._sent_at = 0.0
        self._largest = 0
        self._asked_at = 0.0
        self._is_unanswered = False
        self._is_off = False

    def note_size(self, largest_size: int) -> None:
        self._largest = max(self._largest, largest_size)

    async def open(self, facts: StreamFacts) -> None:
        """Choose the subject for a stream that was opened, and begin again whatever failed before."""
        self.publish_error = None
        self._sent_at = self._asked_at = asyncio.get_running_loop().time()
        self._is_unanswered = False
        self._subject, why_not = self._rule.choose(facts)
        self._is_off = False
        if why_not:
            self._turn_off(why_not)
        elif not self._subject:
            self._turn_off("", OwnMessagePhase.NOT_NEEDED)
        elif self._subscription is None:
            self._subscription = await self._client.subscribe(self._client.new_inbox(), cb=self._take_answer)

    def with_limit(self, facts: StreamFacts) -> StreamFacts:
        """Return facts in which the server's payload limit bounds the stream's, if no probe can show that limit."""
        limit, takes = self._client.max_payload, facts.takes
        if self._largest <= max(LARGEST, limit) or 0 < takes.max_message_size <= limit:
            return facts
        return msgspec.structs.replace(facts, takes=msgspec.structs.replace(takes, max_message_size=limit))

    async def poll_limit(self, blind_after: int) -> None:
        """Ask the server for its payload limit, once in ``blind_after``, if no probe shows it."""
        now = asyncio.get_running_loop().time()
        if self._largest > LARGEST and now - self._asked_at >= blind_after / SECOND:
            self._asked_at = now
            # A failed request is repeated next time.
            with contextlib.suppress(nats.errors.Error, ConnectFailed, OSError):
                self._client.learn_max_payload(await self._ask_max_payload())

    async def send_if_due(self, facts: StreamFacts, newest_stored_at: int, blind_after: int) -> None:
        """Send a probe if nothing was stored for a while, and also occasionally if something was.

        A full stream may take some messages and refuse others, so registrations alone do not show it.
        """
        now = asyncio.get_running_loop().time()
        interval = blind_after / 4 / SECOND
        waited = now - self._sent_at
        if self._is_unanswered and waited >= PATIENCE:
            self._is_unanswered = False
            if not self._is_off:
                self._report_not_stored(f"no answer within {PATIENCE:g} s")
        is_quiet = abs(facts.server_at - newest_stored_at) >= interval * SECOND
        is_wanted = is_quiet or self.publish_error != ""
        if self._is_off:
            is_due = bool(self._subject) and waited >= RETRY
        else:
            is_due = waited >= (min(PATIENCE, interval) if is_wanted else 4 * interval)
        if not is_due:
            return
        if facts.publish_error:
            # A probe may fit where no registration would.
            self._report_not_stored(f"the stream {facts.publish_error}")
            return
        assert self._subscription is not None
        self._sent_at, self._is_unanswered = now, True
        body = self._body(facts)
        try:
            if len(body) + OVERHEAD > self._client.max_payload:
                # Servers do not tell an open connection that the limit was raised.
                self._client.learn_max_payload(await self._ask_max_payload())
            if len(body) > self._client.max_payload:
                # The current limit: a new connection would not change it.
                raise nats.errors.MaxPayloadError
            await self._client.publish(self._subject, body, reply=self._subscription.subject, headers=self._headers)
        except nats.errors.MaxPayloadError as error:
            self._refuse(str(error))
        except (nats.errors.Error, ConnectFailed, OSError) as error:
            # A fault of our own link: the stream has refused nothing.
            self._report_not_stored(str(error))

    def takes_denial(self, reason: str) -> bool:
        """Return True if a probe has caused a permission violation; no more are sent until RETRY."""
        if not self._subject or not is_denied(self._subject, reason):
            return False
        self._turn_off(f"not permitted: publish on {self._subject}; allow the agent's user to")
        return True

    def note_read(self, messages: Sequence[SourceMessage]) -> None:
        """Count a probe that was read back as stored, also without an answer."""
        if self._is_unanswered and any((each.headers or {}).get(PROBE_HEADER) == self._origin for each in messages):
            self._take_stored()

    def _body(self, facts: StreamFacts) -> bytes:
        """Return a probe as large as the largest message read: a smaller one may be stored where that is refused."""
        body = {"protocol": _PROTOCOL, "origin": self._origin}
        size = min(max(facts.mean_size, self._largest + OVERHEAD), LARGEST, facts.takes.max_message_size or LARGEST)
        missing = size - OVERHEAD - len(msgspec.json.encode(body | {"padding": ""}))
        return msgspec.json.encode(body | {"padding": " " * missing} if missing > 0 else body)

    async def _take_answer(self, message: Msg) -> None:
        self._is_unanswered = False
        if tells_of_nobody(message):
            if self.publish_error is None or self._is_off:
                # The stream's API may be reachable although its subjects are not.
                self._turn_off(f"no stream answers on {self._subject}: what is published here does not reach it")
            else:
                self._refuse(NO_STREAM_ANSWERS)
            return
        try:
            answer = decode_pub_ack(message.data)
        except WireError:
            self._report_not_stored("the answer is not JetStream's")
            return
        if answer.error is not None:
            self._refuse(answer.error.description)
        elif answer.stream == self._rule.stream:
            self._take_stored()
        else:
            self._report_not_stored(f"stream {answer.stream} stores it, not {self._rule.stream}")

    def _take_stored(self) -> None:
        self.publish_error, self._is_off, self._is_unanswered = "", False, False
        self._report(OwnMessagePhase.STORED, "")

    def _turn_off(self, why: str, phase: OwnMessagePhase = OwnMessagePhase.OFF) -> None:
        was_off = self._is_off
        self.publish_error, self._is_off, self._is_unanswered = "", True, False
        if not was_off:
            self._report(phase, why)

    def _refuse(self, why: str) -> None:
        self.publish_error = f"refuses what is sent to it: {why}"
        self._report_not_stored(why)

    def _report_not_stored(self, why: str) -> None:
        self._is_off = False
        self._report(OwnMessagePhase.NOT_STORED, f"{self._subject}: {why}; silence proves nothing meanwhile")


SUBJECT_HEADER = "Choria-SR-Subject"


class Heartbeat:
    """One block's heartbeats, sent by ``agent``. ``interval`` is in microseconds.

    ``report`` is called with every change of phase and its reason.
    """

    def __init__(
        self,
        client: Client,
        subject: str,
        interval: int,
        agent: str,
        report: Callable[[OwnMessagePhase, str], None],
    ) -> None:
        self._client = client
        self._subject = subject
        self._interval = interval / SECOND
        self._headers = {HEARTBEAT_HEADER: agent, SUBJECT_HEADER: subject}
        self._report = report
        self._is_off = False

    async def run(self, read_at: Callable[[], float]) -> None:
        """Send until cancelled; ``read_at`` returns the loop's time at which the block last read a message."""
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        while not is_cancelled():
            idle_at = max(read_at(), sent_at) + self._interval
            if loop.time() < idle_at:
                await asyncio.sleep(idle_at - loop.time())
                continue
            sent_at = loop.time()
            if self._client.is_connected and not self._is_off:
                await self._send(read_at)

    def break_off(self, _reason: str) -> None:
        """Send again on the next connection, even if it was denied on this one."""
        self._is_off = False

    def takes_denial(self, reason: str) -> bool:
        """Return True if a heartbeat has caused a permission violation; no more are sent on this connection."""
        if not is_denied(self._subject, reason):
            return False
        self._is_off = True
        remedy = f"not permitted: publish on {self._subject}; allow it, or take [stream.heartbeat] out"
        self._report(OwnMessagePhase.OFF, remedy)
        return True

    async def _send(self, read_at: Callable[[], float]) -> None:
        sent_at = asyncio.get_running_loop().time()
        body = str(int(time.time())).encode()
        try:
            answer = await request(self._client, self._subject, body, PATIENCE, self._headers)
            stored = decode_pub_ack(answer.data)
        except nats.errors.NoRespondersError:
            problem = NO_STREAM_ANSWERS
        except nats.errors.TimeoutError:
            # A stream with no_ack does not answer: the heartbeat that is read back shows that it was stored.
            problem = "" if read_at() > sent_at else f"no answer within {PATIENCE:g} s"
        except (nats.errors.Error, WireError) as error:
            problem = str(error)
        else:
            problem = stored.error.description if stored.error else "" if stored.stream else "it was not stored"
        if not self._is_off:
            self._report(
                OwnMessagePhase.NOT_STORED if problem else OwnMessagePhase.STORED,
                problem and f"{self._subject}: {problem}",
            )

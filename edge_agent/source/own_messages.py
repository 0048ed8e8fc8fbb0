"""Messages of the agent's own in a source stream: probes, which prove that it stores, and heartbeats, which move it.

A check of a quiet stream shows that nothing was stored, not that something could have been. So a check is a proof only
where something was stored not long before: a message of anybody's, or the agent's own probe. Where no probe can be
published, the time in which everybody is silent is unknown. What keeps a stream from storing has no end of causes: the
stream's own limits, the account's, the server's, a full disk, no quorum. A probe that is refused shows them all.

Heartbeats are those of the peer: the body is the time in Unix seconds, the headers name the host and the subject.
Unlike there, one is sent only where nothing was read for a whole interval. No block takes one for a registration, and
only copies carry it on, so it cannot go round through relays.
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
"""Seconds after which a probe that could not be published is tried again: a server tells nobody what it permits now."""

LARGEST = 32 << 10
OVERHEAD = 128
"""What a stored message takes beside its body, in bytes, with a probe's header."""

_OWN_TOKEN = "muster-probe"  # noqa: S105 - a token of a subject
_PROTOCOL: Final = "muster:probe:1"


class ProbeRule(msgspec.Struct, frozen=True):
    """On which subject a block's probes go. ``subject`` is the settings', "" where the agent chooses.

    It chooses ``own``, the block's, which no sender uses, where ``stream`` listens on that; else one below a wildcard
    of the stream's subjects, or of the filter by which the stream is read.
    """

    stream: str
    own: str
    subject: str = ""
    filter_subject: str = ""

    def choose(self, facts: StreamFacts) -> tuple[str, str]:
        """Give the subject for a stream; else "", and why there is none.

        One that copies from others needs none: that it stores a probe says nothing of them, and what it hears does.
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
        for subject in (self.own, *(_below(each) for each in patterns if _has_place(each))):
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


def _has_place(pattern: str) -> bool:
    return not pattern.startswith("$") and not {"*", ">"}.isdisjoint(pattern.split("."))


def _below(pattern: str) -> str:
    """Give a subject that a pattern covers and no registration uses.

    >>> _below("registration.>"), _below("site.*.facts")
    ('registration.muster-probe', 'site.muster-probe.facts')
    """
    return ".".join(_OWN_TOKEN if token in ("*", ">") else token for token in pattern.split("."))


class Probe:
    """One block's probes. ``origin`` names the block in them.

    ``report`` is called with every change of phase, with the reason; ``ask_max_payload`` asks the server for its limit
    again. ``publish_error`` says why the stream refused the last probe, "" where it did not; None where that is not
    known yet.
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
        """Know the size of the largest message that was read."""
        self._largest = max(self._largest, largest_size)

    async def open(self, facts: StreamFacts) -> None:
        """Try again what was in vain before."""
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
        """Count what the server takes no more as what the stream does not, where no probe is large enough."""
        limit, takes = self._client.max_payload, facts.takes
        if self._largest <= max(LARGEST, limit) or 0 < takes.max_message_size <= limit:
            return facts
        return msgspec.structs.replace(facts, takes=msgspec.structs.replace(takes, max_message_size=limit))

    async def look_at_limit(self, blind_after: int) -> None:
        """Ask the server for its limit, once in ``blind_after``, where no probe shows it."""
        now = asyncio.get_running_loop().time()
        if self._largest > LARGEST and now - self._asked_at >= blind_after / SECOND:
            self._asked_at = now
            # What cannot be asked is asked again.
            with contextlib.suppress(nats.errors.Error, ConnectFailed, OSError):
                self._client.learn_max_payload(await self._ask_max_payload())

    async def send_if_due(self, facts: StreamFacts, newest_stored_at: int, blind_after: int) -> None:
        """Send one where nothing was stored for a while, and now and then where something was.

        A stream that is full and lets go of old messages takes some of what is sent, and refuses the rest.
        """
        now = asyncio.get_running_loop().time()
        interval = blind_after / 4 / SECOND
        waited = now - self._sent_at
        if self._is_unanswered and waited >= PATIENCE:
            self._is_unanswered = False
            if not self._is_off:
                self._say_not_stored(f"no answer within {PATIENCE:g} s")
        is_quiet = abs(facts.server_at - newest_stored_at) >= interval * SECOND
        is_wanted = is_quiet or self.publish_error != ""
        if self._is_off:
            is_due = bool(self._subject) and waited >= RETRY
        else:
            is_due = waited >= (min(PATIENCE, interval) if is_wanted else 4 * interval)
        if not is_due:
            return
        if facts.publish_error:
            # A probe might find a place that no registration would.
            self._say_not_stored(f"the stream {facts.publish_error}")
            return
        assert self._subscription is not None
        self._sent_at, self._is_unanswered = now, True
        body = self._body(facts)
        try:
            if len(body) + OVERHEAD > self._client.max_payload:
                # Servers do not tell an open connection that the limit was raised.
                self._client.learn_max_payload(await self._ask_max_payload())
            if len(body) > self._client.max_payload:
                # The limit that holds: another connection would change nothing.
                raise nats.errors.MaxPayloadError
            await self._client.publish(self._subject, body, reply=self._subscription.subject, headers=self._headers)
        except nats.errors.MaxPayloadError as error:
            self._refuse(str(error))
        except (nats.errors.Error, ConnectFailed, OSError) as error:
            # Our own link's: the stream has refused nothing.
            self._say_not_stored(str(error))

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation, where a probe has caused it."""
        if not self._subject or not is_denied(self._subject, reason):
            return False
        self._turn_off(f"not permitted: publish on {self._subject}; allow the agent's user to")
        return True

    def look_at(self, messages: Sequence[SourceMessage]) -> None:
        """Find a probe among what was read back, stored whether answered or not."""
        if self._is_unanswered and any((each.headers or {}).get(PROBE_HEADER) == self._origin for each in messages):
            self._take_stored()

    def _body(self, facts: StreamFacts) -> bytes:
        """Write a probe as large as the largest message that was read: little room shows, and other limits.

        One of the average would be stored where the registrations of some are not.
        """
        body = {"protocol": _PROTOCOL, "origin": self._origin}
        size = min(max(facts.mean_size, self._largest + OVERHEAD), LARGEST, facts.takes.max_message_size or LARGEST)
        missing = size - OVERHEAD - len(msgspec.json.encode(body | {"padding": ""}))
        return msgspec.json.encode(body | {"padding": " " * missing} if missing > 0 else body)

    async def _take_answer(self, message: Msg) -> None:
        self._is_unanswered = False
        if tells_of_nobody(message):
            if self.publish_error is None or self._is_off:
                # The stream's API may be reached where its subjects are not.
                self._turn_off(f"no stream answers on {self._subject}: what is published here does not reach it")
            else:
                self._refuse(NO_STREAM_ANSWERS)
            return
        try:
            answer = decode_pub_ack(message.data)
        except WireError:
            self._say_not_stored("the answer is not JetStream's")
            return
        if answer.error is not None:
            self._refuse(answer.error.description)
        elif answer.stream == self._rule.stream:
            self._take_stored()
        else:
            self._say_not_stored(f"stream {answer.stream} stores it, not {self._rule.stream}")

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
        self._say_not_stored(why)

    def _say_not_stored(self, why: str) -> None:
        self._is_off = False
        self._report(OwnMessagePhase.NOT_STORED, f"{self._subject}: {why}; silence proves nothing meanwhile")


SUBJECT_HEADER = "Choria-SR-Subject"


class Heartbeat:
    """One block's heartbeats. ``interval`` is in microseconds; ``agent`` names who sends.

    ``report`` is called with every change of phase, with the reason.
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
        """Send until cancelled; ``read_at`` gives the loop's time at which the block last read a message."""
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
        """Try again on the next connection what was denied on this one."""
        self._is_off = False

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation, where a heartbeat has caused it."""
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
            # A stream with no_ack answers by what is read back.
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

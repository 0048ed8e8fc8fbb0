"""Store a small message in a stream that has been idle: whoever reads it, here or after a copy, sees that it moves.

As the peer's heartbeats: the body is the time in Unix seconds, the headers name the host and the subject. Unlike there,
one is sent only where nothing was read for a whole interval. Every block takes it for nobody's registration, and only
copies carry it on, so it cannot go round through relays.
"""

import asyncio
import time
from collections.abc import Callable

import nats.errors
from nats.aio.client import Client

from edge_agent.core.observation import HEARTBEAT_HEADER
from edge_agent.source.port import OwnMessagePhase, is_denied
from shared.decoding import WireError
from shared.instants import SECOND
from shared.nats.jetstream_api import NO_STREAM_ANSWERS, decode_pub_ack, request
from shared.tasks import is_cancelled

ANSWER_DEADLINE = 5.0
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
            answer = await request(self._client, self._subject, body, ANSWER_DEADLINE, self._headers)
            stored = decode_pub_ack(answer.data)
        except nats.errors.NoRespondersError:
            problem = NO_STREAM_ANSWERS
        except nats.errors.TimeoutError:
            # A stream with no_ack answers by what is read back.
            problem = "" if read_at() > sent_at else f"no answer within {ANSWER_DEADLINE:g} s"
        except (nats.errors.Error, WireError) as error:
            problem = str(error)
        else:
            problem = stored.error.description if stored.error else "" if stored.stream else "it was not stored"
        if not self._is_off:
            self._report(
                OwnMessagePhase.NOT_STORED if problem else OwnMessagePhase.STORED,
                problem and f"{self._subject}: {problem}",
            )

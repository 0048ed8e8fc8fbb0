"""Store a small message on a quiet stream and read it back: what a stream takes from us it would take from senders.

A check of a quiet stream shows that nothing was stored, not that something could have been. While probes are in
force, a check is a proof only if a message, a probe or any other, was stored not long before. A probe that may not be
stored at all (no permission, not one of the stream's subjects) is not in force: it is said in one line, and checks
count as they do without one. A probe that the stream refuses is what it is for: then checks prove nothing.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from edge_agent.core.observation import PROBE_HEADER
from edge_agent.core.resume import StreamFacts
from edge_agent.storing import StoringPhase, is_denied
from shared.instants import SECOND
from shared.jetstream_api import PubAck

PATIENCE = 5.0
_PROTOCOL: Final = "muster:probe:1"
_NOBODY_LISTENS = "503"


class Probe:
    """One block's probes. ``origin`` names the block in them; ``interval`` is in microseconds.

    ``report`` hears of every change of phase, with the reason.
    """

    def __init__(
        self, client: Client, subject: str, origin: str, interval: int, report: Callable[[StoringPhase, str], None]
    ) -> None:
        self.subject = subject
        self._client = client
        self._headers = {PROBE_HEADER: origin}
        self._body = msgspec.json.encode({"protocol": _PROTOCOL, "origin": origin})
        self._interval = interval
        self._report = report
        self._subscription: Subscription | None = None
        self._sent_at = 0.0
        self._is_unanswered = False
        self._is_off = False

    async def open(self, *, listens: bool) -> None:
        """Try anew what was in vain on an older connection; ``listens``: the stream stores what is sent there."""
        self._sent_at, self._is_unanswered, self._is_off = 0.0, False, not listens
        if not listens:
            self._report(StoringPhase.OFF, f"the stream does not listen on {self.subject}: add it to its subjects")
        elif self._subscription is None:
            self._subscription = await self._client.subscribe(self._client.new_inbox(), cb=self._take_answer)

    @property
    def is_off(self) -> bool:
        """Tell whether probes are not permitted: checks count as they do without any."""
        return self._is_off

    def proves_storing(self, facts: StreamFacts, newest_stored_at: int) -> bool:
        """Tell whether a check may count: something was stored lately."""
        return abs(facts.server_at - newest_stored_at) <= 2 * self._interval

    async def send_if_due(self, facts: StreamFacts, newest_stored_at: int) -> None:
        """Send one where nothing was stored for a while, and the last one is not on its way any more."""
        now = asyncio.get_running_loop().time()
        waited = now - self._sent_at if self._sent_at else PATIENCE
        if self._is_unanswered and waited >= PATIENCE:
            self._is_unanswered = False
            self._say_not_stored(f"no answer within {PATIENCE:g} s")
        if (
            self._is_off
            or abs(facts.server_at - newest_stored_at) < self._interval
            or waited < min(PATIENCE, self._interval / SECOND)
        ):
            return
        if facts.doubt:
            # A probe is small: it might find a place that no registration would.
            self._say_not_stored(f"the stream {facts.doubt}")
            return
        assert self._subscription is not None
        self._sent_at, self._is_unanswered = now, True
        try:
            await self._client.publish(
                self.subject, self._body, reply=self._subscription.subject, headers=self._headers
            )
        except nats.errors.Error as error:
            self._say_not_stored(str(error))

    def takes_denial(self, reason: str) -> bool:
        """Take a permission violation, where a probe has caused it: checks count without probes then."""
        if not is_denied(self.subject, reason):
            return False
        self._is_off, self._is_unanswered = True, False
        self._report(StoringPhase.OFF, f"not permitted: publish on {self.subject}; allow it, or take probe_subject out")
        return True

    async def _take_answer(self, message: Msg) -> None:
        self._is_unanswered = False
        if (message.headers or {}).get("Status") == _NOBODY_LISTENS:
            self._say_not_stored("nobody listens there")
            return
        try:
            error = msgspec.json.decode(message.data, type=PubAck).error
        except msgspec.MsgspecError:
            self._say_not_stored("the answer is not JetStream's")
            return
        if error is None:
            self._report(StoringPhase.STORED, "")
        else:
            self._say_not_stored(error.description)

    def _say_not_stored(self, why: str) -> None:
        self._report(StoringPhase.NOT_STORED, f"{self.subject}: {why}; silence proves nothing meanwhile")

"""Know of the other member: what it was last heard to do, and whether it may be the other at all."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.config.agent import AgentSettings
from edge_agent.observability.status_board import MISSED_AFTER, PairPhase, now
from edge_agent.pair.health import MemberHealth, Trouble
from edge_agent.pair.log import LogRecord, Writer
from edge_agent.pair.peer_check import PairRefused, difference
from edge_agent.runtime.pace import loop_time
from shared.decoding import Decoder, WireError
from shared.instants import SECOND
from shared.tasks import is_cancelled

ANNOUNCE_EVERY = 1.0
HEARD_LATELY = 3.0
READY_LATELY = 300.0
"""For how long, in seconds, the other may be heard without standing by: longer than a restart or a copy takes."""
OWN_ECHO = 2.0
"""How long after the start, in seconds, an entry may still come that an earlier run of this member has sent."""


class _Announcement(msgspec.Struct, frozen=True):
    """What a member that follows says of itself, every second; one that leads is heard in the log.

    ``troubles`` is None where it was sent by an agent that knows nothing of them.
    """

    member: str
    phase: str
    troubles: frozenset[Trouble] | None = None


_announcement = Decoder(_Announcement, "an announcement")


class OtherMember:
    """The other member, as seen from here. ``report`` is called with its phases, and where it is missed."""

    def __init__(self, settings: AgentSettings, writer: Writer, report: Callable[[str, str], None]) -> None:
        self.name = next(name for name in settings.pair.members if name != writer.member)
        self.phase = ""
        self.heard_at = 0
        self._troubles: frozenset[Trouble] | None = None
        self._writer = writer
        self._key_path: Path = settings.id_key_path
        self._report = report
        self._started_at = self._heard_at = self._ready_at = loop_time()

    def hear_entry(self, logged: LogRecord, *, is_live: bool) -> None:
        """Take an entry of the log, written just now or before we looked; raise PairRefused."""
        ours, theirs = self._writer, logged.entry.writer
        if theirs.member != ours.member:
            # Of another key nothing is gained by waiting; settings may just be changed, one file after the other.
            if (theirs.key != ours.key or is_live) and (problem := difference(ours, theirs, self._key_path)):
                raise PairRefused(problem)
            if is_live:
                self._hear(PairPhase.LEADING)
        elif is_live and theirs.boot_id != ours.boot_id and loop_time() - self._started_at > OWN_ECHO:
            raise PairRefused(
                f"another agent runs as {ours.member}: give each member a name of its own (name, pair.members)"
            )

    async def listen(self, client: Client, subject: str) -> None:
        async def take(message: Msg) -> None:
            with contextlib.suppress(WireError):
                heard = _announcement(message.data)
                if heard.member == self.name:
                    self._hear(heard.phase, heard.troubles)

        await client.subscribe(subject, cb=take)

    @property
    def troubles(self) -> frozenset[Trouble] | None:
        """Say what it cannot do; None where it does not stand by, or has not said so lately."""
        is_ready = self.phase == PairPhase.STANDING_BY and loop_time() - self._heard_at < HEARD_LATELY
        return self._troubles if is_ready else None

    async def announce(
        self, client: Client, subject: str, phase: Callable[[], PairPhase], health: MemberHealth
    ) -> None:
        """Say every second what we do, and notice when the other says nothing; until cancelled."""
        while not is_cancelled():
            if phase() is not PairPhase.LEADING and client.is_connected:
                body = msgspec.json.encode(_Announcement(self._writer.member, phase(), health.troubles()))
                with contextlib.suppress(nats.errors.Error):
                    await client.publish(subject, body)
            silence = loop_time() - self._heard_at
            if silence * SECOND > MISSED_AFTER and client.is_connected:
                self._report("not heard", f"{self.name} does not stand by: start it, or nobody takes over")
            await asyncio.sleep(ANNOUNCE_EVERY)

    def _hear(self, phase: str, troubles: frozenset[Trouble] | None = None) -> None:
        self._troubles = troubles
        self.phase, self.heard_at, self._heard_at = phase, now(), loop_time()
        if phase in (PairPhase.STANDING_BY, PairPhase.LEADING):
            self._ready_at = self._heard_at
        if self._heard_at - self._ready_at > READY_LATELY:
            # Its phases may go to and fro; status shows them.
            self._report("not standing by", f"{self.name} runs, and nobody takes over: its own status says why")
        else:
            self._report(phase, "")

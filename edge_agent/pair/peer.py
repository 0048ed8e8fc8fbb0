"""The other member of a pair: its last reported phase, and whether both are set up as one pair.

Each member writes its name, run, key fingerprint and settings of the blocks into every entry of the log.
"""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.observability.status_board import MISSED_AFTER, PairPhase, now
from edge_agent.pair.health import MemberHealth, Trouble
from edge_agent.pair.log import LogAddress, LogRecord, Writer
from edge_agent.runtime.pace import loop_time
from edge_agent.store.site_key import KeyDamaged, is_missing, read_key
from shared.blake2 import blake2b
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
    """The state that a member that follows publishes every second; a leader writes into the log instead.

    ``troubles`` is None from an agent of an older version.
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
        """Note an entry of the log; ``is_live``: it was appended after we began to read. Raise PairRefused."""
        ours, theirs = self._writer, logged.entry.writer
        if theirs.member != ours.member:
            # Another key never matches later; other settings may, while an operator changes both files.
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
        """Tasks that it cannot do; None if it does not stand by, or was not heard within HEARD_LATELY."""
        is_ready = self.phase == PairPhase.STANDING_BY and loop_time() - self._heard_at < HEARD_LATELY
        return self._troubles if is_ready else None

    async def announce(
        self, client: Client, subject: str, phase: Callable[[], PairPhase], health: MemberHealth
    ) -> None:
        """Publish our phase every second, and report a silent other member; until cancelled."""
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
            # Its phases may alternate; status shows them.
            self._report("not standing by", f"{self.name} runs, and nobody takes over: its own status says why")
        else:
            self._report(phase, "")


_FINGERPRINT, _LOG_SECRET = b"muster pair", b"muster pair log"


class PairRefused(Exception):
    """The two members cannot be a pair as they are set up; the text has the cause and the remedy."""


def writer_of(settings: AgentSettings, key: bytes, boot_id: str) -> Writer:
    """Return the member, its run, and the fingerprints that must be the same at the other member."""
    blocks = {block.name: _digest(block) for block in settings.stream}
    return Writer(settings.agent_name, boot_id, fingerprint(key), blocks)


def fingerprint(key: bytes) -> str:
    return blake2b(_FINGERPRINT, key=key, digest_size=8).hexdigest()


def log_address(settings: AgentSettings, key: bytes) -> LogAddress:
    """Return the place of the log: with the first block's stream, under subjects that need the key."""
    secret = blake2b(_LOG_SECRET, key=key, digest_size=8).hexdigest()
    domain = settings.stream[0].source.domain
    return LogAddress(settings.region, settings.site, secret, domain, settings.pair.replicas)


def check_key_file(settings: AgentSettings) -> None:
    """Raise PairRefused if the member that needs the other's key file would draw a key of its own."""
    first, path = settings.pair.members[0], settings.id_key_path
    if settings.agent_name == first:
        return
    if is_missing(path):
        raise PairRefused(f"id key file {path}: there is none; both members need the same: {remedy(first, path)}")
    try:
        read_key(path)
    except KeyDamaged as damage:
        raise PairRefused(
            f"id key file {path}: {damage.found}; both members need the same: {remedy(first, path)}"
        ) from damage


def difference(ours: Writer, theirs: Writer, path: Path) -> str:
    """Return the setting that differs but must be the same, and the remedy; "" if none differs."""
    if ours.key != theirs.key:
        return other_key(theirs.member, path)
    names = ours.settings.keys() | theirs.settings.keys()
    different = sorted(name for name in names if ours.settings.get(name) != theirs.settings.get(name))
    if not different:
        return ""
    return (
        f"stream block {different[0]} is set otherwise than at {theirs.member}: stream, domain, filter, sender, "
        "goodbye, force_path, digest_paths, digest_ignore and target must be the same in both files"
    )


def other_key(member: str, path: Path) -> str:
    return f"id key file {path} is not that of {member}: {remedy(member, path)}"


def remedy(member: str, path: Path) -> str:
    return (
        f"copy the id key file of {member}, beside its store or where upstream.id_key_file says, to {path} (mode 600)"
    )


def _digest(block: StreamSettings) -> str:
    """Return a fingerprint of the settings of a block that its decisions depend on; its policy is in the log."""
    policy = block.policy
    # Members of the previous release have neither setting: without them, fingerprints must be equal.
    sender = msgspec.to_builtins(block.sender)
    if block.sender is not None and block.sender.batch == "none":
        del sender["batch"]
    goodbye = (block.goodbye,) if block.goodbye.rule() else ()
    parts = (
        block.source.stream,
        block.source.domain,
        block.filter_subject,
        sender,
        (policy.force_path, policy.digest_paths, policy.digest_ignore),
        block.target,
        *goodbye,
    )
    return blake2b(msgspec.json.encode(parts), digest_size=8).hexdigest()

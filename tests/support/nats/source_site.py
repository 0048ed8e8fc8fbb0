"""A site's server with its stream, and a reader that reads as the agent does: over a link that can be cut."""

import base64
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import msgspec

from edge_agent.core.block_state import BlockState
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.runtime.links import max_payload_of
from edge_agent.source.api import SourceApi, resets_consumers
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.own_messages import Probe, ProbeRule
from edge_agent.source.port import OpenResult, OwnMessagePhase, SourceUnavailable, StreamCheck
from edge_agent.source.reader import JetStreamSource
from shared.embedded.link import EmbeddedLink
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.identifiers import SourcePosition
from shared.instants import parse_instant
from shared.nats.client import EdgeClient
from shared.nats.connection import AuthSettings, ConnectionSettings, LinkEvent, LinkState, connect
from tests.support.nats.linked_server import DEADLINE, LinkedServer
from tests.support.waiting import until

STREAM = "REGISTRATION"
SUBJECT = "registration.nodes"
CONSUMER = "muster-dub1-nodes"
SETTLE = 1_000_000
POLICY = Policy(sample_interval=1, stale_after=12, retire_after=100, blind_after=3)
"""A source does not go by it."""


class StoredMessage(msgspec.Struct, frozen=True):
    """One message as the stream holds it: ``time`` to the nanosecond."""

    seq: int
    time: str
    subject: str
    data: str = ""

    @property
    def payload(self) -> bytes:
        """Give the body."""
        return base64.b64decode(self.data)


class Site(LinkedServer):
    """A server, a client beside it, and a link that readers come over."""

    stream, subjects = STREAM, "registration.>"

    async def time(self) -> int:
        """Ask the server for its time, in microseconds."""
        return parse_instant((await self.api(f"STREAM.INFO.{STREAM}"))["ts"])

    async def delete_stream(self) -> None:
        """Delete the stream, its messages and its consumers."""
        await self.api(f"STREAM.DELETE.{STREAM}")

    async def publish(self, *payloads: bytes, subject: str = SUBJECT, headers: Mapping[str, str] | None = None) -> int:
        """Store messages, in order; give the stream's last sequence then."""
        before = await self.last_sequence()
        for payload in payloads:
            await self.client.publish(subject, payload, headers=dict(headers) if headers else None)
        last = before + len(payloads)
        await until(lambda: self._holds(last), f"message {last} is stored")
        return last

    async def last_sequence(self) -> int:
        """Give the sequence of the last message that was stored."""
        return int((await self.api(f"STREAM.INFO.{STREAM}"))["state"]["last_seq"])

    async def stored(self, sequence: int) -> StoredMessage:
        """Look at one stored message."""
        reply = await self.api(f"STREAM.MSG.GET.{STREAM}", {"seq": sequence})
        return msgspec.convert(reply["message"], StoredMessage)

    async def acknowledged_through(self) -> int:
        """Give the last sequence that the server takes as acknowledged by the reader."""
        return int((await self.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}"))["ack_floor"]["stream_seq"])

    async def copy_store(self, copy: Path) -> None:
        """Take a copy of everything the server has stored, as a backup does."""
        await self.server.stop()
        shutil.copytree(self._store, copy)
        await self._start_again()

    async def restore_store(self, copy: Path) -> None:
        """Replace everything the server has stored by a copy."""
        await self.server.stop()
        shutil.rmtree(self._store)
        shutil.copytree(copy, self._store)
        await self._start_again()

    async def restart(self) -> None:
        """Stop the server and start it again."""
        await self.server.stop()
        await self._start_again()

    @property
    def _store(self) -> Path:
        return self.server.settings.store_dir / "jetstream"

    async def _start_again(self) -> None:
        await self.server.start()
        await until(lambda: self.client.is_connected, "the client is connected again")

    async def _holds(self, sequence: int) -> bool:
        return await self.last_sequence() >= sequence


@asynccontextmanager
async def running_site(
    directory: Path,
    extra_config: str = "",
    *,
    max_file: str = "",
    domain: str = "",
    leaf_remotes: tuple[LeafRemote, ...] = (),
) -> AsyncIterator[Site]:
    """Start a site; ``extra_config``: more lines of its server's configuration; ``max_file``: what it may store."""
    async with AsyncExitStack() as stack:
        settings = ServerSettings(
            name="site",
            store_dir=directory / "site",
            extra_config=extra_config,
            max_file=max_file,
            domain=domain,
            leaf_remotes=leaf_remotes,
        )
        server = await stack.enter_async_context(EmbeddedNats(settings))
        link = await stack.enter_async_context(EmbeddedLink(server.port))
        client = await connect(ConnectionSettings(servers=(server.url,)), name="test", deadline=DEADLINE)
        stack.push_async_callback(client.close)
        yield Site(server, client, link)


async def exhaust(site: Site) -> None:
    """Fill what the server, or the account, may store, by another stream."""
    await site.api("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["other"]})
    for size in (64 << 10, 1 << 10, 16):
        while b'"error"' not in (answer := await site.client.request("other", b"x" * size, timeout=DEADLINE)).data:
            pass
        assert b"resource" in answer.data, answer.data


class ProbeSettings(msgspec.Struct, frozen=True):
    """How a reader probes; ``blind_after`` as in a policy. Where ``own`` is chosen too, no subject is given."""

    subject: str = ""
    origin: str = "eu-west.dub1.nodes"
    blind_after: int = 2_000_000
    own: str = "muster.probe.eu-west.dub1.nodes"


LONG = 600_000_000


class Reader:
    """Reads a site's stream, and keeps what it committed: every message of a batch that take() was called for."""

    def __init__(
        self,
        client: EdgeClient,
        settings: ConnectionSettings,
        address: SourceAddress,
        probe: ProbeSettings | None,
        *,
        resets: bool = True,
    ) -> None:
        self.client, self._settings = client, settings
        self.probe_reports: list[tuple[OwnMessagePhase, str]] = []
        api = SourceApi(client, address, resets_consumers if resets else lambda _client: False)
        self.source = JetStreamSource(client, api, SETTLE, self._probe(probe, address) if probe else None)
        self._blind_after = probe.blind_after if probe else LONG
        self.received: list[SourceMessage] = []
        self.opened: list[OpenResult] = []
        self.position: SourcePosition
        self.read_through = 0
        self.past_stored_at = self.source_clock = 0

    def _probe(self, probe: ProbeSettings, address: SourceAddress) -> Probe:
        def report(phase: OwnMessagePhase, reason: str) -> None:
            self.probe_reports.append((phase, reason))

        rule = ProbeRule(STREAM, probe.own, probe.subject, address.filter_subject)
        return Probe(self.client, rule, probe.origin, report, partial(max_payload_of, self.client, self._settings))

    async def check(self) -> StreamCheck:
        """Check as the agent does."""
        return await self.source.check(self._blind_after)

    async def open(self) -> OpenResult:
        """Open the source behind what was committed, and take over what it says about the past."""
        opened = await self._open()
        self.opened.append(opened)
        if opened.change is not None:
            incarnation = opened.facts.incarnation(self.position.incarnation)
            self.past_stored_at = self.position.stored_at or self.past_stored_at
            self.source_clock = 0
            self.position = SourcePosition(STREAM, incarnation, opened.sequence)
            self.read_through = opened.sequence
            again = await self._open()
            assert again.change is None
        return opened

    async def _open(self) -> OpenResult:
        return await self.source.open(
            BlockState(
                self.position,
                POLICY,
                past_stored_at=self.past_stored_at,
                examined_sequence=self.read_through,
                source_clock=self.source_clock,
            )
        )

    async def open_again(self, deadline: float = DEADLINE) -> OpenResult:
        """Open as soon as that works."""

        async def opens() -> bool:
            try:
                await self.open()
            except SourceUnavailable:
                return False
            return True

        await until(opens, "the source opens", deadline)
        return self.opened[-1]

    async def take(self, messages: Sequence[SourceMessage], *, acknowledges: bool = True) -> None:
        """Commit a batch and acknowledge it."""
        if messages:
            self.received += messages
            last = messages[-1]
            self.position = SourcePosition(STREAM, self.position.incarnation, last.sequence, last.stored_at)
            self.read_through = max(self.read_through, last.sequence)
            self.source_clock = max(self.source_clock, *(message.stored_at for message in messages))
            if acknowledges:
                await self.source.acknowledge()

    async def read_on(self, sequence: int, deadline: float = DEADLINE) -> None:
        """Read and commit until ``sequence`` is reached, whatever happens to the connection."""

        async def arrived() -> bool:
            try:
                await self.take(await self.source.read(0.1))
            except SourceUnavailable:
                await self.open_again()
            return self.position.sequence >= sequence

        await until(arrived, f"message {sequence} is read", deadline)

    @property
    def sequences(self) -> list[int]:
        """List the sequences of what was committed, in that order."""
        return [message.sequence for message in self.received]


@asynccontextmanager
async def reading(
    site: Site,
    address: SourceAddress | None = None,
    *,
    probe: ProbeSettings | None = None,
    resets: bool = True,
    auth: AuthSettings | None = None,
) -> AsyncIterator[Reader]:
    """Connect a reader over the link and open it at its configured start.

    Without ``resets`` it takes the server for one that does not know CONSUMER.RESET.
    """
    readers: list[Reader] = []

    def on_state(state: LinkState) -> None:
        if state.event is LinkEvent.RETRY_FAILED:
            return
        for reader in readers:
            if not (state.event is LinkEvent.DENIED and reader.source.takes_denial(state.reason)):
                reader.source.break_off(state.reason or str(state.event))

    settings = ConnectionSettings(servers=(site.link.url,), auth=auth or AuthSettings())
    client = await connect(settings, name="reader", deadline=DEADLINE, on_state=on_state)
    try:
        reader = Reader(client, settings, address or SourceAddress(STREAM, CONSUMER), probe, resets=resets)
        readers.append(reader)
        facts, sequence = await reader.source.resolve_start()
        reader.position = SourcePosition(STREAM, facts.incarnation(), sequence)
        reader.read_through = sequence
        await reader.open()
        yield reader
    finally:
        await client.close()

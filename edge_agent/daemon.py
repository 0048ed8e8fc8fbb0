"""Build the agent from its settings and run it until it is told to stop: the one composition root."""

import asyncio
import logging
import signal
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Protocol

from nats.aio.client import Client

from edge_agent.belonging import check_belonging
from edge_agent.config import AgentSettings
from edge_agent.core.senders import SenderTable
from edge_agent.core.standing import Standing
from edge_agent.heartbeat import Heartbeat
from edge_agent.ingest import Block, Ingest, IngestPhase
from edge_agent.memory import collect_rarely, give_memory_back
from edge_agent.modes import AgentIdentity, Mode, mode_of
from edge_agent.monitor import serve_monitor
from edge_agent.passage import Passage
from edge_agent.passing import Passing
from edge_agent.policy_feed import PolicyFeed
from edge_agent.policy_orders import PolicyOrders
from edge_agent.probe import Probe
from edge_agent.source import JetStreamSource
from edge_agent.source_api import SourceAddress, SourceApi
from edge_agent.status_board import UPSTREAM, StatusBoard, source_part, stream_part
from edge_agent.store.files import Prepared, StoreUnusable, held, prepare, site_key
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.stream_settings import StreamSettings
from edge_agent.supervisor import announce_stopping, keep_supervisor_informed
from edge_agent.uploader import Uploader
from edge_agent.upstream import JetStreamUpstream
from shared.nats_client import EdgeClient
from shared.nats_connection import ConnectFailed, ConnectionSettings, LinkEvent, LinkState, connect

CONNECT_DEADLINE = 10.0
LONGEST_RETRY = 10.0
CANCEL_AGAIN = 1.0

log = logging.getLogger("muster.agent")


class _Adapter(Protocol):
    def break_off(self, reason: str) -> None: ...

    def takes_denial(self, reason: str) -> bool: ...


async def run(settings: AgentSettings) -> None:
    """Run the agent until SIGTERM or SIGINT. A part that dies takes the agent down with it."""
    path = Path(settings.store.path)
    with held(path):
        prepared = prepare(path)
        _say_what_was_found(path, prepared)
        key = site_key(settings.id_key_path)
        store = await SqliteStore.open(path, int(settings.store.max_outbox))
        try:
            check_belonging(path, settings, await store.known_blocks())
        except StoreUnusable:
            await store.close()
            raise
        agent = Agent(settings, store, key, replaces_lost=prepared.replaces_lost)
        collect_rarely()
        stopping = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
        try:
            await agent.run_until(stopping)
        finally:
            await agent.close()


class Agent:
    """Everything that runs in one agent, around one store."""

    def __init__(self, settings: AgentSettings, store: SqliteStore, key: bytes, *, replaces_lost: bool) -> None:
        self._settings = settings
        self._store = store
        self._replaces_lost = replaces_lost
        self._identity = AgentIdentity(version("muster"), uuid.uuid4().hex, key)
        self._clients: list[Client] = []
        self._passage = Passage(store.copies_wait)
        self._board = StatusBoard(
            settings.agent_name,
            settings.region,
            settings.site,
            self._identity.version,
            self._identity.boot_id,
            int(settings.store.max_outbox),
        )
        self._policy_feed = PolicyFeed(
            settings.region, settings.site, settings.upstream.domain, self._board.reporter("policy")
        )

    async def run_until(self, stopping: asyncio.Event) -> None:
        """Run every part; end when told to, raise what a part raised."""
        async with asyncio.TaskGroup() as tasks:
            parts = [
                tasks.create_task(self._board.keep_written(self._store), name="status"),
                tasks.create_task(self._upload(), name="upstream"),
                *(tasks.create_task(self._read(block), name=block.name) for block in self._settings.stream),
                tasks.create_task(keep_supervisor_informed(self._board), name="supervisor"),
                tasks.create_task(give_memory_back(), name="memory"),
            ]
            if self._settings.monitor.listen:
                listen = self._settings.monitor.listen
                path = Path(self._settings.store.path)
                parts.append(tasks.create_task(serve_monitor(listen, self._board, self._store, path), name="monitor"))
            await stopping.wait()
            log.info("stopping")
            announce_stopping()
            await cancelled(parts)

    async def close(self) -> None:
        """Close what was opened; what was not acknowledged stays in the store."""
        self._board.mute()
        for client in self._clients:
            await client.close()
        await self._board.write_last(self._store)
        await self._store.close()

    async def _upload(self) -> None:
        report = self._board.reporter(UPSTREAM)
        adapters: list[_Adapter] = []
        client = await self._connect(self._settings.upstream, "upstream", adapters, report)
        upstream = JetStreamUpstream(client)
        adapters += (self._policy_feed, upstream)
        known = {block_id.block: state.standing for block_id, state in await self._store.known_blocks()}
        taken = [known.get(block.name, Standing()) for block in self._settings.stream]

        def report_upload(problem: str) -> None:
            if not problem:
                report("connected", "")
            elif client.is_connected:
                # Of a link that is down the link itself says so, since when and why.
                report("not accepted", problem)

        bandwidth = self._settings.upstream.max_bandwidth
        uploader = Uploader(
            self._store, upstream, bytes_per_second=bandwidth, report=report_upload, passage=self._passage
        )
        self._board.publishes = uploader.publishes
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(uploader.run(), name="uploader")
            tasks.create_task(self._policy_feed.run(client, taken), name="policy")

    async def _read(self, block: StreamSettings) -> None:
        settings, source_settings = self._settings, block.source
        known = await self._store.load_block(block.name)
        report = self._board.reporter(stream_part(block.name))
        adapters: list[_Adapter] = []
        link_report = self._board.reporter(source_part(block.name))
        client = await self._connect(source_settings, f"source of {block.name}", adapters, link_report)
        address = SourceAddress(
            stream=source_settings.stream,
            consumer=settings.consumer_of(block),
            domain=source_settings.domain,
            creates_consumer=source_settings.create_consumer,
            filter_subject=block.filter_subject,
            start=source_settings.start_rule(),
        )
        source = JetStreamSource(
            client, SourceApi(client, address), int(source_settings.settle), self._probe(block, client)
        )
        adapters.append(source)
        mode = mode_of(settings, block, self._identity)
        decider = mode.decides(*known) if known else None

        def report_reading(phase: IngestPhase, reason: str) -> None:
            report(phase, reason)
            if phase is IngestPhase.READING and client.is_connected:
                # Whatever was denied on the link is permitted again, or reading does without.
                link_report("connected", "")

        passing = Passing(self._passage, block.name) if mode.passes else None
        ingest = Ingest(self._block(block, mode), source, self._store, decider, report_reading, passing)
        self._board.watch(block.name, ingest)
        heartbeat = self._heartbeat(block, client)
        if heartbeat is None:
            await ingest.run()
            return
        adapters.append(heartbeat)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ingest.run(), name=f"stream {block.name}")
            tasks.create_task(heartbeat.run(lambda: ingest.read_at), name=f"heartbeat of {block.name}")

    def _block(self, block: StreamSettings, mode: Mode) -> Block:
        return Block(
            stream=block.source.stream,
            policy=block.policy.policy(),
            intake=mode.intake,
            emitter=mode.emitter,
            watermark_interval=int(self._settings.watermark.interval),
            rebuilding=self._replaces_lost,
            mode=block.mode,
            decides=lambda state: mode.decides(state, SenderTable()),
            orders=PolicyOrders(self._settings.block_id(block), block, self._policy_feed, self._refusals(block)),
        )

    def _refusals(self, block: StreamSettings) -> Callable[[str], None]:
        part = f"policy of {block.name}"

        def report(reason: str) -> None:
            if reason or part in self._board.parts:
                self._board.reporter(part)("refused" if reason else "taken", reason)

        return report

    def _probe(self, block: StreamSettings, client: Client) -> Probe | None:
        if not block.source.probe_subject:
            return None
        origin, interval = str(self._settings.block_id(block)), block.policy.policy().blind_after // 4
        return Probe(
            client, block.source.probe_subject, origin, interval, self._board.reporter(f"probe of {block.name}")
        )

    def _heartbeat(self, block: StreamSettings, client: Client) -> Heartbeat | None:
        subject, interval = block.heartbeat.subject, int(block.heartbeat.interval)
        if not subject:
            return None
        report = self._board.reporter(f"heartbeat of {block.name}")
        return Heartbeat(client, subject, interval, self._settings.agent_name, report)

    async def _connect(
        self,
        settings: ConnectionSettings,
        part: str,
        adapters: list[_Adapter],
        report: Callable[[str, str], None],
    ) -> EdgeClient:
        """Connect, however long it takes; afterwards let the adapters know of every change."""
        retry_after = 1.0
        report("connecting", "")
        while True:
            try:
                client = await connect(
                    settings,
                    name=f"muster-agent {self._settings.site} {part}",
                    inbox_prefix=f"_INBOX_{self._settings.site}",
                    deadline=CONNECT_DEADLINE,
                    on_state=partial(_take_link_state, adapters, report),
                )
            except ConnectFailed as error:
                report("not connected", str(error))
                await asyncio.sleep(retry_after)
                retry_after = min(retry_after * 2, LONGEST_RETRY)
            else:
                self._clients.append(client)
                return client


async def cancelled(parts: Iterable[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: before Python 3.12, wait_for() loses a cancellation that meets its answer."""
    left = set(parts)
    while left:
        for part in left:
            part.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN)


def _take_link_state(adapters: list[_Adapter], report: Callable[[str, str], None], state: LinkState) -> None:
    match state.event:
        case LinkEvent.CONNECTED | LinkEvent.RECONNECTED:
            report("connected", "")
            reason = "the connection is new"
        case LinkEvent.DENIED if any(adapter.takes_denial(state.reason) for adapter in adapters):
            return
        case LinkEvent.DENIED:
            report("denied", state.reason)
            reason = state.reason
        case LinkEvent.RETRY_FAILED:
            report("not connected", f"{state.server}: {state.reason}")
            return
        case _:
            reason = f"{state.server}: {state.reason or state.event}"
            report("not connected", reason)
    for adapter in adapters:
        adapter.break_off(reason)


def _say_what_was_found(path: Path, prepared: Prepared) -> None:
    if prepared.set_aside:
        log.error("store %s was corrupt: set aside as %s, beginning anew", path, prepared.set_aside)
    elif prepared.was_lost:
        log.error("store %s is gone though there was one: beginning anew; known senders will be announced again", path)
    if prepared.migrated_from:
        log.info("store %s: written by an older agent (version %d), now up to date", path, prepared.migrated_from)

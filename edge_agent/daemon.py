"""The agent's composition root: build it from its settings, run it, and stop it on a signal."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.delivery.fast_path import FastPath
from edge_agent.delivery.name_fence import EarlierStores, NameFree, Namesake, NameTaken, boot_id
from edge_agent.ingest.block import IngestPhase
from edge_agent.observability.announcements import Announcements
from edge_agent.observability.clocks import Clocks
from edge_agent.observability.http import serve_monitor
from edge_agent.observability.server_watch import ServerWatch
from edge_agent.observability.status_board import StatusBoard, now, stream_part
from edge_agent.pair.member import serve_pair
from edge_agent.pair.peer import check_key_file
from edge_agent.pair.store_copy import CopyArrived, adopt_copy
from edge_agent.policy.feed import PolicyFeed
from edge_agent.runtime.links import Links
from edge_agent.runtime.process import keep_private
from edge_agent.store.files import Hold, Preparation, StoreUnusable, hold_of, prepare
from edge_agent.store.site_key import site_key
from edge_agent.store.sqlite import StoreDamaged
from edge_agent.store.sqlite_store import SqliteStore
from edge_agent.wiring import AgentIdentity, AgentParts, BlockWiring, UploadPath
from shared.command_line.tables import cut, visible
from shared.instants import SECOND
from shared.memory import collect_rarely, give_memory_back
from shared.tasks import cancel_all, wait_for_event

log = logging.getLogger("muster.agent")

E = TypeVar("E", bound=BaseException)

SWITCH_INTERVAL = 0.001
SOON, PAUSE = 60.0, 5.0
"""Seconds: how soon the next damage is part of the same trouble, and how long a disk that is in it is left alone."""


async def run(settings: AgentSettings) -> None:
    """Run the agent until SIGTERM or SIGINT. A part that dies takes the agent down with it."""
    path = Path(settings.store.path)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    keep_private(path)
    damage: StoreDamaged | None = None
    namesake: Namesake | None = None
    with hold_of(path) as hold:
        while not stopping.is_set():
            began, damaged_before = time.monotonic(), damage is not None
            try:
                await _run_on(path, settings, stopping, damage, hold, namesake)
            except* NameTaken as taken:
                damage, namesake = None, _first_of(taken).namesake
            except* NameFree:
                damage = namesake = None
            except* StoreDamaged as found:
                damage = _first_of(found)
                if damaged_before and time.monotonic() - began < SOON:
                    async with keep_watchdog(stopping):
                        await wait_for_event(stopping, PAUSE)
            except* CopyArrived:
                # After damage that was found at the same time: the copy takes the damaged store's place.
                damage = None
                adopt_copy(path)
                log.info("store %s is a copy of the other member's now", path)
            else:
                damage = None
    if damage is not None:
        log.error("store %s may be damaged (%s): the end came before a look at it", path, damage)


async def _run_on(
    path: Path,
    settings: AgentSettings,
    stopping: asyncio.Event,
    damage: StoreDamaged | None,
    hold: Hold,
    namesake: Namesake | None,
) -> None:
    """Run on the store as it is, or on a new one where there is ``damage`` to it; wait where there is a namesake."""
    if settings.pair.members:
        check_key_file(settings)
    async with keep_watchdog(stopping):
        # To look at gigabytes on a slow disk takes longer than a supervisor waits for a word.
        prepared = await asyncio.to_thread(prepare, path, damage)
        _log_findings(path, prepared, damage)
        key = site_key(settings.id_key_path, is_default_path=not settings.upstream.id_key_file)
    with hold.lock_file():
        await _run_agent(settings, stopping, key, hold, namesake, replaces_lost=prepared.replaces_lost)


async def _run_agent(
    settings: AgentSettings,
    stopping: asyncio.Event,
    key: bytes,
    hold: Hold,
    namesake: Namesake | None,
    *,
    replaces_lost: bool,
) -> None:
    path = Path(settings.store.path)
    async with keep_watchdog(stopping):
        store = await SqliteStore.open(path, int(settings.store.max_outbox))
        try:
            for block_id, state in await store.block_states():
                if said := settings.contradiction(block_id, state):
                    raise StoreUnusable(said)
            agent = Agent(settings, store, key, hold, replaces_lost=replaces_lost, namesake=namesake)
            collect_rarely()
            # SQLite's thread wants the interpreter for microseconds at a time: a busy loop lets go of it that often.
            sys.setswitchinterval(SWITCH_INTERVAL)
        except BaseException:
            # Its thread would keep a process that wants to end.
            await store.close()
            raise
    failure = ""
    try:
        await agent.run_until(stopping)
    except BaseException as error:
        failure = _describe(error)
        raise
    finally:
        # The part that tells the supervisor has ended, and links that are silent and a disk that fails take long.
        async with keep_watchdog(stopping):
            await agent.close(failure)


class Agent:
    """Everything that runs in one agent, around one store.

    With a ``namesake``, who was there before, it only waits until that one has gone: run_until() raises NameFree then.
    """

    def __init__(
        self,
        settings: AgentSettings,
        store: SqliteStore,
        key: bytes,
        hold: Hold,
        *,
        replaces_lost: bool,
        namesake: Namesake | None = None,
    ) -> None:
        self._settings = settings
        self._hold = hold
        self._namesake = namesake
        self._store = store
        self._links = Links(settings.site)
        identity = AgentIdentity(version("muster"), boot_id(now(), os.urandom(10)), key)
        self._board = StatusBoard(
            settings.agent_name,
            settings.region,
            settings.site,
            identity.version,
            identity.boot_id,
            int(settings.store.max_outbox),
        )
        self._parts = AgentParts(
            settings,
            identity,
            store,
            self._links,
            self._board,
            PolicyFeed(settings.region, settings.site, settings.upstream.domain, self._board.reporter("policy")),
            FastPath(store.copies_wait),
            Clocks(),
            EarlierStores(),
            replaces_lost,
        )
        self._blocks, self._upload_path = BlockWiring(self._parts), UploadPath(self._parts)
        self._announcements: Announcements | None = None

    async def run_until(self, stopping: asyncio.Event) -> None:
        """Run every part until ``stopping`` is set; raise the error of a part that failed."""
        async with asyncio.TaskGroup() as tasks:
            parts = [
                tasks.create_task(self._board.keep_written(self._store, self._hold), name="status"),
                *(tasks.create_task(part, name=name) for name, part in self._working_parts()),
                tasks.create_task(keep_supervisor_informed(self._board), name="supervisor"),
                tasks.create_task(give_memory_back(), name="memory"),
                tasks.create_task(ServerWatch(self._settings, self._links, self._board).run(), name="servers"),
            ]
            if self._settings.monitor.listen:
                monitor, path = self._settings.monitor, Path(self._settings.store.path)
                parts.append(tasks.create_task(serve_monitor(monitor, self._board, self._store, path), name="monitor"))
            await stopping.wait()
            log.info("stopping")
            announce_stopping()
            if self._announcements is not None:
                # What is read no more says no more that it goes on.
                await cancel_all([part for part in parts if part.get_name() in self._blocks.readers])
                await self._announcements.announce_stop()
            await cancel_all(parts)

    async def close(self, failure: str = "") -> None:
        """Close connections and store; unacknowledged rows stay in it. ``failure``: the error that ended the agent."""
        self._board.mute()
        try:
            await self._links.close()
            await self._board.write_last(self._store, failure)
        finally:
            await self._store.close()

    def _working_parts(self) -> Iterator[tuple[str, Coroutine[None, None, None]]]:
        if self._namesake is not None:
            yield "names", self._wait_for_names(self._namesake)
            return
        if self._settings.pair.members:
            yield "pair", serve_pair(self._parts, self._blocks, self._upload_path)
            return
        yield "upstream", self._upload()
        for block in self._settings.stream:
            yield block.name, self._read(block)

    async def _wait_for_names(self, namesake: Namesake) -> None:
        for block in self._settings.stream:
            self._board.reporter(stream_part(block.name))(IngestPhase.WITHDRAWN, "another agent has its name")
        link = await self._upload_path.open()
        await link.names.run_withdrawn(namesake)

    async def _upload(self) -> None:
        link = await self._upload_path.open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.clock.run(), name="clock of the region")
            tasks.create_task(link.names.run(), name="names")
            await link.names.may_publish.wait()
            interval = int(self._settings.watermark.interval) / SECOND
            readers = self._blocks.readers
            self._announcements = Announcements(link.client, readers.items, self._board.conditions, interval)
            tasks.create_task(self._announcements.run(), name="announcements")
            await self._upload_path.run(link)

    async def _read(self, block: StreamSettings) -> None:
        known = await self._store.load_block(block.name)
        await self._blocks.read(await self._blocks.connect(block), known)


def _first_of(errors: BaseExceptionGroup[E]) -> E:
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first


def _describe(error: BaseException) -> str:
    """Return the kind and the text of an error, of the first one in a group, in one line that fits a terminal."""
    if isinstance(error, BaseExceptionGroup):
        return _describe(error.exceptions[0])
    return cut(visible(f"{type(error).__name__}: {error}".removesuffix(": ")), 200)


def _log_findings(path: Path, prepared: Preparation, damage: StoreDamaged | None) -> None:
    if prepared.is_older:
        log.error(
            "store %s holds less than had been committed to it (its -wal is gone, or an older copy was put back): set "
            "aside as %s, beginning anew; known senders will be announced again",
            path,
            prepared.set_aside,
        )
    elif prepared.set_aside:
        said = f" ({damage})" if damage is not None else ""
        log.error("store %s was corrupt%s: set aside as %s, beginning anew", path, said, prepared.set_aside)
    elif prepared.was_lost:
        log.error("store %s is gone though there was one: beginning anew; known senders will be announced again", path)
    elif damage is not None:
        log.error(
            "store %s could not be read for a moment (%s) and is sound: going on with it; its disk fails, the kernel's "
            "log says more",
            path,
            damage,
        )
    for old in prepared.removed:
        log.error("store %s: %s, set aside before, was removed to make room", path, old)
    if prepared.migrated_from:
        log.info("store %s: written by an older agent (version %d), now up to date", path, prepared.migrated_from)


STATUS_INTERVAL = 5.0
EXTENSION, EXTEND_INTERVAL = 60.0, 10.0
"""Seconds: how much longer a start may take, and how often that is asked for again."""
_SHORTEST_INTERVAL = 0.05


async def keep_supervisor_informed(board: StatusBoard) -> None:
    """Send READY, then WATCHDOG at half of the supervisor's interval, and STATUS when it has changed, until cancelled.

    The protocol is sd_notify(3): datagrams to the socket that NOTIFY_SOCKET names. They are sent from the event loop:
    a loop that hangs sends nothing.
    """
    _notify("READY=1")
    watchdog = _watchdog_interval()
    interval = min(watchdog or STATUS_INTERVAL, STATUS_INTERVAL)
    announced = ""
    while True:
        status = board.in_a_line()
        if status != announced:
            _notify(f"STATUS={status}")
            announced = status
        await asyncio.sleep(interval)
        if watchdog:
            _notify("WATCHDOG=1")


@asynccontextmanager
async def keep_watchdog(stopping: asyncio.Event) -> AsyncIterator[None]:
    """Send WATCHDOG in the meantime, and ask for more time: the loop waits for a slow thread, it does not hang.

    Until READY systemd's TimeoutStartSec counts, not WATCHDOG; since 236 it can be extended.
    """
    watchdog = asyncio.create_task(_keep_watchdog(stopping), name="watchdog")
    try:
        yield
    finally:
        watchdog.cancel()


async def _keep_watchdog(stopping: asyncio.Event) -> None:
    # Twice as often: the last WATCHDOG may already be as old as it may become.
    watchdog = _watchdog_interval() / 2
    while True:
        if watchdog:
            _notify("WATCHDOG=1")
        if not stopping.is_set():
            # After that, it would lengthen what systemd gives a stop.
            _notify(f"EXTEND_TIMEOUT_USEC={int(EXTENSION * 1e6)}")
        await asyncio.sleep(min(watchdog or EXTEND_INTERVAL, EXTEND_INTERVAL))


def announce_stopping() -> None:
    _notify("STOPPING=1\nSTATUS=stopping")


def _watchdog_interval() -> float:
    """Return half of the interval, in seconds, in which the supervisor expects a sign of this process; 0: none."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return 0.0
    asked = os.environ.get("WATCHDOG_USEC", "")
    return max(int(asked) / 2e6, _SHORTEST_INTERVAL) if asked.isdecimal() and int(asked) else 0.0


def _notify(state: str) -> None:
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # A supervisor that does not listen is no reason to stop: without its watchdog's word it decides itself.
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notifier,
    ):
        # The loop must not wait for a supervisor whose queue is full.
        notifier.setblocking(False)
        notifier.sendto(state.encode(), f"\0{address[1:]}" if address.startswith("@") else address)

"""Takeover from stream-replicator: the positions of its consumers, and the senders in its state files.

A block begins in a new store as if the agent had read up to there itself: no sender is announced again, and no later
message is skipped or read twice. Coverage begins at the last message that was acknowledged.
"""

import asyncio
import os
import re
import time
from pathlib import Path
from typing import TypeVar

import msgspec
from nats.aio.client import Client

from edge_agent.config.agent import AgentSettings
from edge_agent.config.stream import StreamSettings
from edge_agent.core.block_state import BlockState
from edge_agent.core.policy import PolicyRevisions
from edge_agent.core.senders import SenderChanges, SenderPhase, SenderState
from edge_agent.core.stream_past import StreamFacts
from edge_agent.migration.peer import MigrationRefused, PeerSender, instant, read_senders
from edge_agent.migration.settings import MigratedBlock
from edge_agent.source.consumer import ConsumerInfo
from edge_agent.source.stream_facts import StreamInfo
from edge_agent.store.files import hold_of, prepare
from edge_agent.store.marker import marker_of
from edge_agent.store.port import BatchCommit
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import SourcePosition
from shared.nats.connection import ConnectFailed, connect
from shared.nats.jetstream_api import (
    NO_SUCH_CONSUMER,
    ApiError,
    RequestFailed,
    api_prefix,
    request_json,
)
from shared.nats.stream_messages import get_message

T = TypeVar("T")

CONNECT_DEADLINE, ANSWER_DEADLINE = 15.0, 10.0
_NO_CONSUMER_NAME = re.compile(r"[.*>/\\\s]")

LAST_REQUEST = 15.0
"""Seconds within which what the peer had asked for last ends: it asks for 10 s."""


class _StopPosition(msgspec.Struct, frozen=True):
    """The position where the peer has stopped; ``stored_at`` 0 if the stream no longer holds that message."""

    facts: StreamFacts
    sequence: int
    stored_at: int


async def take_over(settings: AgentSettings, blocks: tuple[MigratedBlock, ...], state: Path) -> list[str]:
    """Begin the store with the peer's state; return a line about each block that was taken over.

    ``state`` is the peer's ``state_store``, or a file in it. Raise MigrationRefused, with nothing written.
    """
    path = Path(settings.store.path)
    if any(each.exists() for each in (path, marker_of(path))):
        raise MigrationRefused(f"store {path}: there is one already; take over into a new one, before the first start")
    files = _files_in(state, blocks)
    batches, said = [], []
    for block in settings.stream:
        of_peer = next(each for each in blocks if each.name == block.name)
        senders = read_senders(files[of_peer.name].read_bytes()) if of_peer.name in files else {}
        stopped = await _where_stopped(settings, block, of_peer.consumer)
        if stopped is None:
            said.append(
                f"{block.name}: stream {block.source.stream} has no consumer {of_peer.consumer}, so nothing is taken "
                f"over: it is read from its start ({block.source.start})"
            )
            continue
        batch = _batch(settings, block, stopped, senders)
        batches.append(batch)
        count, stale = len(batch.changes.heard), len(batch.changes.stale)
        known = f"{count + stale} senders ({stale} of them stale), " if block.mode == "sample" else ""
        said.append(f"{block.name}: {known}read on behind message {stopped.sequence} of stream {block.source.stream}")
    if batches:
        await _write(path, settings.store.max_outbox, batches)
    return said


def _files_in(state: Path, blocks: tuple[MigratedBlock, ...]) -> dict[str, Path]:
    """Find each block's state file; a single one must be of a block."""
    if state.is_dir():
        return {block.name: file for block in blocks if (file := state / block.state_file).is_file()}
    if not state.is_file():
        raise MigrationRefused(f"state {state}: there is no such file")
    found = {block.name: state for block in blocks if block.state_file == state.name}
    if not found:
        names = ", ".join(block.state_file for block in blocks)
        raise MigrationRefused(f"state {state}: of no stream of this configuration, whose files are {names}")
    return found


async def _where_stopped(settings: AgentSettings, block: StreamSettings, consumer: str) -> _StopPosition | None:
    """Ask the site where the peer's consumer stands; None where there is none. Raise MigrationRefused."""
    stream, prefix = block.source.stream, api_prefix(block.source.domain)
    if _NO_CONSUMER_NAME.search(consumer):
        # Servers make no consumer of that name, and do not answer where it is asked for.
        return None
    try:
        client = await connect(
            block.source,
            name=f"muster-agent {settings.site} migrate-config",
            inbox_prefix=f"_INBOX_{settings.site}",
            deadline=CONNECT_DEADLINE,
        )
    except ConnectFailed as error:
        raise MigrationRefused(f"{error}; {error.remedy}") from error

    try:
        return await _stop_position(client, prefix, stream, consumer)
    except ApiError as error:
        if error.err_code == NO_SUCH_CONSUMER:
            return None
        raise MigrationRefused(f"stream {stream}: {error}") from error
    except RequestFailed as error:
        raise MigrationRefused(str(error)) from error
    finally:
        await client.close()


async def _stop_position(client: Client, prefix: str, stream: str, consumer: str) -> _StopPosition:
    async def ask(subject: str, body: object, model: type[T]) -> T:
        return await request_json(client, f"{prefix}.{subject}", body, model, deadline=ANSWER_DEADLINE)

    info = await ask(f"STREAM.INFO.{stream}", None, StreamInfo)
    ends_at = time.monotonic() + LAST_REQUEST
    while (stands := await ask(f"CONSUMER.INFO.{stream}.{consumer}", None, ConsumerInfo)).num_waiting:
        if time.monotonic() > ends_at:
            raise MigrationRefused(
                f"stream-replicator still reads stream {stream} through consumer {consumer}: "
                "stop it first (systemctl disable --now stream-replicator), then again"
            )
        await asyncio.sleep(0.5)
    sequence, found = stands.ack_floor.stream_seq, None
    if sequence:
        # Acknowledged messages of a work queue are gone, and so may be old ones.
        found = await get_message(client, stream, {"seq": sequence}, api=prefix, deadline=ANSWER_DEADLINE)
    return _StopPosition(info.facts, sequence, found.time if found else 0)


def _batch(
    settings: AgentSettings, block: StreamSettings, stopped: _StopPosition, senders: dict[str, PeerSender]
) -> BatchCommit:
    """Return the block as the agent would have committed it at the peer's position."""
    facts = stopped.facts
    incarnation, policy = facts.incarnation(), block.policy.policy()
    seen = {name: instant(sender.seen) for name, sender in senders.items() if name}
    # The peer's clock wrote them: none is later than what it had read.
    through = stopped.stored_at or min(max(seen.values(), default=0), facts.server_at)
    heard, stale = list[SenderState](), list[SenderState]()
    for slot, name in enumerate(seen):
        sender, last_seen_at = senders[name], min(seen[name], through)
        state = SenderState(
            name,
            slot,
            SenderPhase.STALE if sender.advised else SenderPhase.HEARD,
            last_seen_at,
            last_sequence=0,
            opening_incarnation=incarnation,
            opening_sequence=0,
            last_forwarded_at=min(instant(sender.copied), through),
            forwarded_size=int(sender.size),
        )
        if sender.advised:
            state.stale_observed_at = min(last_seen_at + policy.stale_after, through)
        (stale if sender.advised else heard).append(state)
    heard.sort(key=lambda each: each.last_seen_at)
    stale.sort(key=lambda each: each.stale_observed_at)
    state_of_block = BlockState(
        SourcePosition(block.source.stream, incarnation, stopped.sequence, stopped.stored_at),
        policy,
        policy_at=through,
        revisions=PolicyRevisions(given_at=facts.server_at),
        observed_since=through,
        observed_through=through,
        source_clock=through,
        store_began_at=incarnation.epoch_at,
        mode=block.mode,
    )
    return BatchCommit(settings.block_id(block), state_of_block, SenderChanges(heard, stale, []), [])


async def _write(path: Path, max_outbox: int, batches: list[BatchCommit]) -> None:
    with hold_of(path):
        prepare(path)
        store = await SqliteStore.open(path, max_outbox)
        try:
            for batch in batches:
                await store.commit(batch)
        finally:
            await store.close()
    if os.geteuid() == 0:
        # The agent's user must be able to write what root has made for it.
        owner = path.parent.stat()
        for each in path.parent.glob(f"{path.name}*"):
            os.chown(each, owner.st_uid, owner.st_gid)

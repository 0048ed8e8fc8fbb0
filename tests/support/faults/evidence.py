"""Gather, when all is over, what the verdict needs: the site's stream, the agent's store, the region's stream."""

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from itertools import pairwise
from pathlib import Path

import msgspec
from nats.aio.client import Client
from nats.aio.msg import Msg

from edge_agent.config import agent as config
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Advise, Forward, RecordedInput
from edge_agent.core.intake import Intake
from edge_agent.core.observation import Observation, ProbeSighting, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, WatermarkContext
from edge_agent.pair.log import EntryKind, decode_entry
from edge_agent.store.decision_log import LOGGED_FORWARDS
from shared import policy, wire
from shared.embedded.server import EmbeddedNats
from shared.identifiers import BlockId, Incarnation, SourcePosition
from shared.nats.connection import ConnectionSettings, connect
from shared.nats.jetstream_api import NO_SUCH_STREAM, ApiError, api_prefix, request_json
from shared.nats.stream_messages import delivery_of, every_message
from tests.support.core.straight_replay import replay
from tests.support.faults.fleet import SENDER_HEADER
from tests.support.faults.stage import FLEET, STREAM, Down, FaultStage

DEADLINE = 30.0
PAIR_LOG = "MUSTER_PAIR_dub1"


class FleetRecord(msgspec.Struct, frozen=True):
    """One record as the region's stream holds it."""

    subject: str
    payload: bytes
    headers: dict[str, str] = {}


class Evidence(msgspec.Struct, kw_only=True):
    """Everything that the verdict is made of.

    ``messages``: the site's stream, with the sender of each as the agent has it ("" for none); ``published_by`` has it
    from the senders, by sequence; ``probes`` are the agent's own messages there. ``acknowledged``: message ids that the
    senders know to be stored, ``stored_ids``: those that are. ``advisories`` and ``forwarded`` are those of a straight
    run, the latter bodies by their origin; ``fates`` says of forwarded registrations, by sequence, why they were let
    go, ``let_go`` how many each agent's store names, and how many it counted; ``takeovers``, how often the other member
    of a pair led on. ``set_apart``: copies, by their origin, that the agent keeps because the region cannot take them.
    ``downs``: when the site's server provably stored nothing; ``shown_twice``: what its clock, set back, showed again.
    ``copied_through`` is the last message that the block of copies has read. ``retired_by_order``: the senders that the
    operator ordered to be retired.
    """

    block_id: BlockId
    incarnation: Incarnation
    state: BlockState
    messages: list[tuple[str, SourceMessage]]
    published_by: dict[int, str] = {}
    probes: set[int] = set()
    acknowledged: set[str] = set()
    stored_ids: set[str] = set()
    recorded: list[RecordedInput] = []
    advisories: list[bytes] = []
    forwarded: dict[str, bytes] = {}
    fates: dict[int, str] = {}
    let_go: list[tuple[int, int]] = []
    takeovers: int = 0
    fleet: list[FleetRecord] = []
    set_apart: dict[str, bytes] = {}
    downs: list[Down] = []
    shown_twice: list[tuple[int, int]] = []
    copies_id: BlockId | None = None
    copied_through: int = 0
    retired_by_order: set[str] = set()

    @property
    def policy(self) -> Policy:
        """Give the thresholds, which never change."""
        return self.state.policy


class _Message(msgspec.Struct):
    seq: int


class _Last(msgspec.Struct):
    message: _Message


class _State(msgspec.Struct):
    messages: int


class _Info(msgspec.Struct):
    state: _State


class _StoreContents(msgspec.Struct):
    state: BlockState
    copies: BlockState | None
    recorded: list[RecordedInput]
    fates: dict[int, str]
    let_go_count: int
    set_apart: dict[str, bytes]


async def gather(stage: FaultStage, acknowledged: set[str], held_in: str = FLEET) -> Evidence:
    """Read everything; the agent has ended, the servers run. ``held_in``: the stream that must have what it said."""
    settings = config.load(stage.config_path)
    block, *others = settings.stream
    rule = block.sender_rule()
    intake = Intake(rule, block.policy.force_path, block.policy.digest_rule())
    stores = {agent.store_path: read_store(agent.store_path, block.name) for agent in stage.agents}
    store = stores[stage.store_path]
    incarnation = store.state.position.incarnation
    block_id = settings.block_id(block)

    stored_ids: set[str] = set()
    published_by: dict[int, str] = {}
    taken = []
    async for message in stored(stage.site, STREAM):
        delivery = delivery_of(message.reply)
        headers = message.headers or {}
        stored_ids.add(headers.get(wire.MESSAGE_ID_HEADER, ""))
        published_by[delivery.sequence] = headers.get(SENDER_HEADER, "")
        source = SourceMessage(message.subject, message.data, message.headers, delivery.sequence, delivery.stored_at)
        taken.append(intake.read(source))
    began_as = BlockState(SourcePosition(STREAM, incarnation, 0), block.policy.policy())
    read = [(incarnation, each) for each in taken if each.message.sequence <= store.state.position.sequence]
    decisions = replay(began_as, read, store.recorded, store.state.observed_through)
    emitter = Emitter(block_id, "", "", "", rule.inspect_field, bytes(32))
    advise = [decision for decision in decisions if isinstance(decision, Advise)]
    return Evidence(
        block_id=block_id,
        incarnation=incarnation,
        state=store.state,
        messages=[(each.sender_id if isinstance(each, Observation) else "", each.message) for each in taken],
        published_by=published_by,
        probes={each.message.sequence for each in taken if isinstance(each, ProbeSighting)},
        acknowledged=acknowledged,
        stored_ids=stored_ids,
        recorded=store.recorded,
        advisories=[row.payload for row in emitter.rows(list(advise), store.state, WatermarkContext({}, {}, {}))],
        forwarded={
            wire.origin_header(block_id, incarnation, decision.message.sequence): decision.message.payload
            for decision in decisions
            if isinstance(decision, Forward)
        },
        # What one member of a pair let go, the other may have sent.
        fates={sequence: fate for each in stores.values() for sequence, fate in each.fates.items()},
        let_go=[(len(each.fates), each.let_go_count) for each in stores.values()],
        takeovers=await count_takeovers(stage) if stage.is_pair else 0,
        fleet=[
            FleetRecord(message.subject, message.data, message.headers or {})
            async for message in stored(stage.region, held_in)
            if message.subject.startswith(f"fleet.{block_id.region}.{block_id.site}.")
        ],
        set_apart=store.set_apart,
        downs=stage.downs,
        shown_twice=stage.shown_twice,
        copies_id=settings.block_id(others[0]) if others else None,
        copied_through=store.copies.position.sequence if store.copies else 0,
        retired_by_order={sender_id async for sender_id in retirements(stage.region)},
    )


async def retirements(server: EmbeddedNats) -> AsyncIterator[str]:
    """Yield the senders that orders retire; none where there is no stream of orders."""
    try:
        async for message in stored(server, policy.STREAM):
            order = policy.decode_revision(message.data).order
            if isinstance(order, policy.RetireSender):
                yield order.sender_id
    except ApiError as error:
        if error.err_code != NO_SUCH_STREAM:
            raise


def read_store(path: Path, block: str) -> _StoreContents:
    """Read what an agent that has ended left: its state, what it recorded, and what became of what it forwarded."""
    with closing(sqlite3.connect(path)) as database:
        states = {
            name: msgspec.json.decode(state, type=BlockState)
            for name, state in database.execute("SELECT name, state FROM block")
        }
        recorded = database.execute(
            "SELECT body FROM recorded_input WHERE block = ? ORDER BY row_id", (block,)
        ).fetchall()
        fates = dict(database.execute(f"SELECT sequence, fate FROM {LOGGED_FORWARDS} WHERE fate <> ''"))
        counted = "SELECT COALESCE(SUM(count), 0) FROM outbox_counter WHERE what <> 'set_apart'"
        ((let_go,),) = database.execute(counted).fetchall()
        set_apart = _set_apart(database)
    return _StoreContents(
        states.pop(block),
        next(iter(states.values()), None),
        [msgspec.json.decode(body, type=RecordedInput) for (body,) in recorded],
        fates,
        let_go,
        set_apart,
    )


def _set_apart(database: sqlite3.Connection) -> dict[str, bytes]:
    """Give the bodies of what is set apart, by origin; nothing where the store knows nothing of the kind."""
    if not database.execute("SELECT 1 FROM sqlite_master WHERE name = 'set_apart'").fetchone():
        return {}
    rows = database.execute("SELECT headers, payload FROM set_apart").fetchall()
    return {msgspec.json.decode(headers, type=dict[str, str])[wire.ORIGIN_HEADER]: body for headers, body in rows}


async def count_takeovers(stage: FaultStage) -> int:
    """Count in a pair's log how often another member led than before."""
    leaders = []
    async for message in stored(stage.site, PAIR_LOG):
        entry = decode_entry(message.data)
        if entry.kind is EntryKind.LEADS:
            leaders.append(entry.writer.member)
    return sum(before != after for before, after in pairwise(leaders))


async def stored(server: EmbeddedNats, stream: str) -> AsyncIterator[Msg]:
    """Read a whole stream, in order."""
    async with client_of(server) as client:
        async for message in every_message(client, stream, api=api_prefix(), deadline=DEADLINE):
            yield message


async def last_sequence(server: EmbeddedNats, stream: str, subject: str) -> int:
    """Give the sequence of the last message that a stream has stored on a subject."""
    async with client_of(server) as client:
        wanted = {"last_by_subj": subject}
        found = await request_json(client, f"$JS.API.STREAM.MSG.GET.{stream}", wanted, _Last, deadline=DEADLINE)
        return found.message.seq


async def state_of(client: Client, stream: str) -> _State:
    """Ask for a stream's state."""
    return (await request_json(client, f"$JS.API.STREAM.INFO.{stream}", None, _Info, deadline=DEADLINE)).state


@asynccontextmanager
async def client_of(server: EmbeddedNats) -> AsyncIterator[Client]:
    """Connect to a server, for as long as the block lasts."""
    client = await connect(ConnectionSettings(servers=(server.url,)), name="evidence", deadline=DEADLINE)
    try:
        yield client
    finally:
        await client.close()

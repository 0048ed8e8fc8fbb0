"""Ask every server of a system what it is and does, through the system account, as tables for people.

Source: the system services ``$SYS.REQ.SERVER.PING.STATSZ`` and ``.JSZ`` of the NATS documentation, "System Events".
"""

import asyncio
import time
from typing import TypeVar

import msgspec
from nats.aio.client import Client

from aggregator.terminal import format_table
from shared.command_line.tables import UNWRAPPED, Column
from shared.instants import SECOND, format_duration, parse_instant
from shared.sizes import format_size

GATHER_DEADLINE = 30.0
GATHER_BRIEFLY = 1.0
"""Seconds, where some may be still on their way: rather ask again."""


class Server(msgspec.Struct, frozen=True):
    """Who answers; ``time`` is its clock."""

    name: str
    cluster: str = ""
    ver: str = ""
    jetstream: bool = False
    tags: list[str] = []
    time: str = ""


class Statistics(msgspec.Struct, frozen=True):
    """How a server is; ``mem`` in bytes."""

    start: str
    mem: int = 0
    cpu: float = 0.0
    cores: int = 0
    connections: int = 0
    subscriptions: int = 0
    slow_consumers: int = 0
    routes: list[msgspec.Raw] = []


class ServerState(msgspec.Struct, frozen=True):
    """One server's answer to STATSZ; ``round_trip`` in microseconds."""

    server: Server
    statsz: Statistics
    round_trip: int = 0


class ClusterSize(msgspec.Struct, frozen=True):
    """A line of the clusters' overview."""

    name: str
    nodes: int
    connections: int


class Api(msgspec.Struct, frozen=True):
    """How often JetStream's API was asked, and refused."""

    total: int = 0
    errors: int = 0


class Peer(msgspec.Struct, frozen=True):
    """A follower in the meta group, as its leader sees it; ``peer`` its id, ``active`` in nanoseconds."""

    name: str
    peer: str = ""
    current: bool = False
    offline: bool = False
    active: int = 0
    lag: int = 0


class MetaGroup(msgspec.Struct, frozen=True):
    """The group that decides where streams are; only its leader knows its followers."""

    leader: str = ""
    peer: str = ""
    cluster_size: int = 0
    replicas: list[Peer] = []


class JetStreamState(msgspec.Struct, frozen=True):
    """What a server holds."""

    streams: int = 0
    consumers: int = 0
    messages: int = 0
    bytes: int = 0
    memory: int = 0
    storage: int = 0
    api: Api = Api()
    meta_cluster: MetaGroup = MetaGroup()


class JetStreamAnswer(msgspec.Struct, frozen=True):
    """One server's answer to JSZ."""

    server: Server
    data: JetStreamState

    @property
    def leads(self) -> bool:
        return self.data.meta_cluster.leader == self.server.name


T = TypeVar("T", ServerState, JetStreamAnswer)


class GroupMember(msgspec.Struct, frozen=True):
    """A line of the meta group's report."""

    name: str
    id: str
    leads: bool = False
    current: bool = True
    online: bool = True
    active: int = 0
    lag: int = 0


async def server_states(client: Client, count: int, deadline: float = GATHER_DEADLINE) -> list[ServerState]:
    """Ask for the state of ``count`` servers; fewer where no more answer within ``deadline`` seconds."""
    answers = await _gather(client, "STATSZ", ServerState, count, deadline)
    return [msgspec.structs.replace(state, round_trip=round_trip) for state, round_trip in answers]


async def jetstream_states(client: Client, count: int, deadline: float = GATHER_DEADLINE) -> list[JetStreamAnswer]:
    """Ask what ``count`` servers hold; fewer where no more answer within ``deadline`` seconds."""
    return [answer for answer, _ in await _gather(client, "JSZ", JetStreamAnswer, count, deadline)]


def clusters(states: list[ServerState]) -> list[ClusterSize]:
    names = sorted({each.server.cluster for each in states})
    by_name = {name: [each.statsz for each in states if each.server.cluster == name] for name in names}
    return [ClusterSize(name, len(of), sum(each.connections for each in of)) for name, of in by_name.items()]


def meta_group(states: list[JetStreamAnswer]) -> list[GroupMember]:
    """List the members of the meta group, as its leader sees them; none while there is no leader."""
    for each in states:
        meta = each.data.meta_cluster
        if each.leads:
            leader = GroupMember(meta.leader, meta.peer, leads=True)
            return sorted([leader, *map(_follower, meta.replicas)], key=lambda member: member.name)
    return []


def _follower(peer: Peer) -> GroupMember:
    online = not peer.offline
    return GroupMember(peer.name, peer.peer, current=peer.current, online=online, active=peer.active, lag=peer.lag)


def format_servers(states: list[ServerState], width: int = UNWRAPPED) -> str:
    """Lay out who there is, and how many of them make up each cluster."""
    servers = format_table(_SERVER_COLUMNS, states, width)
    return f"{servers}\n\n{format_table(_CLUSTER_COLUMNS, clusters(states), width)}"


def format_jetstream(states: list[JetStreamAnswer], width: int = UNWRAPPED) -> str:
    """Lay out who holds what; the meta group's leader has a star."""
    return format_table(_JETSTREAM_COLUMNS, states, width)


def format_meta_group(members: list[GroupMember], width: int = UNWRAPPED) -> str:
    return format_table(_META_COLUMNS, members, width)


async def _gather(client: Client, what: str, model: type[T], count: int, deadline: float) -> list[tuple[T, int]]:
    """Collect one answer of each server, and the microseconds that it took, ordered by name."""
    answers: dict[str, tuple[T, int]] = {}
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(f"$SYS.REQ.SERVER.PING.{what}", b"", reply=inbox)
    asked_at = time.monotonic()
    try:
        async with asyncio.timeout(deadline):
            while len(answers) < count:
                message = await subscription.next_msg(timeout=deadline)
                answer = msgspec.json.decode(message.data, type=model)
                answers[answer.server.name] = answer, round((time.monotonic() - asked_at) * SECOND)
    except TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()
    return [answers[name] for name in sorted(answers)]


def _uptime(state: ServerState) -> str:
    return format_duration(parse_instant(state.server.time) - parse_instant(state.statsz.start))


_SERVER_COLUMNS: tuple[Column[ServerState], ...] = (
    Column("name", lambda each: each.server.name),
    Column("cluster", lambda each: each.server.cluster),
    Column("version", lambda each: each.server.ver),
    Column("js", lambda each: "yes" if each.server.jetstream else "no"),
    Column("conns", lambda each: f"{each.statsz.connections:,}", right=True),
    Column("subs", lambda each: f"{each.statsz.subscriptions:,}", right=True),
    Column("routes", lambda each: str(len(each.statsz.routes)), right=True),
    Column("mem", lambda each: format_size(each.statsz.mem), right=True, spare=2),
    Column("cpu %", lambda each: f"{each.statsz.cpu:g}", right=True, spare=3),
    Column("cores", lambda each: str(each.statsz.cores), right=True, spare=5),
    Column("slow", lambda each: str(each.statsz.slow_consumers), right=True, spare=4),
    Column("uptime", _uptime, right=True, spare=1),
    Column("rtt", lambda each: format_duration(each.round_trip), right=True),
)
_CLUSTER_COLUMNS: tuple[Column[ClusterSize], ...] = (
    Column("cluster", lambda each: each.name),
    Column("nodes", lambda each: str(each.nodes), right=True),
    Column("connections", lambda each: f"{each.connections:,}", right=True),
)
_JETSTREAM_COLUMNS: tuple[Column[JetStreamAnswer], ...] = (
    Column("server", lambda each: each.server.name + "*" * each.leads),
    Column("cluster", lambda each: each.server.cluster),
    Column("streams", lambda each: f"{each.data.streams:,}", right=True),
    Column("consumers", lambda each: f"{each.data.consumers:,}", right=True),
    Column("messages", lambda each: f"{each.data.messages:,}", right=True),
    Column("bytes", lambda each: format_size(each.data.bytes), right=True, spare=2),
    Column("memory", lambda each: format_size(each.data.memory), right=True, spare=1),
    Column("file", lambda each: format_size(each.data.storage), right=True),
    Column("api req", lambda each: f"{each.data.api.total:,}", right=True),
    Column("api err", lambda each: f"{each.data.api.errors:,}", right=True),
)
_META_COLUMNS: tuple[Column[GroupMember], ...] = (
    Column("name", lambda each: each.name),
    Column("id", lambda each: each.id, spare=1),
    Column("leader", lambda each: "yes" if each.leads else ""),
    Column("current", lambda each: "yes" if each.current else "no"),
    Column("online", lambda each: "yes" if each.online else "no"),
    Column("active", lambda each: format_duration(each.active // 1000), right=True),
    Column("lag", lambda each: f"{each.lag:,}", right=True),
)

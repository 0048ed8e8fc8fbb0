"""State of all servers of a system, through the system account, and tables of it.

Source: the system services ``$SYS.REQ.SERVER.PING.STATSZ`` and ``.JSZ`` of the NATS documentation, "System Events".
"""

import asyncio
from typing import Any

import msgspec
from nats.aio.client import Client

from aggregator.terminal import format_table
from shared.command_line.tables import TableColumn
from shared.instants import format_duration, parse_instant
from shared.sizes import format_size

GATHER_DEADLINE = 30.0
GATHER_BRIEFLY = 1.0
"""Seconds, for a question that is asked again until all servers are there."""

Answer = dict[str, Any]


async def gather(client: Client, question: str, count: int, deadline: float = GATHER_DEADLINE) -> list[Answer]:
    """Return the answers of ``count`` servers to STATSZ, JSZ or CLAIMS, by name; fewer after ``deadline`` seconds."""
    return await gather_from(client, f"$SYS.REQ.SERVER.PING.{question}", b"", count, deadline)


async def gather_from(client: Client, subject: str, body: bytes, count: int, deadline: float) -> list[Answer]:
    answers: dict[str, Answer] = {}
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    await client.publish(subject, body, reply=inbox)
    try:
        async with asyncio.timeout(deadline):
            while len(answers) < count:
                answer = msgspec.json.decode((await subscription.next_msg(timeout=deadline)).data)
                answers[answer["server"]["name"]] = answer
    except TimeoutError:
        pass
    finally:
        await subscription.unsubscribe()
    return [answers[name] for name in sorted(answers)]


def names(answers: list[Answer]) -> list[str]:
    return [each["server"]["name"] for each in answers]


def cluster_sizes(answers: list[Answer]) -> dict[str, int]:
    clusters = [each["server"]["cluster"] for each in answers]
    return {cluster: clusters.count(cluster) for cluster in sorted(set(clusters))}


def is_meta_leader(answer: Answer) -> bool:
    """Return True if the server leads the group that places streams."""
    return bool(answer["data"].get("meta_cluster", {}).get("leader") == answer["server"]["name"])


def meta_group(answers: list[Answer]) -> list[Answer]:
    """Return the members of the meta group as its leader reports them; none while there is no leader."""
    for meta in (each["data"]["meta_cluster"] for each in answers if is_meta_leader(each)):
        leader = {"name": meta["leader"], "leads": True, "current": True}
        return sorted([leader, *meta.get("replicas", [])], key=lambda member: str(member["name"]))
    return []


def format_servers(answers: list[Answer], width: int) -> str:
    return format_table(_SERVER_COLUMNS, answers, width)


def format_jetstream(answers: list[Answer], width: int) -> str:
    """Format the JetStream usage of each server; the meta group's leader has a star."""
    return format_table(_JETSTREAM_COLUMNS, answers, width)


def format_meta_group(members: list[Answer], width: int) -> str:
    return format_table(_META_COLUMNS, members, width)


def _uptime(answer: Answer) -> str:
    return format_duration(parse_instant(answer["server"]["time"]) - parse_instant(answer["statsz"]["start"]))


_SERVER_COLUMNS: tuple[TableColumn[Answer], ...] = (
    TableColumn("name", lambda each: each["server"]["name"]),
    TableColumn("cluster", lambda each: each["server"]["cluster"]),
    TableColumn("version", lambda each: each["server"]["ver"]),
    TableColumn("conns", lambda each: f"{each['statsz']['connections']:,}", right=True),
    TableColumn("subs", lambda each: f"{each['statsz']['subscriptions']:,}", right=True),
    TableColumn("routes", lambda each: str(len(each["statsz"].get("routes", []))), right=True),
    TableColumn("mem", lambda each: format_size(each["statsz"]["mem"]), right=True, spare=2),
    TableColumn("cpu %", lambda each: f"{each['statsz']['cpu']:g}", right=True, spare=3),
    TableColumn("uptime", _uptime, right=True, spare=1),
)
_JETSTREAM_COLUMNS: tuple[TableColumn[Answer], ...] = (
    TableColumn("server", lambda each: each["server"]["name"] + "*" * is_meta_leader(each)),
    TableColumn("cluster", lambda each: each["server"]["cluster"]),
    TableColumn("streams", lambda each: f"{each['data']['streams']:,}", right=True),
    TableColumn("consumers", lambda each: f"{each['data']['consumers']:,}", right=True),
    TableColumn("messages", lambda each: f"{each['data']['messages']:,}", right=True),
    TableColumn("memory", lambda each: format_size(each["data"]["memory"]), right=True, spare=1),
    TableColumn("file", lambda each: format_size(each["data"]["storage"]), right=True),
    TableColumn("api req", lambda each: f"{each['data']['api']['total']:,}", right=True),
    TableColumn("api err", lambda each: f"{each['data']['api']['errors']:,}", right=True),
)
_META_COLUMNS: tuple[TableColumn[Answer], ...] = (
    TableColumn("name", lambda each: each["name"]),
    TableColumn("leader", lambda each: "yes" if each.get("leads") else ""),
    TableColumn("current", lambda each: "yes" if each["current"] else "no"),
    TableColumn("online", lambda each: "no" if each.get("offline") else "yes"),
    TableColumn("active", lambda each: format_duration(each.get("active", 0) // 1000), right=True),
    TableColumn("lag", lambda each: f"{each.get('lag', 0):,}", right=True),
)

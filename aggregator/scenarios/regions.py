"""Regional and cross-region streams in one cluster of nine servers: three regions of three zones.

Source: "Regional and Cross Region Streams (Cluster)" of NATS by Example. Tags cannot be joined by "or", so what may lie
together across regions is written down beforehand: ``xr:231`` is region 1 in zone 2, region 2 in zone 3, region 3 in 1.
"""

from pathlib import Path
from typing import Any

import msgspec

from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.server_reports import (
    GATHER_BRIEFLY,
    GroupMember,
    clusters,
    format_jetstream,
    format_meta_group,
    format_servers,
    jetstream_states,
    meta_group,
    server_states,
)
from aggregator.scenarios.stage import ACCEPTED, JetStream, Topology, connected, nats_command
from aggregator.topology.report.text import format_report
from shared.embedded.cluster import EmbeddedCluster, Member
from shared.embedded.server import ServerSettings
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.nats.settings import AuthSettings
from shared.settings import FilePath

ACCOUNTS = """
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  APP { jetstream: true, users: [ { user: user, password: user } ] }
}
no_auth_user: user
"""
SERVERS = (
    Member("rg1-az1", ("rg:1", "az:1", "xr:123", "xr:132")),
    Member("rg1-az2", ("rg:1", "az:2", "xr:213", "xr:231")),
    Member("rg1-az3", ("rg:1", "az:3", "xr:312", "xr:321")),
    Member("rg2-az1", ("rg:2", "az:1", "xr:213", "xr:312")),
    Member("rg2-az2", ("rg:2", "az:2", "xr:123", "xr:321")),
    Member("rg2-az3", ("rg:2", "az:3", "xr:132", "xr:231")),
    Member("rg3-az1", ("rg:3", "az:1", "xr:231", "xr:321")),
    Member("rg3-az2", ("rg:3", "az:2", "xr:132", "xr:312")),
    Member("rg3-az3", ("rg:3", "az:3", "xr:123", "xr:213")),
)
NAMES = [server.name for server in SERVERS]
REGION_2 = NAMES[3:6]
STREAMS = """
[[stream]]
name = "EVENTS"
subjects = ["events.*"]
replicas = 3
duplicate_window = "2m"
allow_rollup = true
allow_direct = true
placement = { tags = ["xr:123"] }

[[stream]]
name = "ORDERS"
subjects = ["orders.*"]
replicas = 3
duplicate_window = "2m"
allow_rollup = true
allow_direct = true
placement = { tags = ["rg:2"] }
"""
CROSS_REGION = ("xr:123", "xr:132", "xr:213", "xr:231", "xr:312", "xr:321")
REGIONS = ("rg:1", "rg:2", "rg:3")
OPTIONS = {
    "retention": "limits",
    "storage": "file",
    "discard": "old",
    "num_replicas": 3,
    "duplicate_window": 120 * 10**9,
    "allow_direct": True,
    "allow_rollup_hdrs": True,
    "deny_delete": False,
    "deny_purge": False,
    "max_age": 0,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_msg_size": -1,
    "max_msgs_per_subject": -1,
    "max_consumers": -1,
}
_NO_SUITABLE_PEERS = "error 10005"
_ZONE = "STREAM.CREATE.ZONE"


async def play(directory: Path, narrator: Narrator) -> None:
    """Play it in ``directory``, where topology.toml stays."""
    narrator.chapter("Nine servers: three regions of three zones; replicas of a stream must be in different zones")
    password = directory / "sys.password"
    password.write_text("sys", encoding="utf-8")
    system = AuthSettings(user="sys", password_file=FilePath(password))

    def settled(settings: ServerSettings) -> ServerSettings:
        return msgspec.structs.replace(settings, jetstream_config='  unique_tag: "az:"', extra_config=ACCOUNTS)

    async with EmbeddedCluster("c1", directory, SERVERS, settled) as cluster:
        servers = ", ".join(f'"{url}"' for url in cluster.urls)
        topology = Topology(directory / "topology.toml", f"[hub]\nservers = [{servers}]\n", narrator.sentence)
        # Of region 3, which stays.
        url = cluster.urls[-1]
        async with connected(url) as jetstream, connected(url, auth=system) as administrator:
            await _reports(administrator, narrator)
            await _place(topology, jetstream, narrator)
            await _lose_region_2(cluster, jetstream, administrator, narrator)
            await narrator.stay(
                topology.way,
                nats_command(cluster.urls[0], "stream report"),
                nats_command(cluster.urls[0], "--user sys --password sys server report jetstream"),
            )


async def _reports(administrator: JetStream, narrator: Narrator) -> None:
    narrator.chapter("The servers, what they hold, and the group that decides where streams are")

    async def names() -> list[str]:
        return [each.server.name for each in await server_states(administrator.client, len(NAMES), GATHER_BRIEFLY)]

    await narrator.comes("servers", names, NAMES)
    states = await server_states(administrator.client, len(NAMES))
    narrator.output(format_servers(states, narrator.room))
    narrator.show("clusters", {each.name: each.nodes for each in clusters(states)}, {"c1": len(NAMES)})
    tags = {each.server.name: sorted(each.server.tags) for each in states}
    narrator.show("their tags", tags, {each.name: sorted(each.tags) for each in SERVERS})
    held = await jetstream_states(administrator.client, len(NAMES))
    narrator.output(format_jetstream(held, narrator.room))
    narrator.show("streams so far", sum(each.data.streams for each in held), 0)

    async def members() -> dict[str, bool]:
        return {each.name: each.current and each.online for each in await _meta_group(administrator, len(NAMES))}

    await narrator.comes("meta group: current and online", members, dict.fromkeys(NAMES, True))
    narrator.output(format_meta_group(await _meta_group(administrator, len(NAMES)), narrator.room))


async def _meta_group(administrator: JetStream, count: int) -> list[GroupMember]:
    return meta_group(await jetstream_states(administrator.client, count))


async def _place(topology: Topology, jetstream: JetStream, narrator: Narrator) -> None:
    narrator.chapter("EVENTS across the regions, ORDERS in region 2")
    await topology.apply(STREAMS)

    async def placed() -> dict[str, Any]:
        return {row.name: (row.placement, row.servers) for row in (await topology.report()).streams}

    await narrator.comes(
        "tags, and the servers that they come to",
        placed,
        {
            "EVENTS": (("xr:123",), ("rg1-az1", "rg2-az2", "rg3-az3")),
            "ORDERS": (("rg:2",), ("rg2-az1", "rg2-az2", "rg2-az3")),
        },
    )
    narrator.show("doing it again changes", len((await topology.apply()).changes), 0)
    narrator.output(format_report(await topology.report(), narrator.room))
    configs = {name: (await jetstream.info(name))["config"] for name in ("EVENTS", "ORDERS")}
    narrator.show(
        f"options that are not as documented, of {len(OPTIONS)}",
        {name: [key for key in OPTIONS if config.get(key) != OPTIONS[key]] for name, config in configs.items()},
        {name: [] for name in configs},
    )
    await _combine(jetstream, narrator)
    five = {"name": "FIVE", "subjects": ["five"], "num_replicas": 5}
    refused = await jetstream.answer("STREAM.CREATE.FIVE", five)
    narrator.show("five replicas in three zones", refused, _NO_SUITABLE_PEERS)
    zone = {"name": "ZONE", "subjects": ["zone"], "num_replicas": 3, "placement": {"tags": ["az:1"]}}
    narrator.show(
        "three replicas, and a tag that names one zone",
        await jetstream.answer(_ZONE, zone),
        ACCEPTED,
        note="unique_tag enforces different zones. A tag of the stream's own that names a zone lifts that",
    )
    await jetstream.publish("events.one", "before")
    await jetstream.publish("orders.one", "before")


async def _combine(jetstream: JetStream, narrator: Narrator) -> None:
    """Place a stream by each tag there is, and say in how many regions and zones it lies."""
    spread = {}
    for tag in [*CROSS_REGION, *REGIONS]:
        name = tag.replace(":", "")
        config = {"name": name, "subjects": [name], "num_replicas": 3, "placement": {"tags": [tag]}}
        placed = (await jetstream.insist(f"STREAM.CREATE.{name}", config))["cluster"]
        servers = [placed["leader"], *(each["name"] for each in placed["replicas"])]
        spread[tag] = tuple(len({server.split("-")[part] for server in servers}) for part in (0, 1))
        await jetstream.request(f"STREAM.DELETE.{name}")
    narrator.show(
        "each combination that was written down lies in as many regions, and zones",
        {tag: spread[tag] for tag in CROSS_REGION},
        dict.fromkeys(CROSS_REGION, (3, 3)),
    )
    narrator.show(
        "and each region's",
        {tag: spread[tag] for tag in REGIONS},
        dict.fromkeys(REGIONS, (1, 3)),
    )


async def _lose_region_2(
    cluster: EmbeddedCluster, jetstream: JetStream, administrator: JetStream, narrator: Narrator
) -> None:
    narrator.chapter("Region 2 is down: kill -9 of its three servers")
    for name in REGION_2:
        await cluster.servers[name].kill()

    async def present() -> list[str]:
        return [each.server.name for each in await server_states(administrator.client, len(NAMES) - len(REGION_2))]

    left = [name for name in NAMES if name not in REGION_2]
    await narrator.comes("servers left", present, left)
    await narrator.comes("EVENTS takes writes", lambda: jetstream.stores("events.one", "meanwhile"), True)
    narrator.show("ORDERS takes writes", await jetstream.stores("orders.one", "meanwhile"), False)

    async def members() -> list[str]:
        return [each.name for each in await _meta_group(administrator, len(left)) if each.current]

    await narrator.comes("current in the meta group", members, left)
    narrator.output(format_meta_group(await _meta_group(administrator, len(left)), narrator.room))
    narrator.sentence("a server that was killed did not say so, and is called online for a while: see current")
    third = {"name": "THIRD", "subjects": ["third"], "num_replicas": 3, "placement": {"tags": ["rg:3"]}}

    async def made() -> str:
        return await jetstream.answer("STREAM.CREATE.THIRD", third)

    await narrator.comes("a stream in region 3 can be made", made, ACCEPTED)

    narrator.chapter("Region 2 is back")
    await cluster.start(*REGION_2)
    await narrator.comes("ORDERS takes writes again", lambda: jetstream.stores("orders.one", "after"), True)
    narrator.show("ORDERS still has what it had", (await jetstream.bodies("ORDERS"))[0], "before")

    async def current() -> list[str]:
        try:
            placed = (await jetstream.info("EVENTS"))["cluster"]
        except (ApiError, RequestFailed):
            return []
        replicas = [each["name"] for each in placed.get("replicas") or [] if each["current"]]
        return sorted([placed.get("leader", ""), *replicas])

    await narrator.comes("EVENTS has all its replicas again", current, ["rg1-az1", "rg2-az2", "rg3-az3"])
    narrator.show(
        "EVENTS has what came before and meanwhile",
        sorted(set(await jetstream.bodies("EVENTS"))),
        ["before", "meanwhile"],
    )

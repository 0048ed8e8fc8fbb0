"""Regional and cross-region streams in one cluster of nine servers: three regions of three zones.

Source: "Regional and Cross Region Streams (Cluster)" of NATS by Example. Tags cannot be joined by "or", so each set of
servers across regions has a tag of its own: ``xr:231`` is region 1 in zone 2, region 2 in zone 3, region 3 in zone 1.
"""

from pathlib import Path
from typing import Any

import msgspec

from aggregator.topology.report.text import format_report
from shared.embedded.server import ServerSettings
from shared.nats.jetstream_api import ApiError, RequestFailed
from shared.nats.settings import AuthSettings
from shared.settings import FilePath
from tests.scenarios.narrator import Narrator
from tests.scenarios.server_reports import (
    GATHER_BRIEFLY,
    cluster_sizes,
    format_jetstream,
    format_meta_group,
    format_servers,
    gather,
    meta_group,
    names,
)
from tests.scenarios.stage import ACCEPTED, JetStream, Topology, connected
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member

ACCOUNTS = """
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  APP { jetstream: true, users: [ { user: user, password: user } ] }
}
no_auth_user: user
"""
TAGS = {
    "rg1-az1": ("rg:1", "az:1", "xr:123", "xr:132"),
    "rg1-az2": ("rg:1", "az:2", "xr:213", "xr:231"),
    "rg1-az3": ("rg:1", "az:3", "xr:312", "xr:321"),
    "rg2-az1": ("rg:2", "az:1", "xr:213", "xr:312"),
    "rg2-az2": ("rg:2", "az:2", "xr:123", "xr:321"),
    "rg2-az3": ("rg:2", "az:3", "xr:132", "xr:231"),
    "rg3-az1": ("rg:3", "az:1", "xr:231", "xr:321"),
    "rg3-az2": ("rg:3", "az:2", "xr:132", "xr:312"),
    "rg3-az3": ("rg:3", "az:3", "xr:123", "xr:213"),
}
NAMES = list(TAGS)
REGION_2 = NAMES[3:6]
LEFT = NAMES[:3] + NAMES[6:]
XR_123 = ("rg1-az1", "rg2-az2", "rg3-az3")
STREAMS = "".join(
    f"""
[[stream]]
name = "{subject.upper()}"
subjects = ["{subject}.*"]
replicas = 3
duplicate_window = "2m"
allow_rollup = true
allow_direct = true
placement = {{ tags = ["{tag}"] }}
"""
    for subject, tag in (("events", "xr:123"), ("orders", "rg:2"))
)
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


async def test_a_region_that_is_down_stops_its_own_streams_only(tmp_path: Path, narrator: Narrator) -> None:
    narrator.chapter("Nine servers: three regions of three zones; replicas of a stream must be in different zones")
    password = tmp_path / "sys.password"
    password.write_text("sys")
    system = AuthSettings(user="sys", password_file=FilePath(password))

    def settled(settings: ServerSettings) -> ServerSettings:
        return msgspec.structs.replace(settings, jetstream_config='  unique_tag: "az:"', extra_config=ACCOUNTS)

    members = [Member(name, tags) for name, tags in TAGS.items()]
    async with EmbeddedCluster("c1", tmp_path, members, settled) as cluster:
        servers = ", ".join(f'"{url}"' for url in cluster.urls)
        topology = Topology(tmp_path / "topology.toml", f"[hub]\nservers = [{servers}]\n", narrator.sentence)
        # A server of region 3, which stays up.
        url = cluster.urls[-1]
        async with connected(url) as jetstream, connected(url, auth=system) as administrator:
            await _reports(administrator, narrator)
            await _place(topology, jetstream, narrator)
            await _combine(jetstream, narrator)
            await _lose_region_2(cluster, jetstream, administrator, narrator)
            command = f"nats --server {cluster.urls[0]}"
            ways = f"{command} stream report", f"{command} --user sys --password sys server report jetstream"
            await narrator.stay(topology.report_command, *ways)


async def _reports(administrator: JetStream, narrator: Narrator) -> None:
    narrator.chapter("The servers, what they hold, and the group that decides where streams are")
    client = administrator.client

    async def present() -> list[str]:
        return names(await gather(client, "STATSZ", len(NAMES), GATHER_BRIEFLY))

    async def members() -> dict[str, bool]:
        found = meta_group(await gather(client, "JSZ", len(NAMES)))
        return {each["name"]: each["current"] and not each.get("offline") for each in found}

    await narrator.comes("servers", present, NAMES)
    states = await gather(client, "STATSZ", len(NAMES))
    narrator.output(format_servers(states, narrator.room))
    narrator.show("clusters", cluster_sizes(states), {"c1": len(NAMES)})
    tags = {each["server"]["name"]: sorted(each["server"]["tags"]) for each in states}
    narrator.show("their tags", tags, {name: sorted(each) for name, each in TAGS.items()})
    held = await gather(client, "JSZ", len(NAMES))
    narrator.output(format_jetstream(held, narrator.room))
    narrator.show("streams so far", sum(each["data"]["streams"] for each in held), 0)
    await narrator.comes("meta group: current and online", members, dict.fromkeys(NAMES, True))
    narrator.output(format_meta_group(meta_group(await gather(client, "JSZ", len(NAMES))), narrator.room))


async def _place(topology: Topology, jetstream: JetStream, narrator: Narrator) -> None:
    narrator.chapter("EVENTS across the regions, ORDERS in region 2")
    await topology.apply(STREAMS)

    async def placed() -> dict[str, Any]:
        return {row.name: (row.placement, row.servers) for row in (await topology.report()).streams}

    wanted = {"EVENTS": (("xr:123",), XR_123), "ORDERS": (("rg:2",), tuple(REGION_2))}
    await narrator.comes("tags, and the servers that they come to", placed, wanted)
    narrator.show("doing it again changes", len((await topology.apply()).changes), 0)
    narrator.output(format_report(await topology.report(), narrator.room))
    configs = {name: (await jetstream.info(name))["config"] for name in ("EVENTS", "ORDERS")}
    narrator.show(
        f"options that are not as documented, of {len(OPTIONS)}",
        {name: [key for key in OPTIONS if config.get(key) != OPTIONS[key]] for name, config in configs.items()},
        {name: [] for name in configs},
    )
    await jetstream.publish("events.one", "before")
    await jetstream.publish("orders.one", "before")


async def _combine(jetstream: JetStream, narrator: Narrator) -> None:
    """Place a stream by each tag, and count its regions and zones."""
    spread = {}
    for tag in [*CROSS_REGION, *REGIONS]:
        name = tag.replace(":", "")
        config = {"name": name, "subjects": [name], "num_replicas": 3, "placement": {"tags": [tag]}}
        placed = (await jetstream.insist(f"STREAM.CREATE.{name}", config))["cluster"]
        servers = [placed["leader"], *(each["name"] for each in placed["replicas"])]
        spread[tag] = tuple(len({server.split("-")[part] for server in servers}) for part in (0, 1))
        await jetstream.request(f"STREAM.DELETE.{name}")
    across, within = ({tag: spread[tag] for tag in tags} for tags in (CROSS_REGION, REGIONS))
    narrator.show("regions and zones of each combination", across, dict.fromkeys(CROSS_REGION, (3, 3)))
    narrator.show("and of each region's tag", within, dict.fromkeys(REGIONS, (1, 3)))
    five = await jetstream.answer("STREAM.CREATE.FIVE", {"name": "FIVE", "subjects": ["five"], "num_replicas": 5})
    narrator.show("five replicas in three zones (no suitable peers)", five, "error 10005")
    zone = {"name": "ZONE", "subjects": ["zone"], "num_replicas": 3, "placement": {"tags": ["az:1"]}}
    narrator.show(
        "three replicas, and a tag that names one zone",
        await jetstream.answer("STREAM.CREATE.ZONE", zone),
        ACCEPTED,
        note="unique_tag enforces different zones. A tag of the stream's own that names a zone lifts that",
    )


async def _lose_region_2(
    cluster: EmbeddedCluster, jetstream: JetStream, administrator: JetStream, narrator: Narrator
) -> None:
    narrator.chapter("Region 2 is down: kill -9 of its three servers")
    for name in REGION_2:
        await cluster.servers[name].kill()

    async def present() -> list[str]:
        return names(await gather(administrator.client, "STATSZ", len(LEFT)))

    async def members() -> list[str]:
        return [each["name"] for each in meta_group(await gather(administrator.client, "JSZ", len(LEFT)))
                if each["current"]]  # fmt: skip

    await narrator.comes("servers left", present, LEFT)
    await narrator.comes("EVENTS takes writes", lambda: jetstream.stores("events.one", "meanwhile"), True)
    narrator.show("ORDERS takes writes", await jetstream.stores("orders.one", "meanwhile"), False)
    await narrator.comes("current in the meta group", members, LEFT)
    narrator.output(format_meta_group(meta_group(await gather(administrator.client, "JSZ", len(LEFT))), narrator.room))
    narrator.sentence("a server that was killed did not log off, and is called online for a while: see current")
    third = {"name": "THIRD", "subjects": ["third"], "num_replicas": 3, "placement": {"tags": ["rg:3"]}}
    made = "a stream in region 3 can be made"
    await narrator.comes(made, lambda: jetstream.answer("STREAM.CREATE.THIRD", third), ACCEPTED)

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

    await narrator.comes("EVENTS has all its replicas again", current, list(XR_123))
    bodies = sorted(set(await jetstream.bodies("EVENTS")))
    narrator.show("EVENTS has messages from before and meanwhile", bodies, ["before", "meanwhile"])

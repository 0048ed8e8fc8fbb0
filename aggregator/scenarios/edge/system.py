"""What comes of joining system accounts: all servers are seen; without domains, their JetStreams merge into one."""

from functools import partial
from typing import Any

from aggregator.scenarios.edge.network import HUB, SERVERS_EACH, SPOKES, server_names
from aggregator.scenarios.edge.scene import Scene
from aggregator.scenarios.edge.tokens import Account
from aggregator.scenarios.server_reports import (
    GATHER_BRIEFLY,
    clusters,
    format_jetstream,
    format_servers,
    jetstream_states,
    server_states,
)
from aggregator.scenarios.stage import REQUEST_DEADLINE
from shared.nats.jetstream_api import ApiError, RequestFailed, request_json

_EVERYBODY = len(server_names())
_DEADLINE = 2.0


async def with_domains(scene: Scene, system: Account) -> None:
    """Show all servers, and that each cluster decides for itself."""
    narrator = scene.narrator
    async with scene.connected(system) as administrator:
        client = administrator.client

        async def seen() -> dict[str, int]:
            return {each.name: each.nodes for each in clusters(await server_states(client, _EVERYBODY, GATHER_BRIEFLY))}

        await narrator.comes("the hub's system account sees", seen, dict.fromkeys((HUB, *SPOKES), SERVERS_EACH))
        narrator.output(format_servers(await server_states(client, _EVERYBODY), narrator.room))
        await narrator.comes(
            "with domains each cluster decides where its own streams are (servers that decide together)",
            partial(_deciding, client),
            dict.fromkeys((HUB, *SPOKES), SERVERS_EACH),
        )


async def without_domains(scene: Scene, system: Account) -> None:
    """Show that there is one JetStream, which the hub leads, and what becomes of a spoke that is cut off from it."""
    narrator = scene.narrator
    async with scene.connected(system) as administrator:
        client = administrator.client
        deciding = partial(_deciding, client)
        await narrator.comes("all nine decide together, and the hub leads", deciding, {HUB: _EVERYBODY})
        await request_json(client, "$JS.API.META.LEADER.STEPDOWN", None, dict[str, Any], deadline=REQUEST_DEADLINE)
        await narrator.comes("when its leader steps down, the hub leads again", deciding, {HUB: _EVERYBODY})
        narrator.output(format_jetstream(await jetstream_states(client, _EVERYBODY), narrator.room))
    async with scene.connected(scene.test, SPOKES[0]) as at_spoke:
        await at_spoke.insist("STREAM.CREATE.KEPT", _stream("KEPT"))

        async def placed() -> str:
            return str((await at_spoke.info("KEPT"))["cluster"]["name"])

        await narrator.comes("a stream made in spoke-1 is placed in", placed, SPOKES[0])
        narrator.chapter("Their hub is down, too")
        await scene.net.kill_cluster(HUB)
        await narrator.comes(
            "what is there in spoke-1 still stores", lambda: at_spoke.stores("KEPT", "meanwhile"), True
        )
        narrator.show("a stream can be made there", await _makes(at_spoke.client, "NEW"), False)


async def _deciding(client: Any) -> dict[str, int]:
    """Say for each server that leads a meta group, by its cluster: how many are in the group."""
    states = await jetstream_states(client, _EVERYBODY, GATHER_BRIEFLY)
    return {each.server.cluster: each.data.meta_cluster.cluster_size for each in states if each.leads}


def _stream(name: str) -> dict[str, Any]:
    return {"name": name, "subjects": [name], "num_replicas": SERVERS_EACH}


async def _makes(client: Any, name: str) -> bool:
    try:
        await request_json(client, f"$JS.API.STREAM.CREATE.{name}", _stream(name), dict[str, Any], deadline=_DEADLINE)
    except (ApiError, RequestFailed):
        return False
    return True

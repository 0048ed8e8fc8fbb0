"""Servers of an embedded cluster find each other, can be killed and started again, and leave their ports free."""

from pathlib import Path
from typing import Any

from nats.aio.client import Client
from nats.js.errors import NoStreamResponseError

from shared.nats.jetstream_api import ApiError, RequestFailed, request_json
from tests.support.nats.embedded_cluster import EmbeddedCluster, Member
from tests.support.nats.insisting import insist
from tests.support.topology.regions import client_of
from tests.support.waiting import until

MEMBERS = [Member("n1", ("az:1",)), Member("n2", ("az:2",)), Member("n3", ("az:3",))]


async def servers_of(client: Client) -> set[str]:
    """Name the servers that hold STREAM and are up to date; none while there is no leader."""
    try:
        info = await request_json(client, "$JS.API.STREAM.INFO.STREAM", None, dict[str, Any], deadline=5)
    except (ApiError, RequestFailed):
        return set()
    replicas = info["cluster"].get("replicas") or []
    return {info["cluster"].get("leader", ""), *(each["name"] for each in replicas if each["current"])}


async def test_a_stream_is_replicated_and_outlives_one_server(tmp_path: Path) -> None:
    async with EmbeddedCluster("c", tmp_path, MEMBERS) as cluster:
        assert len({server.port for server in cluster.servers.values()}) == 3
        async with await client_of(cluster.servers["n1"]) as client:
            stream = {"name": "STREAM", "subjects": ["s"], "num_replicas": 3}
            await insist(client, "$JS.API.STREAM.CREATE.STREAM", stream)
            everybody = {member.name for member in MEMBERS}

            async def is_everywhere() -> bool:
                return await servers_of(client) == everybody

            await until(is_everywhere, "all three hold it", 60)
            await cluster.servers["n2"].kill()

            async def is_stored() -> bool:
                try:
                    await client.jetstream().publish("s", b"", timeout=5)
                except (TimeoutError, NoStreamResponseError):  # while another leader is elected
                    return False
                return True

            await until(is_stored, "two of three store", 60)
            await cluster.start("n2")
            await until(is_everywhere, "the third has caught up", 60)


async def test_two_clusters_at_once_do_not_meet(tmp_path: Path) -> None:
    one, other = (EmbeddedCluster(name, tmp_path / name, MEMBERS) for name in ("one", "other"))
    try:
        assert len({*one.route_ports, *other.route_ports}) == 6
    finally:
        await one.close()
        await other.close()

"""Pairs of nats-server versions, one at the hub and one in a region: what the table of versions says of them is so."""

from functools import partial
from pathlib import Path

import pytest

from shared.embedded import server
from shared.embedded.server import EmbeddedNats, LeafRemote, ServerSettings
from shared.nats.server_version import PAIRS, Pair
from tests.support.nats.free_ports import free_ports
from tests.support.nats.older_server import server_of
from tests.support.topology import rendered
from tests.support.topology.aggregator_command import ran
from tests.support.topology.archiving import publish
from tests.support.topology.regions import answers, client_of, holds, topology_toml
from tests.support.topology.rendered import rendered_servers, until_archived
from tests.support.waiting import until

REGION = "us-east"
PATIENCE = 240.0
NEVER = "never delivers its policy to regions"


def named(pair: Pair) -> str:
    return f"hub {pair.hub}, region {pair.region}"


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.rendered], ids=named)
async def test_rendered_servers_of_two_versions_do_together_what_the_table_says(tmp_path: Path, pair: Pair) -> None:
    commands = {"hub": server_of(pair.hub), "eu-west": server_of(pair.region)}
    with rendered_servers(tmp_path, commands=commands) as servers:
        before = await servers.archived()
        async with servers.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
            await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")
        await until_archived(servers, before + 1)
        planned = rendered.muster(tmp_path, "plan")
        assert "nothing to do" in planned.stdout.splitlines(), planned.stdout + planned.stderr
        assert (NEVER in planned.stdout) is not pair.policy
        checked = rendered.muster(tmp_path, "check", "--json")
        assert (NEVER in checked.stdout) is not pair.policy
        ordered = rendered.muster(tmp_path, "policy", "set", "--region", "eu-west", "--sample-interval", "30m")
        assert ordered.returncode == 0, ordered.stderr

        async def is_there() -> bool:
            async with servers.visited("hub", "aggregator") as hub:
                info = await hub.of_domain("eu-west", "STREAM.INFO.MUSTER_POLICY")
            return bool(info["state"]["messages"] == 1)

        if pair.policy:
            await until(is_there, "the policy reaches the region", PATIENCE)


@pytest.mark.parametrize("pair", [pair for pair in PAIRS if not pair.rendered], ids=named)
async def test_older_servers_in_one_account_do_together_what_the_table_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pair: Pair
) -> None:
    commands = iter([server_of(pair.hub), server_of(pair.region)])
    monkeypatch.setattr(server, "find_command", lambda: next(commands))
    (port,) = free_ports(1)
    leaves = f'advertise: "127.0.0.1:{port}"'
    at_hub = ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub", leaf_port=port, leaf_options=leaves)
    async with EmbeddedNats(at_hub) as hub:
        remote = LeafRemote(hub.leaf_url)
        in_region = ServerSettings(name=REGION, store_dir=tmp_path / REGION, domain=REGION, leaf_remotes=(remote,))
        async with EmbeddedNats(in_region) as region, await client_of(hub) as client, await client_of(region) as agent:
            path = tmp_path / "topology.toml"
            path.write_text(topology_toml(hub, (REGION,)) + "[policy]\n")
            config = ("--config", path)
            await until(partial(answers, client, REGION), "the region links to the hub", PATIENCE)
            await ran("apply", *config)
            await publish(agent, REGION, 3)
            await until(partial(holds, client, "ARCHIVE", 3), "the region is archived", PATIENCE)
            assert "nothing to do" in (await ran("plan", *config)).splitlines()
            await ran("policy", "set", "--region", REGION, "--sample-interval", "30m", *config)
            await until(partial(holds, agent, "MUSTER_POLICY", 1), "the policy reaches the region", PATIENCE)

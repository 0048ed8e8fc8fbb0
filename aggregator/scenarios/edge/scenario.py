"""JetStream at the edge: a hub and two spokes of three servers each, joined by leaf nodes, in operator mode.

Source: "JetStream-LeafNodes-Demo" of Matthias Hanel, the script of "Persistence at the Edge".
"""

from collections.abc import Awaitable, Callable
from pathlib import Path

from aggregator.scenarios.edge import accounts, domains, outages, system
from aggregator.scenarios.edge.network import HUB, SPOKES, Credentials, network
from aggregator.scenarios.edge.scene import Scene
from aggregator.scenarios.edge.tokens import Account, Operator
from aggregator.scenarios.narrator import Narrator
from aggregator.scenarios.stage import JetStream

Part = Callable[[Scene, JetStream, tuple[JetStream, JetStream]], Awaitable[None]]


async def play(directory: Path, narrator: Narrator) -> None:
    """Play it in ``directory``: topology.toml, both maps and the users' credentials stay there."""
    operator, test = Operator("OP"), Account("TEST")
    credentials = Credentials(directory / "creds")
    narrator.chapter("Three clusters of three servers; the spokes' leaf nodes join the system account and TEST")
    async with network(directory / "domains", operator, credentials, [test], domains=True) as apart:
        await apart.started()
        scene = Scene(directory, operator, credentials, apart, test, narrator)
        await system.with_domains(scene, operator.system)
        # The others start while these are at work.
        async with network(directory / "merged", operator, credentials, [test], domains=False) as merged:
            await _across_domains(scene, domains.play, outages.links_cut, outages.hub_down)
            narrator.chapter("Meanwhile: as many other servers, without domains, whose JetStreams are one")
            await merged.started()
            without = Scene(directory / "merged", operator, credentials, merged, test, narrator)
            await system.without_domains(without, operator.system)
        await outages.catch_up(scene)
        await accounts.play(scene)
        at_each = (scene.nats_command(test, cluster, "stream report") for cluster in (HUB, *SPOKES))
        servers = scene.nats_command(operator.system, HUB, "server list")
        await narrator.stay(scene.topology.way, servers, *at_each)


async def _across_domains(scene: Scene, *parts: Part) -> None:
    async with (
        scene.connected(scene.test) as at_hub,
        scene.connected(scene.test, SPOKES[0]) as at_first,
        scene.connected(scene.test, SPOKES[1]) as at_second,
    ):
        for part in parts:
            await part(scene, at_hub, (at_first, at_second))

"""A hub that has a policy to say, on the region's own server: it tells through the command, as an operator does."""

import asyncio

from tests.support.agent.agent_stage import Stage
from tests.support.topology.rendered import muster

TOPOLOGY = """
[hub]
servers = ["{url}"]
domain = "eu-west"
[archive]
sourcing = "plain"
[policy]
[[region]]
name = "eu-west"
[[site]]
name = "dub1"
region = "eu-west"
"""


def write_topology(stage: Stage) -> None:
    """Write the topology beside the agent's settings."""
    (stage.config_path.parent / "topology.toml").write_text(TOPOLOGY.format(url=stage.region.server.url))


async def said(stage: Stage, *command: str) -> str:
    """Run muster-aggregator there, which must succeed; give what it says."""
    done = await asyncio.to_thread(muster, stage.config_path.parent, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout

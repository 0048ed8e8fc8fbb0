"""Five senders at a site, and an agent that has told the region of them."""

from collections.abc import Mapping

from shared.identifiers import AdvisoryKind
from shared.wire import Advisory
from tests.support.agent.agent_process import Deployment
from tests.support.waiting import until

NAMES = [f"node{number}.example.net" for number in range(5)]
BODIES = [b'{"sender":"%s"}' % name.encode() for name in NAMES]


async def told_of(deployment: Deployment) -> list[Advisory]:
    """Give the advisories of new senders: on a slow machine some are stale too by the time one looks."""
    return [advisory for advisory in await deployment.advisories() if advisory.kind is AdvisoryKind.NEW]


async def arrived(deployment: Deployment, count: int) -> bool:
    return len(await told_of(deployment)) == count


async def until_running(deployment: Deployment, environment: Mapping[str, str] | None = None) -> None:
    """Start the agent, and wait until it has read and delivered what the senders say."""
    deployment.agent.start(environment)
    await deployment.site.publish(*BODIES)
    await until(lambda: arrived(deployment, len(NAMES)), "all advisories have arrived")

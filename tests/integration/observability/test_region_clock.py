"""The region's clock is heard in answers that a site's user may get, and asking for it disturbs nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from edge_agent.config import agent
from edge_agent.observability.clocks import Clocks, RegionClock
from edge_agent.observability.status_board import now
from shared.instants import MINUTE
from shared.nats.connection import connect
from tests.support.agent.agent_process import SETTINGS, Deployment, deployed
from tests.support.nats.one_server import written
from tests.support.waiting import until

OWN = '"fleet.eu-west.dub1.>"'
USERS = """
authorization {{ users: [
  {{ user: admin, password: secret }}
  {{ user: agent, password: secret, permissions: {{
    publish: {{ allow: [{allowed}] }}, subscribe: {{ allow: ["_INBOX_dub1.>"] }}
  }} }}
] }}
no_auth_user: admin
"""
AUTH = '[upstream.auth]\nuser = "agent"\npassword_file = "password"\n\n[store]'


@asynccontextmanager
async def region_that_allows(directory: Path, *allowed: str) -> AsyncIterator[Deployment]:
    written(directory / "password", "secret")
    users = USERS.format(allowed=", ".join(allowed))
    async with deployed(directory, SETTINGS.replace("[store]", AUTH), region_config=users) as deployment:
        yield deployment


@pytest.mark.parametrize(
    "asked", ["$JS.API.CONSUMER.INFO.MUSTER_POLICY.muster-dub1", "$JS.API.STREAM.INFO.FLEET"], ids=["policy", "stream"]
)
async def test_either_answer_tells_the_regions_clock(tmp_path: Path, asked: str) -> None:
    async with region_that_allows(tmp_path, OWN, f'"{asked}"') as deployment:
        if "MUSTER_POLICY" in asked:
            region = deployment.region
            await region.api("STREAM.CREATE.MUSTER_POLICY", {"name": "MUSTER_POLICY", "subjects": ["policy.>"]})
            consumer = {"durable_name": "muster-dub1", "ack_policy": "none"}
            body = {"stream_name": "MUSTER_POLICY", "config": consumer}
            await region.api("CONSUMER.CREATE.MUSTER_POLICY.muster-dub1", body)
        settings, clocks = agent.load(deployment.agent.config), Clocks()
        client = await connect(settings.upstream, name="test", deadline=60, inbox_prefix="_INBOX_dub1")
        assert await RegionClock(client, settings, clocks).hear()
        assert clocks.region is not None
        assert abs(clocks.region - now()) < MINUTE
        await client.close()
        assert await deployment.region.stored_count() == 0, "asking stores nothing"


async def test_an_agent_that_may_ask_for_neither_works_all_the_same(tmp_path: Path) -> None:
    async with region_that_allows(tmp_path, OWN) as deployment:
        deployment.agent.start()
        server_log = deployment.region.server.log_path
        async with deployment.senders(["a"]):
            await deployment.until_observed(await deployment.site_time())
            await until(lambda: 'Subject "$JS.API.STREAM.INFO.FLEET"' in server_log.read_text(), "it was asked")
            await deployment.until_observed(await deployment.site_time())
        assert (await deployment.agent.status_json())["parts"]["upstream"]["phase"] == "connected"
        assert "denied" not in deployment.agent.log
        assert "made anew" not in deployment.agent.log

"""The demo waits until the hub has everything, and wants again what the hub's server left out."""

import io
from pathlib import Path
from typing import Any

import pytest

from aggregator.demo.story import Story
from aggregator.demo.watch import NotInTime, until_archived
from shared.nats.jetstream_api import request_json
from tests.support.topology.archiving import acknowledged, applied, archived_sequences, publish
from tests.support.topology.regions import client_of, federation


async def test_what_the_hubs_server_left_out_is_wanted_again_and_told(tmp_path: Path) -> None:
    told = io.StringIO()
    async with federation(tmp_path) as servers:
        await applied(servers)
        region, link = servers.regions["eu-west"], servers.links["eu-west"]
        async with await client_of(region) as agent, await client_of(servers.hub) as hub:
            await publish(agent, "eu-west", 3)
            await acknowledged(hub, "eu-west", 3)
            await link.cut()
            await publish(agent, "eu-west", 3)
            # What rarely happens by itself: the consumer goes on behind two that the hub never got.
            await request_json(
                agent, "$JS.API.CONSUMER.RESET.FLEET.muster-archive", {"seq": 6}, dict[str, Any], deadline=20
            )
            with pytest.raises(NotInTime, match="lacks what regions hold: .*eu-west.*nobody answers"):
                await until_archived(servers.hub.url, servers.topology_path, Story(told), deadline=0.5)
            await link.restore()
            await until_archived(servers.hub.url, servers.topology_path, Story(told), deadline=180)
            assert set(await archived_sequences(hub)) == set(range(1, 7))
    assert told.getvalue().count("its server left out 2 records of eu-west: they are wanted again") == 1

"""Where a server is too old for durable sourcing, copies are plain until it is updated, and nothing is lost or doubled.

An older server of a region does not link to a newer hub that does not advertise itself (2.12.8 to 2.15.1: "attempted to
connect to wrong port"), so hubs are updated last.
"""

from functools import partial
from pathlib import Path

import pytest

from shared.embedded import server
from tests.support.nats.older_server import OLDER, only_with_an_older_server
from tests.support.topology.aggregator_command import ran
from tests.support.topology.archiving import RETRIED, applied, archived_sequences, publish
from tests.support.topology.regions import answers, client_of, federation, holds
from tests.support.waiting import until

pytestmark = only_with_an_older_server


@pytest.mark.parametrize("older", [("hub",), ("us-east", "hub")])
async def test_an_older_server_is_sourced_plainly_and_durably_once_it_is_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: tuple[str, ...]
) -> None:
    current = server.find_command()
    started = iter([OLDER if name in older else current for name in ("hub", "us-east")])
    monkeypatch.setattr(server, "find_command", lambda: next(started, current))
    async with federation(tmp_path, ("us-east",)) as servers:
        config = ("--config", servers.topology_path)
        assert "consumer" not in await applied(servers)
        assert await ran("plan", *config) == "nothing to do\n"
        async with await client_of(servers.hub) as hub, await client_of(servers.regions["us-east"]) as agent:
            await publish(agent, "us-east", 5)
            await until(partial(holds, hub, "ARCHIVE", 5), "the first are archived")
            for name in older:
                updated = {"hub": servers.hub, **servers.regions}[name]
                await updated.stop()
                await updated.start()
            await until(lambda: hub.is_connected and agent.is_connected, "both are back")
            await until(partial(answers, hub, "us-east"), "the hub reaches the region")
            shown = await ran("plan", *config)
            assert "plain, all below fleet.us-east -> durable through muster-archive" in shown
            await ran("apply", *config)
            await publish(agent, "us-east", 5)
            await until(partial(holds, hub, "ARCHIVE", 10), "the last are archived", RETRIED)
            assert await archived_sequences(hub) == list(range(1, 11))
            assert await ran("plan", *config) == "nothing to do\n"

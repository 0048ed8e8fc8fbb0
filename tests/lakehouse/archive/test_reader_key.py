"""A rollup needs no other key than the one that ``render`` makes for it, which may do nothing but read."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from aggregator.lakehouse import rollup
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from shared.instants import HOUR, MINUTE, parse_instant
from tests.lakehouse.conftest import say, settings_for
from tests.support.lakehouse.hub import Block, Message
from tests.support.topology.rendered import Rendered, rendered_servers, until_archived
from tests.support.waiting import until

FIRST = parse_instant("2026-02-01T00:00:00Z")


@pytest.mark.usefixtures("spark")
def test_the_readers_key_rolls_up(tmp_path: Path) -> None:
    dub1 = Block("eu-west", "dub1")
    with rendered_servers(tmp_path) as rendered:
        hub = msgspec.structs.replace(rendered.settings("hub", "reader"), domain="hub")
        settings = settings_for(hub, tmp_path / "lake")
        settings = msgspec.structs.replace(
            settings, lakehouse=msgspec.structs.replace(settings.lakehouse, reading="direct")
        )
        asyncio.run(published(rendered, [dub1.new("n1", FIRST + HOUR), dub1.watermark(FIRST, FIRST + 2 * HOUR)], 2))
        assert rollup.roll_up(settings, RollupRequest(), say).counts.written == 2
        # ARCHIVE is read again for what the tables stand at, and for what is new.
        asyncio.run(published(rendered, [dub1.stale("n1", FIRST + HOUR + 12 * MINUTE)], 3))
        assert rollup.roll_up(settings, RollupRequest(), say).counts.written == 1
    with open_tables(tmp_path / "lake", settings.lakehouse.catalog) as tables:
        assert [*tables.rows("SELECT sender_id, kind FROM muster.advisories ORDER BY 2")] == [
            ("n1", "new"),
            ("n1", "stale"),
        ]


async def published(rendered: Rendered, messages: list[Message], count: int) -> None:
    """Publish as the site does, and wait until the hub has it all in both of its streams."""
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        for message in messages:
            headers = {name.replace("-", "_"): value for name, value in (message.headers or {}).items()}
            await agent.store(message.subject, message.body, **headers)
    await until_archived(rendered, count)
    async with rendered.visited("hub", "aggregator") as hub:

        async def is_mirrored() -> bool:
            return int((await hub.api("STREAM.INFO.REPORT"))["state"]["messages"]) == count

        await until(is_mirrored, "REPORT has it too")

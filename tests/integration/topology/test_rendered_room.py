"""Who floods a region's FLEET fills that region's room, is told of, and the hub goes on taking what others send."""

import asyncio
from functools import partial
from pathlib import Path

import nats.js.errors

from tests.support.topology.rendered import Rendered, Visitor, muster, rendered_servers, until_archived
from tests.support.waiting import until

OWN = "fleet.eu-west.dub1.nodes.copy.flood"
SIZE = 1_000_000
STORE = 64 << 20
MAXIMUM_BYTES_EXCEEDED = 10077


async def test_a_site_that_floods_its_region_leaves_the_hub_room_for_everybody_else(tmp_path: Path) -> None:
    with rendered_servers(tmp_path, max_store="64MiB") as rendered:
        sent = await flooded(rendered)
        # Half of the store is ARCHIVE's, half of that is the one region's.
        assert sent * SIZE < STORE / 4 <= (sent + 1) * (SIZE + 1_000)
        await until_archived(rendered, sent)
        told = muster(tmp_path, "policy", "set", "--region", "eu-west", "--sample-interval", "30m")
        assert told.returncode == 0, told.stderr
        await until_archived(rendered, sent + 1)
        checked = await asyncio.to_thread(muster, tmp_path, "check")
        assert checked.returncode == 2
        assert "eu-west: FLEET holds 9" in checked.stdout
        assert "of its max_bytes (16 MiB): then it refuses what is new, and publishers keep it" in checked.stdout
        async with (
            rendered.visited("hub", "aggregator") as hub,
            rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent,
        ):
            # What check compares with max_store: ARCHIVE and REPORT at the hub, FLEET in its region.
            assert (await hub.of_domain("eu-west", "INFO"))["storage"] >= sent * SIZE
            await until(partial(holds, hub, 2 * sent * SIZE), "REPORT has it too")
            # Less room than is taken lets go of nothing, and takes nothing: that is for who says so.
            settings = tmp_path / "topology.toml"
            settings.write_text(settings.read_text() + '[fleet]\nmax_bytes = "10MiB"\n')
            refused = await asyncio.to_thread(muster, tmp_path, "apply")
            assert "takes nothing more once it is full" in refused.stderr
            assert (await asyncio.to_thread(muster, tmp_path, "apply", "--force")).returncode == 0
            fleet = await hub.of_domain("eu-west", "STREAM.INFO.FLEET")
            assert (fleet["state"]["messages"], fleet["config"]["max_bytes"]) == (sent, 10 << 20)
            await hub.of_domain("eu-west", "STREAM.PURGE.FLEET")
            await agent.store("fleet.eu-west.dub1.nodes.watermark", b"{}")


async def holds(hub: Visitor, size: int) -> bool:
    return int((await hub.api("INFO"))["storage"]) >= size


async def flooded(rendered: Rendered) -> int:
    """Publish until FLEET refuses; say how many it took."""
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as thief:
        sent = 0

        async def is_refused() -> bool:
            nonlocal sent
            try:
                await thief.store(OWN, b"x" * SIZE)
            except nats.js.errors.APIError as error:
                return error.err_code == MAXIMUM_BYTES_EXCEEDED
            sent += 1
            return False

        await until(is_refused, "FLEET refuses")
        return sent

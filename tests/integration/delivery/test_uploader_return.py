"""An uploader whose connection comes back begins once."""

from pathlib import Path

import pytest

from edge_agent.delivery import uploader
from edge_agent.store.sqlite_store import SqliteStore
from shared.nats import client
from tests.support.delivery.fleet_region import EMPTY, running_region, uploading
from tests.support.store.store_batches import advisory, batch
from tests.support.waiting import until


async def test_a_connection_is_not_taken_for_ready_while_its_return_is_still_to_be_told(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given up when that is told, and everything sent again."""
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)
    # It looks often enough to find the connection in every moment of its beginning.
    monkeypatch.setattr(uploader, "LONGEST_RETRY", 0.01)
    async with running_region(tmp_path, round_trip=0.2) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            await until(lambda: told, "the uploader runs")
            await region.link.cut()
            await until(lambda: "disconnected" in told, "the cut is told")
            await region.link.restore()
            await store.commit(batch(1, [advisory("a")]))
            await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything")
        assert "reconnected" not in told

"""What tests of the way from the store to the region begin with."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge_agent.store.sqlite_store import SqliteStore
from tests.support.delivery.fleet_region import Region, running_region
from tests.support.store.store_batches import opened


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """Open an empty store."""
    async with opened(tmp_path / "agent.db") as store:
        yield store


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    """Run a region's server, without a stream yet."""
    async with running_region(tmp_path) as region:
        yield region

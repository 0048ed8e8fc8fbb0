"""The age of what waits is what its records say, and unknown where one says nothing that is an instant."""

from pathlib import Path

import msgspec
import pytest

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store.chunks import oldest_at
from edge_agent.store.read_only import store_reader
from tests.support.store.store_batches import advisory, batch, opened, registration, watermark


@pytest.mark.parametrize(
    ("source", "instant"),
    [
        ("R 7 dub1 nodes 1700000000123", 1_700_000_000_123_000),
        ("1700000000123", 1_700_000_000_123_000),
        ("x", 0),
        ("", 0),
        ("R 7 dub1 nodes -5", 0),
        ("R 7 dub1 nodes 1_0", 0),
        ("R 7 dub1 nodes ١٢", 0),
        ("R 7 dub1 nodes " + "9" * 5_000, 0),
        (None, 0),
    ],
)
async def test_the_age_of_a_passed_on_record_is_known_where_its_source_header_names_an_instant(
    tmp_path: Path, source: str | None, instant: int
) -> None:
    path = tmp_path / "agent.db"
    headers = {} if source is None else {"Choria-SR-Source": source}
    row = msgspec.structs.replace(registration("a", "r"), headers=headers)
    async with opened(path) as store:
        await store.commit(batch(1, [row]))
        with store_reader(path) as database:
            assert oldest_at(database, Lane.REGISTRATIONS) == instant


@pytest.mark.parametrize("row", [advisory("no advisory any more"), watermark("no watermark any more")])
async def test_a_record_that_is_damaged_names_no_instant(tmp_path: Path, row: OutboxRow) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch(1, [row]))
        with store_reader(path) as database:
            assert oldest_at(database, Lane.ADVISORIES) == 0

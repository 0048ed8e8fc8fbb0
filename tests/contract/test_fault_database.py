"""What the schedule of faults makes of a database is one that an agent of version 1 could have left."""

from pathlib import Path

from edge_agent.core.records import Lane
from tests.support.faults.database import change
from tests.support.store.store_batches import batch, opened, registration

MANY = 300


async def test_ids_of_what_left_in_chunks_are_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await store.commit(batch(1, [registration(f"node{number}", "text") for number in range(MANY)]))
        store.delete_through(Lane.REGISTRATIONS, MANY)
        await store.commit(batch(2))
        assert store.depths()[Lane.REGISTRATIONS].rows == 0
    change(path, "make_old")
    async with opened(path) as store:
        await store.commit(batch(3, [registration("node", "text")]))
        assert store.last_row_ids()[Lane.REGISTRATIONS] == MANY + 1

"""An operator drops what has not left: what an uploader has merely read ahead is no better off than the rest."""

import re
from functools import partial
from pathlib import Path

import pytest

from edge_agent.core.records import OutboxRow
from edge_agent.delivery import uploader
from edge_agent.delivery.shipment import Form, Shipment
from edge_agent.observability.status_board import StatusBoard
from edge_agent.store.files import hold_of
from edge_agent.store.sqlite_store import SqliteStore
from shared.identifiers import BlockId
from tests.support.agent.agent_file import SMALLEST
from tests.support.agent.operated_agent import OperatedAgent
from tests.support.delivery.fleet_region import EMPTY, Region, tell_of_shipments, uploading
from tests.support.store.store_batches import BLOCK, BLOCK_ID, ROOM, batch, registration
from tests.support.waiting import until

OTHER = "events"
OTHER_ID = BlockId(BLOCK_ID.region, BLOCK_ID.site, OTHER)
COUNT = 200
SAID = re.compile(
    r"(\d+) registrations \(.*\) dropped; (\d+) stay: they are on their way to the region, or came meanwhile\n"
)


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[OutboxRow]:
    """List the rows that have left; a link that is held up is waited for."""
    monkeypatch.setattr(uploader, "ACKNOWLEDGEMENT_PATIENCE", 600.0)
    monkeypatch.setattr(uploader, "LANE_PATIENCE", 600.0)
    rows: list[OutboxRow] = []

    def note(shipment: Shipment) -> None:
        rows.extend(() if shipment.form is Form.QUESTION else shipment.rows)

    tell_of_shipments(monkeypatch, note)
    return rows


def rows_of(block: str) -> list[OutboxRow]:
    """Make many large registrations."""
    return [registration(f"{block}{number}", f"{block}{number}", block, 10_000) for number in range(COUNT)]


async def words(region: Region) -> list[str]:
    return [record.text for record in await region.stored()]


def words_of(rows: list[OutboxRow], block: str) -> list[str]:
    return [row.payload.decode().strip() for row in rows if row.block == block]


async def test_what_was_read_ahead_is_dropped_and_what_is_on_its_way_arrives(
    region: Region, store: SqliteStore, left: list[OutboxRow]
) -> None:
    await region.make_stream()
    async with uploading(region, store):
        region.link.stall()
        await store.commit(batch(1, rows_of(BLOCK)))
        await until(lambda: left, "registrations are under way")
        dropped = await store.drop_registrations("*")
        gone = words_of(left, BLOCK)
        assert dropped.rows == COUNT - len(gone) > 0
        await region.link.restore()
        await until(lambda: store.depths() == EMPTY, "what was on its way is acknowledged")
    assert sorted(await words(region)) == sorted(gone)
    assert store.outbox_counters(BLOCK) == {"dropped": {"operator": COUNT - len(gone)}}


async def test_what_was_read_ahead_of_another_block_leaves_all_the_same(
    region: Region, store: SqliteStore, left: list[OutboxRow]
) -> None:
    await region.make_stream()
    rows, others = rows_of(BLOCK), rows_of(OTHER)
    async with uploading(region, store):
        region.link.stall()
        for start in range(0, COUNT, 10):
            await store.commit(batch(start + 1, rows[start : start + 10]))
            await store.commit(batch(start + 1, others[start : start + 10], block_id=OTHER_ID))
        await until(lambda: left, "registrations are under way")
        dropped = await store.drop_registrations(BLOCK)
        gone = words_of(left, BLOCK)
        assert dropped.rows == COUNT - len(gone) > 0
        await region.link.restore()
        await until(lambda: store.depths() == EMPTY, "what was not dropped is acknowledged")
    assert sorted(await words(region)) == sorted(gone + words_of(others, OTHER))


async def test_the_operator_is_told_how_many_were_on_their_way(
    region: Region, store: SqliteStore, left: list[OutboxRow], tmp_path: Path
) -> None:
    await region.make_stream()
    (tmp_path / "agent.toml").write_text(f'{SMALLEST}[store]\npath = "agent.db"\n')
    await StatusBoard("dub1-a", BLOCK_ID.region, BLOCK_ID.site, "1", "boot", ROOM).write_last(store)
    operator = OperatedAgent(tmp_path / "agent.toml")
    with hold_of(tmp_path / "agent.db"):
        async with uploading(region, store):
            region.link.stall()
            await store.commit(batch(1, rows_of(BLOCK)))
            await until(lambda: left, "registrations are under way")
            code, output, errors = await operator.command("outbox", "drop", "--lane", "registrations", "--yes")
            said = SAID.fullmatch(output)
            assert (code, errors) == (0, "")
            assert said is not None, output
            assert [int(count) for count in said.groups()] == [COUNT - len(left), len(left)]
            await region.link.restore()
            await until(partial(has_stored, region, len(left)), "what was on its way arrives")


async def has_stored(region: Region, count: int) -> bool:
    return await region.stored_count() == count

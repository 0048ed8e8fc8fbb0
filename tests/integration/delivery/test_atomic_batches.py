"""Batches keep copies in their order and everything else whole, whatever becomes of link, server and agent."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs
from nats.js.errors import APIError

from edge_agent.core.records import OutboxRow
from edge_agent.delivery import lane, uploader
from edge_agent.store.sqlite_store import SqliteStore
from shared.nats import client
from tests.support.delivery.fleet_region import EMPTY, Region, Stored, running_region, uploading
from tests.support.store.store_batches import advisory, batch, copy, die, opened, registration, watermark
from tests.support.waiting import until

CUTS = 6
"""How often a link is cut while an outbox is emptied over it."""

COPIES = [copy(f"c{number}", size=500) for number in range(6_000)]
COPIES_LATER = [copy(f"c{number}", size=500) for number in range(6_000, 7_000)]


@pytest.fixture(autouse=True)
def retries_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)
    monkeypatch.setattr(uploader, "LONGEST_RETRY", 0.5)
    monkeypatch.setattr(lane, "LONGEST_RETRY", 0.5)


@asynccontextmanager
async def region_with_batches(directory: Path, *, round_trip: float = 0.0, **stream: object) -> AsyncIterator[Region]:
    async with running_region(directory, round_trip=round_trip) as region:
        await region.make_stream(allow_atomic=True, **stream)
        yield region


async def fill(store: SqliteStore, rows: Sequence[OutboxRow]) -> None:
    for start in range(0, len(rows), 1_000):
        await store.commit(batch(start + 1, rows[start : start + 1_000]))


async def emptied(store: SqliteStore, deadline: float = 60.0) -> None:
    await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", deadline)


async def has_stored(region: Region, count: int) -> bool:
    return await region.stored_count() >= count


def copies_in(stored: Sequence[Stored]) -> list[str]:
    return [record.text for record in stored if ".copy." in record.subject]


def texts(rows: Sequence[OutboxRow]) -> list[str]:
    return [row.payload.decode().strip() for row in rows]


def batches_in(stored: Sequence[Stored]) -> set[str]:
    return {record.headers["Nats-Batch-Id"] for record in stored if "Nats-Batch-Id" in record.headers}


def own_headers(record: Stored) -> dict[str, str]:
    return {name: value for name, value in record.headers.items() if not name.startswith(("Nats-Batch", "Nats-Expec"))}


async def test_a_long_link_carries_large_batches_in_order_and_changes_nothing_in_them(
    tmp_path: Path, store: SqliteStore
) -> None:
    rows = [*COPIES, *(advisory(f"a{number}") for number in range(500)), registration("", "a caf\u00e9", size=2_000)]
    await fill(store, rows)
    async with region_with_batches(tmp_path, round_trip=0.05) as region:
        async with uploading(region, store) as told:
            await emptied(store)
        stored = await region.stored()

    assert copies_in(stored) == texts(COPIES)
    assert len(stored) == len(rows)
    assert {record.payload: (record.subject, own_headers(record)) for record in stored} == {
        row.payload: (row.subject, dict(row.headers)) for row in rows
    }
    assert 5 < len(batches_in(stored)) < 100
    assert set(told) == {""}


async def test_a_link_that_is_cut_again_and_again_leaves_copies_in_order_and_repeats_none(
    tmp_path: Path, store: SqliteStore
) -> None:
    await fill(store, COPIES)
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    cuts = sorted(random.sample(range(1, len(COPIES)), CUTS))
    async with region_with_batches(tmp_path, round_trip=0.02) as region:
        async with uploading(region, store) as told:
            for cut in cuts:
                await until(partial(has_stored, region, cut), f"{cut} records have arrived")
                await region.link.cut()
                await region.link.restore()
            await emptied(store)
        assert copies_in(await region.stored()) == texts(COPIES)
    assert any(told), "nobody was told of the cuts"


async def test_an_agent_that_is_killed_again_and_again_sends_copies_in_order_and_repeats_none(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    async with opened(path) as store:
        await fill(store, COPIES)
    async with region_with_batches(tmp_path, round_trip=0.02) as region:
        for _ in range(CUTS):
            before = await region.stored_count()
            store = await SqliteStore.open(path, 1 << 30)
            async with uploading(region, store):
                await until(partial(has_stored, region, before + 1), "copies are under way")
            # What was acknowledged last is still in the file.
            await die(store)
        async with opened(path) as store, uploading(region, store):
            await emptied(store)
        assert copies_in(await region.stored()) == texts(COPIES)


async def test_a_server_that_is_killed_leaves_copies_in_order(tmp_path: Path, store: SqliteStore) -> None:
    await fill(store, COPIES)
    async with region_with_batches(tmp_path) as region:
        async with uploading(region, store):
            await until(partial(has_stored, region, 1_000), "copies are under way")
            await region.server.kill()
            await region.server.start()
            await emptied(store)
        assert copies_in(await region.stored()) == texts(COPIES)


async def test_sites_that_empty_their_outboxes_side_by_side_keep_their_orders(tmp_path: Path) -> None:
    sites = ("dub1", "dub2")
    count = 20_000
    async with AsyncExitStack() as stack:
        region = await stack.enter_async_context(region_with_batches(tmp_path, round_trip=0.05))
        stores = []
        for site in sites:
            store = await stack.enter_async_context(opened(tmp_path / f"{site}.db"))
            await fill(store, [copy(f"{site}.{number}", site=site) for number in range(count)])
            stores.append(store)
        async with uploading(region, stores[0]), uploading(region, stores[1]):
            for store in stores:
                await emptied(store)
        stored = copies_in(await region.stored())
    for site in sites:
        assert [text for text in stored if text.startswith(site)] == [f"{site}.{number}" for number in range(count)]


async def test_copies_stay_in_order_while_others_write_to_the_stream(tmp_path: Path, store: SqliteStore) -> None:
    await fill(store, [*COPIES, *(registration("", f"r{number}") for number in range(2_000))])
    async with region_with_batches(tmp_path, round_trip=0.02) as region:

        async def write() -> None:
            number = 0
            while True:
                await region.client.publish("fleet.eu-west.other", b"other", headers={"Nats-Msg-Id": f"o{number}"})
                number += 1
                await asyncio.sleep(0.002)

        writer = asyncio.create_task(write())
        async with uploading(region, store):
            await emptied(store)
        writer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await writer
        stored = await region.stored()
    assert copies_in(stored) == texts(COPIES)
    assert len({record.text for record in stored if record.text.startswith("r")}) == 2_000


@pytest.mark.parametrize("round_trip", [0.0, 0.02])
async def test_a_stream_that_takes_no_batches_gets_copies_one_by_one(
    tmp_path: Path, store: SqliteStore, round_trip: float
) -> None:
    rows = COPIES[:200]
    await fill(store, rows)
    async with running_region(tmp_path, round_trip=round_trip) as region:
        await region.make_stream()
        async with uploading(region, store):
            await emptied(store)
        stored = await region.stored()
    assert copies_in(stored) == texts(rows)
    assert batches_in(stored) == set()


async def test_a_target_that_takes_no_batches_takes_them_from_no_other(tmp_path: Path, store: SqliteStore) -> None:
    rows = [copy(f"e{number}", "elsewhere") for number in range(30)]
    elsewhere = [structs.replace(row, subject="elsewhere.reg") for row in rows]
    await store.commit(batch(1, [*elsewhere[:20], *COPIES[:3_000], *elsewhere[20:], *COPIES[3_000:]]))
    async with region_with_batches(tmp_path) as region:
        await region.api("STREAM.CREATE.ELSEWHERE", {"name": "ELSEWHERE", "subjects": ["elsewhere.>"]})
        async with uploading(region, store) as told:
            await emptied(store)
        stored = await region.stored()
        info = await region.api("STREAM.INFO.ELSEWHERE")
    assert info["state"]["messages"] == len(elsewhere)
    assert copies_in(stored) == texts(COPIES)
    assert all("Nats-Batch-Id" in record.headers for record in stored)
    assert set(told) == {""}


async def test_a_stream_that_is_full_for_a_while_has_copies_in_order(tmp_path: Path, store: SqliteStore) -> None:
    await fill(store, COPIES)
    async with region_with_batches(tmp_path, discard="new", max_msgs=1_500) as region:
        async with uploading(region, store) as told:
            for room in (1_501, 2_000, -1):
                await until(lambda: told and told[-1].endswith("maximum messages exceeded"), "the reason is told")
                await region.update_stream(max_msgs=room)
                if room > 0:
                    await until(partial(has_stored, region, room), "there is no room again")
            await emptied(store)
            await until(lambda: told[-1] == "", "all is well")
        assert copies_in(await region.stored()) == texts(COPIES)


async def test_somebody_who_keeps_every_batch_open_holds_up_nobody_and_changes_no_order(
    tmp_path: Path, store: SqliteStore
) -> None:
    await fill(store, [*(registration("", f"r{number}") for number in range(2_000)), *COPIES[:1_000]])
    async with region_with_batches(tmp_path) as region, asyncio.TaskGroup() as tasks:
        for row in COPIES[:300]:
            await region.client.jetstream().publish(row.subject, row.payload, headers=dict(row.headers))
        await keep_batches_open(region, 1)
        keeper = tasks.create_task(keep_batches_open_for_ever(region))
        async with uploading(region, store) as told:
            await emptied(store, 30.0)
        headers = {"Nats-Batch-Id": "one more", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"}
        with pytest.raises(APIError, match="too many inflight"):
            await region.client.jetstream().publish("fleet.eu-west.other", b"", headers=headers)
        keeper.cancel()
        stored = await region.stored()
    assert copies_in(stored) == texts(COPIES[:1_000])
    assert batches_in(stored) == set()
    assert set(told) == {""}


async def keep_batches_open_for_ever(region: Region) -> None:
    """Add to every batch before the server gives it up, which it does after 10 s."""
    place = 1
    while True:
        await asyncio.sleep(2.0)
        place += 1
        await keep_batches_open(region, place)


async def keep_batches_open(region: Region, place: int) -> None:
    """Publish one message of each batch that a stream may have open."""
    for number in range(50):
        headers = {"Nats-Batch-Id": f"open{number}", "Nats-Batch-Sequence": str(place)}
        await region.client.publish("fleet.eu-west.other", b"", headers=headers)
    await region.client.flush()


async def test_rows_that_the_region_knows_in_part_are_stored_once(tmp_path: Path, store: SqliteStore) -> None:
    rows = [registration("", f"r{number}") for number in range(500)]
    await fill(store, rows)
    async with region_with_batches(tmp_path) as region:
        for row in rows[100:120]:
            await region.client.jetstream().publish(row.subject, row.payload, headers=dict(row.headers))
        async with uploading(region, store):
            await emptied(store)
        stored = await region.stored()
    assert sorted(record.text for record in stored) == sorted(texts(rows))


async def test_no_watermark_passes_what_it_vouches_for_in_batches_or_between(
    tmp_path: Path, store: SqliteStore
) -> None:
    rows: list[OutboxRow] = []
    for number in range(3_000):
        rows.append(advisory(f"a{number}"))
        if number % 7 == 6 and number % 100 < 50:
            rows.append(watermark(f"w{number}", since=number))
    await fill(store, rows)
    cuts = sorted(random.sample(range(1, len(rows)), 3))
    async with region_with_batches(tmp_path, round_trip=0.01) as region:
        async with uploading(region, store):
            for cut in cuts:
                await until(partial(has_stored, region, cut), f"{cut} records have arrived")
                await region.link.cut()
                await region.link.restore()
            await emptied(store)
        stored = await region.stored()
    found = {record.text: place for place, record in enumerate(stored)}
    assert len(found) == len(stored) == len(rows)
    latest = -1
    for text in texts(rows):
        assert not text.startswith("w") or found[text] > latest, f"{text} overtook what it vouches for"
        latest = max(latest, found[text])


async def test_copies_that_come_while_others_are_under_way_leave_behind_them(
    tmp_path: Path, store: SqliteStore
) -> None:
    async with region_with_batches(tmp_path, round_trip=0.02) as region:
        async with uploading(region, store):
            for start in range(0, len(COPIES_LATER), 37):
                await store.commit(batch(start + 1, COPIES_LATER[start : start + 37]))
                await asyncio.sleep(0.01)
            await emptied(store)
        assert copies_in(await region.stored()) == texts(COPIES_LATER)

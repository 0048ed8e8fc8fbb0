"""What the live service shows and what the tables say is the same, of every sender of drawn fleets."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from aggregator.cli import cli
from aggregator.fleet import agreement
from aggregator.fleet.agreement import CannotCompare, compare
from aggregator.lakehouse.query.engine import open_tables
from aggregator.live.feed import Feed
from aggregator.live.fold import fleet as fold
from aggregator.live.store import ArchiveId, StoreReader
from shared.instants import DAY, parse_instant
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.support.lakehouse.hub import ARCHIVE, REPORT, Block, Hub, Message
from tests.support.lakehouse.random_fleet import draw_block
from tests.support.live.archived_history import archived
from tests.support.waiting import until

START = parse_instant("2026-02-27T00:00:00Z")


CONTESTED = 604637675
"""The seed of a fleet in which an episode without length ends where two agents publish at once."""


def published(lakehouse: Lakehouse, seeds: Mapping[str, int], part: int, blocks: int) -> int:
    """Publish a part of the fleet of each seed; return the last sequence."""
    last = 0
    for name, seed in seeds.items():
        print(f"{name}: seed {seed}")
        draw = random.Random(seed + part)
        sites = [f"{name}{number}" for number in range(blocks)]
        histories = [draw_block(draw, site, "nodes", START, START + 6 * DAY) for site in sites]
        messages = (Message(each.subject.decode(), each.payload) for each in archived(draw, histories))
        last = lakehouse.hub.publish(messages)
    return last


async def caught_up(lakehouse: Lakehouse, sequence: int) -> None:
    """Run the service's reader until it has stored a message."""
    stored = 0

    def note(_changes: object) -> None:
        nonlocal stored
        stored = feed.fleet.sequence

    feed = Feed(lakehouse.settings.hub, ARCHIVE, lakehouse.settings.live_path, on_changes=note)
    reading = asyncio.create_task(feed.run())
    try:
        await until(lambda: stored >= sequence or reading.done(), "all is stored")
        if reading.done():
            reading.result()
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        feed.close()


def test_live_and_tables_agree_on_every_sender_of_a_drawn_fleet(lakehouse: Lakehouse, tmp_path: Path) -> None:
    seeds = {"contested": CONTESTED, "drawn": random.randrange(1 << 30)}
    published(lakehouse, seeds, 0, 30)
    at_once = Block("eu-west", "at-once")
    messages = [at_once.new("web1", START), at_once.retired("web1", START, START), at_once.new("web2", START)]
    messages += [at_once.stale("web2", START), at_once.retired_by_operator("web2", START + DAY, START)]
    lakehouse.hub.publish(messages)
    lakehouse.roll_up()
    last = published(lakehouse, seeds, 1, 20)
    asyncio.run(caught_up(lakehouse, last))
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        found = asyncio.run(compare(lakehouse.settings, tables, say))
    assert found.differences == []
    assert (found.contradict, found.only_live, found.only_tables) == (0, 0, 0), str(found)
    assert found.agree > 60
    assert (found.service_sequence, found.is_service_same) == (last, True)

    config = tmp_path / "aggregator.toml"
    server = lakehouse.hub.connection.servers[0]
    config.write_text(f'[hub]\nservers = ["{server}"]\n[lakehouse]\npath = "{lakehouse.warehouse}"\n')
    told = CliRunner().invoke(cli, ["verify", "--config", str(config)])
    assert told.exit_code == 0, told.output
    line = f"agree {found.agree}, contradict 0, only live 0, only tables 0"
    assert told.output.splitlines()[-1] == f"at message {found.sequence:,}: {line}"


def test_whoever_live_has_forgotten_is_absent_from_the_tables_and_they_agree(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if each of the hub's microseconds were a day, and 90 days over at once.
    monkeypatch.setattr(fold, "DAY", 1)
    monkeypatch.setattr(fold, "KEPT", 0)
    dub1 = Block("eu-west", "dub1")
    messages = [dub1.new("web1", START), dub1.new("web2", START), dub1.stale("web1", START)]
    messages += [dub1.retired("web1", START + DAY, START), dub1.new("web3", START + DAY)]
    last = lakehouse.hub.publish([*messages, dub1.watermark(START, START + 2 * DAY)])
    lakehouse.roll_up()
    asyncio.run(caught_up(lakehouse, last))
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        assert len(tables.rows("SELECT DISTINCT sender_id FROM sender_intervals")) == 3
        found = asyncio.run(compare(lakehouse.settings, tables, say))
    assert (found.agree, found.contradict, found.only_live, found.only_tables) == (3, 0, 0, 0), found.differences
    assert (found.service_sequence, found.is_service_same) == (last, True)
    reader = StoreReader(lakehouse.settings.live_path)
    assert reader.sender(0, "web1") is None
    reader.close()


async def test_a_mirror_that_lags_behind_is_not_believed_that_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "PAUSES", (0.01, 0.02))
    hub = Hub(tmp_path / "hub")
    await asyncio.to_thread(hub.start)
    try:
        dub1 = Block("eu-west", "dub1")
        messages = [dub1.watermark(START, START), *(dub1.new(f"web{number}", START) for number in range(20))]
        last = await asyncio.to_thread(hub.publish, messages)
        settings, origin = settings_for(hub.connection, tmp_path / "lake"), ArchiveId(ARCHIVE, 1)
        settings = replace(settings, lakehouse=replace(settings.lakehouse, reading="direct"))
        read = [each async for batch in agreement._read(settings, origin, 1, last) for each in batch]
        assert [each.sequence for each in read] == list(range(1, last + 1))
        # It answers in the archive's place, and has the first message alone.
        taken = {"name": ARCHIVE, "filter_subject": "fleet.*.*.*.watermark"}
        mirror = {"name": "LATE", "mirror": taken, "mirror_direct": True}
        await asyncio.to_thread(hub.request, f"STREAM.DELETE.{REPORT}")
        await asyncio.to_thread(hub.request, "STREAM.CREATE.LATE", mirror)
        archive = {"name": ARCHIVE, "subjects": ["fleet.>", "choria.>", "muster.policy.>"], "allow_direct": False}
        await asyncio.to_thread(hub.request, f"STREAM.UPDATE.{ARCHIVE}", archive)
        said = ""
        async with asyncio.timeout(180):
            while not said or "nobody answers" in said:
                with pytest.raises(CannotCompare) as refused:
                    [batch async for batch in agreement._read(settings, origin, 2, last)]
                said = str(refused.value)
        assert said == f"{ARCHIVE}: who answers holds nothing from 2 on: try again later"
        # Behind the last message there is nothing to wait for.
        assert [batch async for batch in agreement._read(settings, origin, last + 1, last + 5)] == []
    finally:
        await asyncio.to_thread(hub.stop)

"""An archive put back from an older copy takes other messages where the tables stand: that is told, not passed over."""

import asyncio
import shutil
import time
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse.archive_past import check_past
from aggregator.lakehouse.catalog import HubPosition
from aggregator.lakehouse.reading_plan import Refused
from aggregator.lakehouse.stream_reader import StreamReader
from shared.instants import DAY, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse
from tests.support.hub import ARCHIVE, Block, Hub

FIRST = int(time.time()) * SECOND // DAY * DAY - DAY


def check(hub: Hub, position: HubPosition) -> None:
    async def checking() -> None:
        async with StreamReader(hub.connection, deadline=5) as reader:
            await check_past(reader, [position])

    asyncio.run(checking())


def test_an_archive_restored_from_a_copy_and_grown_past_the_position_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, copy = tmp_path / "hub", tmp_path / "copy"
    hub, dub1 = Hub(store), Block("eu-west", "dub1")
    hub.start()
    try:
        lakehouse = Lakehouse(hub, tmp_path / "lake")
        hub.publish([dub1.new("n1", FIRST), *(dub1.watermark(FIRST, FIRST + minute) for minute in range(4))])
        asyncio.run(hub.server.stop())
        shutil.copytree(store, copy)
        asyncio.run(hub.server.start())
        hub.publish(dub1.watermark(FIRST, FIRST + minute * MINUTE) for minute in range(5, 8))
        position = lakehouse.roll_up().position
        assert position.sequence == 8
        check(hub, position)

        asyncio.run(hub.server.stop())
        shutil.rmtree(store)
        shutil.copytree(copy, store)
        asyncio.run(hub.server.start())
        # What the tables have is not there again yet: nothing that is left is another message.
        check(hub, position)
        hub.publish(dub1.watermark(FIRST, FIRST + minute * MINUTE) for minute in range(8, 14))
        with pytest.raises(Refused, match=r"ARCHIVE holds other messages at 6\.\.8 than .* path to a new directory"):
            lakehouse.roll_up()

        # Where the message at the position is gone, the last one before it tells; where all are, nothing can.
        hub.request(f"STREAM.MSG.DELETE.{ARCHIVE}", {"seq": 8})
        with pytest.raises(Refused, match=r"other messages at 6\.\.8 than"):
            check(hub, position)
        check(hub, msgspec.structs.replace(position, sequence=5))
        hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": 9})
        check(hub, position)
    finally:
        hub.stop()

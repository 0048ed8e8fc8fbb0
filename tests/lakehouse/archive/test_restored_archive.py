"""An archive put back from an older copy takes other messages where the tables stand: that is told, not passed over.

So is that its mirror, or that of an archive that was created again, still holds what the archive was before.
"""

import asyncio
import shutil
import time
from pathlib import Path
from threading import Timer

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.archive.reader import ReadFailed, StreamReader
from aggregator.fleet.agreement import CannotCompare, compare
from aggregator.lakehouse import rollup
from aggregator.lakehouse.archive.reading_plan import Refused, Span, plan_reading
from aggregator.lakehouse.archive.restored import check_past
from aggregator.lakehouse.archive.slices import StreamSlices
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.position import HubPosition
from shared.instants import DAY, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.support.lakehouse.hub import ARCHIVE, REPORT, Block, Hub, Message

MADE_AGAIN = "or delete REPORT and have muster-aggregator apply make it again"
FIRST = int(time.time()) * SECOND // DAY * DAY - DAY


def check(hub: Hub, position: HubPosition) -> None:
    async def checking() -> None:
        async with StreamReader(hub.connection, deadline=5) as reader:
            await check_past(reader, [position])

    asyncio.run(checking())


def read_anew(hub: Hub) -> list[bytes]:
    """Read all that there is to new tables."""

    async def planning() -> Span:
        async with StreamReader(hub.connection, deadline=5) as reader:
            report, archive = await reader.state(REPORT), await reader.state(ARCHIVE)
            return plan_reading([], archive, report).wanted

    wanted = asyncio.run(planning())
    batches = StreamSlices.of(hub.connection, REPORT, ARCHIVE).read(wanted.first, wanted.last)
    return [payload for messages in batches for payload in messages.payloads]


def restore(hub: Hub, store: Path, copy: Path) -> None:
    """Put back what ``copy`` has of ``store``."""
    asyncio.run(hub.server.stop())
    shutil.rmtree(store)
    shutil.copytree(copy, store)
    asyncio.run(hub.server.start())


def not_compared(lakehouse: Lakehouse) -> str:
    """Say why the live fleet and the tables cannot be compared."""
    settings = lakehouse.settings
    with open_tables(lakehouse.warehouse, settings.lakehouse.catalog) as tables, pytest.raises(CannotCompare) as why:
        asyncio.run(compare(settings, tables, say))
    return str(why.value)


def watermarks(block: Block, *minutes: int) -> list[Message]:
    return [block.watermark(FIRST, FIRST + minute * MINUTE) for minute in range(*minutes)]


def test_an_archive_restored_from_a_copy_and_grown_past_the_position_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    store, copy = tmp_path / "hub", tmp_path / "copy"
    hub, dub1 = Hub(store), Block("eu-west", "dub1")
    hub.start()
    try:
        lakehouse = Lakehouse(hub, tmp_path / "lake")
        hub.publish([dub1.new("n1", FIRST), *watermarks(dub1, 4)])
        asyncio.run(hub.server.stop())
        shutil.copytree(store, copy)
        asyncio.run(hub.server.start())
        hub.publish(watermarks(dub1, 5, 8))
        position = lakehouse.roll_up().position
        assert position.sequence == 8
        check(hub, position)

        restore(hub, store, copy)
        # What the tables have is not there again yet: nothing that is left is another message.
        check(hub, position)
        assert not_compared(lakehouse).startswith("ARCHIVE ends at 5, before the tables (8): it was restored")
        hub.publish(watermarks(dub1, 8, 14))
        with pytest.raises(Refused, match=r"ARCHIVE holds other messages at 6\.\.8 than .* path to a new directory"):
            lakehouse.roll_up()
        assert not_compared(lakehouse).startswith("ARCHIVE holds other messages at 6..8 than those that were read")

        # Where the message at the position is gone, the last one before it tells; where all are, nothing can.
        hub.request(f"STREAM.MSG.DELETE.{ARCHIVE}", {"seq": 8})
        with pytest.raises(Refused, match=r"other messages at 6\.\.8 than"):
            check(hub, position)
        check(hub, msgspec.structs.replace(position, sequence=5))
        hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": 9})
        check(hub, position)
        hub.request(f"STREAM.DELETE.{ARCHIVE}")
        hub.create_archive()
        assert not_compared(lakehouse).startswith("ARCHIVE is another: it was restored or made anew")
    finally:
        hub.stop()


def test_a_mirror_of_what_the_archive_was_before_is_refused_until_it_is_made_again(tmp_path: Path) -> None:
    archive, copy = tmp_path / "hub" / "jetstream" / "jetstream" / "$G" / "streams" / ARCHIVE, tmp_path / "copy"
    hub, dub1 = Hub(tmp_path / "hub"), Block("eu-west", "dub1")
    hub.start()
    try:
        hub.publish(watermarks(dub1, 40))
        asyncio.run(hub.server.stop())
        shutil.copytree(archive, copy)
        asyncio.run(hub.server.start())
        hub.publish(watermarks(dub1, 40, 42))
        restore(hub, archive, copy)
        with pytest.raises(Refused, match=f"REPORT ends at 42, beyond ARCHIVE, which ends at 40: .* {MADE_AGAIN}"):
            read_anew(hub)
        # A server that has just come to lead the archive may have something still to take: it is waited for.
        grows = Timer(0.5, hub.publish, [watermarks(dub1, 42, 44)])
        grows.start()
        found = asyncio.run(rollup._look_at(settings_for(hub.connection, tmp_path), pauses=(0.1,) * 600))
        grows.join()
        assert (found.report.last_sequence, found.archive.last_sequence) == (42, 42)
        # Both streams grow, and agree on nearly all, on the first and the last one too.
        hub.publish(watermarks(dub1, 44, 102))
        with pytest.raises(ReadFailed, match=f"REPORT and ARCHIVE hold different messages at 4[12], .* {MADE_AGAIN}"):
            read_anew(hub)
        hub.request(f"STREAM.DELETE.{REPORT}")
        hub.create_report()
        hub.mirrored()
        read = read_anew(hub)
        assert read == [message.body for message in watermarks(dub1, 40) + watermarks(dub1, 42, 102)]

        # A mirror may keep what its archive has let go, all of it too; not what another archive of that name was.
        hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": 4})
        assert read_anew(hub) == read
        hub.request(f"STREAM.PURGE.{ARCHIVE}")
        assert read_anew(hub) == read
        hub.request(f"STREAM.DELETE.{ARCHIVE}")
        hub.create_archive()
        with pytest.raises(Refused, match=f"REPORT ends at 100, beyond ARCHIVE, which ends at 0: .* {MADE_AGAIN}"):
            read_anew(hub)
        # Of what that one has let go when it has grown past it, the times of the messages tell.
        hub.publish(watermarks(dub1, 102, 204))
        hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": 101})
        said = f"REPORT alone holds 1..100, and begins at .*Z, before ARCHIVE was made: .* {MADE_AGAIN}"
        with pytest.raises(Refused, match=said):
            read_anew(hub)
    finally:
        hub.stop()

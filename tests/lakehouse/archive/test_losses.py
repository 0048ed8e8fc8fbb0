"""What retention took before it was read stops the job, is named, and becomes unknown time when it is given up."""

import asyncio
import time
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from aggregator.archive.hub_clock import HubClock
from aggregator.archive.reader import ReadFailed, StreamReader
from aggregator.lakehouse import rollup as job
from aggregator.lakehouse.archive.mirror import in_one_piece
from aggregator.lakehouse.archive.reading_plan import Refused, Span
from aggregator.lakehouse.archive.slices import StreamSlices
from aggregator.lakehouse.bronze.chunks import read_chunks
from aggregator.lakehouse.bronze.staging import StagingPlace
from aggregator.lakehouse.commands.failures import explained
from aggregator.lakehouse.commands.rollup import rollup
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.records.judge import SiteBlocks
from shared.instants import DAY, HOUR, SECOND
from tests.lakehouse.conftest import Lakehouse, say, settings_for
from tests.support.lakehouse.hub import ARCHIVE, DEADLINE, REPORT, Block, Hub, Message
from tests.support.waiting import until

LOST = "SELECT first_sequence, last_sequence FROM losses"
FIRST = int(time.time()) * SECOND // DAY * DAY - DAY


def test_a_loss_is_refused_then_given_up_and_its_time_is_unknown(spark: SparkSession, hub: Hub, tmp_path: Path) -> None:
    dub1 = Block("eu-west", "dub1")
    lakehouse = Lakehouse(hub, tmp_path / "lake")
    last = hub.publish([dub1.new("n1", FIRST), dub1.watermark(FIRST, FIRST + HOUR)])
    before = lakehouse.roll_up().position
    now = before.known_through
    hub.publish(dub1.watermark(FIRST, now - 10 * SECOND + second * SECOND) for second in range(9))
    hub.publish([dub1.watermark(FIRST, now + DAY)])
    hub.request("STREAM.PURGE.ARCHIVE", {"seq": last + 9})
    with pytest.raises(Refused, match=rf"--accept-loss {last + 1}\.\.{last + 3}"):
        lakehouse.roll_up()
    result = lakehouse.roll_up(RollupRequest(accept_loss=Span(last + 1, last + 3)))
    assert (result.counts.read, result.counts.ahead) == (7, 1)

    ((lost_from, lost_to),) = lakehouse.rows("SELECT epoch_us(lost_from), epoch_us(lost_to) FROM losses")
    assert lost_from == now
    assert now <= lost_to <= result.position.known_through  # type: ignore[operator]
    spans = lakehouse.rows("SELECT epoch_us(started_at), epoch_us(ended_at), cause FROM site_coverage ORDER BY 1")
    # The clock ahead of the hub's vouches up to the hub's time, and the loss outranks what it says.
    assert spans == [
        (FIRST, lost_from, "observed"),
        (lost_from, lost_to, "lost"),
        (lost_to, result.position.known_through, "observed"),
    ]


def test_a_loss_is_not_given_up_before_there_is_something_after_it(lakehouse: Lakehouse) -> None:
    hub, dub1 = lakehouse.hub, Block("eu-west", "dub1")
    before = hub.publish([dub1.new("n1", FIRST), dub1.watermark(FIRST, FIRST + HOUR)])
    lakehouse.roll_up()
    last = hub.publish([dub1.watermark(FIRST, FIRST + 2 * HOUR)])
    for stream in (ARCHIVE, REPORT):
        hub.request(f"STREAM.PURGE.{stream}")
    lost = Span(before + 1, last)
    with pytest.raises(Refused, match=f"--accept-loss {lost.first}..{lost.last}"):
        lakehouse.roll_up()
    for _ in range(2):
        with pytest.raises(ReadFailed, match=f"nothing is left at or after {last + 1}; run again when there is"):
            lakehouse.roll_up(RollupRequest(accept_loss=lost))
    hub.publish([dub1.watermark(FIRST, FIRST + 3 * HOUR)])
    assert lakehouse.roll_up(RollupRequest(accept_loss=lost)).counts.read == 1
    assert lakehouse.rows(LOST) == [(lost.first, lost.last)]


def test_a_loss_is_kept_where_the_report_has_not_come_further(
    lakehouse: Lakehouse, capsys: pytest.CaptureFixture[str]
) -> None:
    hub, dub1 = lakehouse.hub, Block("eu-west", "dub1")
    before = hub.publish([dub1.new("n1", FIRST), dub1.watermark(FIRST, FIRST + HOUR)])
    now = lakehouse.roll_up().position.known_through
    stalled_at = hub.publish([dub1.watermark(FIRST, FIRST + 2 * HOUR)])
    of_dub1 = {"name": ARCHIVE, "filter_subject": "fleet.eu-west.dub1.>"}
    hub.request("STREAM.CREATE.STALLED", {"name": "STALLED", "mirror": of_dub1, "allow_direct": True})

    async def holds_all() -> bool:
        info = await asyncio.to_thread(hub.request, "STREAM.INFO.STALLED")
        return bool(info["state"]["last_seq"] == stalled_at)

    asyncio.run(until(holds_all, "it holds what there is"))
    ams1 = Block("eu-west", "ams1")
    last = hub.publish(ams1.watermark(FIRST, FIRST + hour * HOUR) for hour in range(3, 5))
    hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": last})
    # As a report that lost all it had, and its way to the archive.
    hub.request("STREAM.PURGE.STALLED")
    stalled = msgspec.structs.replace(lakehouse.settings.lakehouse, report_stream="STALLED")
    lakehouse.settings = msgspec.structs.replace(lakehouse.settings, lakehouse=stalled)
    lost = Span(before + 1, before + 1)
    with pytest.raises(Refused, match=f"--accept-loss {lost.first}..{lost.last}"):
        lakehouse.roll_up()
    result = lakehouse.roll_up(RollupRequest(accept_loss=lost))
    assert (result.counts.read, result.position.sequence) == (0, lost.last)
    assert f"gave up {lost}" in capsys.readouterr().err
    assert lakehouse.rows(LOST) == [(lost.first, lost.last)]
    ((from_here,),) = lakehouse.rows("SELECT epoch_us(lost_from) FROM losses WHERE lost_to > lost_from")
    assert from_here == now


def test_a_report_that_is_no_mirror_of_the_archive_is_refused_before_spark_starts(hub: Hub, tmp_path: Path) -> None:
    hub.request("STREAM.CREATE.OWN", {"name": "OWN", "subjects": ["own.>"], "allow_direct": True})
    hub.request("STREAM.CREATE.FURTHER", {"name": "FURTHER", "mirror": {"name": "OWN"}, "allow_direct": True})
    settings = settings_for(hub.connection, tmp_path)
    # No Spark would start with these.
    lakehouse = msgspec.structs.replace(settings.lakehouse, spark_master="nonsense")
    for name, what in (("OWN", "is a stream of its own"), ("FURTHER", "mirrors OWN")):
        named = msgspec.structs.replace(lakehouse, report_stream=name)
        with pytest.raises(Refused, match=f"{name} is no mirror of ARCHIVE, but {what}: name a mirror"):
            job.roll_up(msgspec.structs.replace(settings, lakehouse=named), RollupRequest(), say)


def test_a_hole_in_the_report_is_lost_once_what_lies_before_it_was_read(lakehouse: Lakehouse) -> None:
    hub, dub1 = lakehouse.hub, Block("eu-west", "dub1")
    before = hub.publish([dub1.new("n1", FIRST), dub1.watermark(FIRST, FIRST + HOUR)])
    lakehouse.roll_up()
    hub.publish(dub1.watermark(FIRST, FIRST + hour * HOUR) for hour in range(2, 8))
    make_a_hole(hub, before + 3, before + 4)
    hub.request(f"STREAM.PURGE.{ARCHIVE}", {"seq": before + 5})
    lost = Span(before + 3, before + 4)
    with pytest.raises(Refused, match="nothing is lost"):
        lakehouse.roll_up(RollupRequest(accept_loss=lost))
    result = lakehouse.roll_up()
    assert (result.counts.read, result.position.sequence) == (2, before + 2)
    with pytest.raises(Refused, match=rf"--accept-loss {lost.first}\.\.{lost.last}"):
        lakehouse.roll_up()
    result = lakehouse.roll_up(RollupRequest(accept_loss=lost))
    assert (result.counts.read, result.position.sequence) == (2, before + 6)
    assert lakehouse.rows(LOST) == [(lost.first, lost.last)]


async def test_of_a_report_with_holes_the_piece_before_what_the_archive_does_not_fill_is_read(tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, (Message("fleet.a", b"%d" % number) for number in range(1, 13)))
        await asyncio.to_thread(make_a_hole, hub, 4, 6)
        async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
            report = await reader.state(REPORT)
            assert (report.first_sequence, report.last_sequence, report.has_holes) == (1, 12, True)

            async def piece(done: int) -> Span:
                found = await in_one_piece(reader, report, await reader.state(ARCHIVE), done)
                return Span(found.first_sequence, found.last_sequence)

            # The archive begins before the hole: what it lacks there was deleted.
            assert await piece(0) == Span(1, 12)
            for kept_from in (7, 10):
                await asyncio.to_thread(hub.request, f"STREAM.PURGE.{ARCHIVE}", {"seq": kept_from})
                assert [await piece(done) for done in (0, 2, 3, 5)] == [
                    Span(1, 3),
                    Span(3, 3),
                    Span(7, 12),
                    Span(7, 12),
                ]
            assert await piece(6) == Span(7, 12)
            assert await piece(9) == Span(1, 12)
    finally:
        await asyncio.to_thread(hub.stop)


def make_a_hole(hub: Hub, first: int, last: int) -> None:
    """Have the report's server pass over messages, as over those that the archive has let go while it was away."""
    hub.request(f"STREAM.DELETE.{REPORT}")
    for sequence in range(first, last + 1):
        hub.request(f"STREAM.MSG.DELETE.{ARCHIVE}", {"seq": sequence})
    hub.create_report()
    hub.mirrored()


def test_a_failure_in_a_worker_is_one_line_too(spark: SparkSession, tmp_path: Path) -> None:
    hub = Hub(tmp_path)
    hub.start()
    try:
        hub.publish(Block("eu-west", "dub1").watermark(FIRST, FIRST + hour) for hour in range(3))
        hub.request("STREAM.PURGE.ARCHIVE", {"seq": 3})
        hub.request("STREAM.DELETE.REPORT")
        source = StreamSlices.of(hub.connection, "ARCHIVE")
        for place in (None, StagingPlace.of(f"file://{tmp_path}/advisories", pa.schema([]), 0)):
            chunks = read_chunks(spark, source, [Span(1, 3)], place, 100, HubClock(), site_blocks=SiteBlocks())
            with pytest.raises((PySparkException, Py4JError)) as failed:
                [each.decoded for each in chunks]
            said = "stream ARCHIVE: retention removed 1 to 2 before they were read; run again to be told what to do"
            assert explained(failed.value) == said
        assert not list(tmp_path.glob("advisories/**/*.parquet"))
    finally:
        hub.stop()


def test_an_empty_hub_gives_empty_tables(lakehouse: Lakehouse) -> None:
    result = lakehouse.roll_up()
    assert (result.counts.read, result.position.sequence, result.position.known_through) == (0, 0, 0)
    assert lakehouse.rows("SELECT count(*) FROM sender_availability_daily") == [(0,)]


def test_a_person_gets_one_line(tmp_path: Path) -> None:
    config = tmp_path / "aggregator.toml"
    config.write_text(f'[hub]\nservers = ["nats://127.0.0.1:1"]\n[lakehouse]\npath = "{tmp_path}/lake"\n')
    asked = CliRunner().invoke(rollup, ["--config", str(config), "--accept-loss", "9..1"])
    assert asked.exit_code == 2
    assert "not a range of sequences: '9..1', write LO..HI" in asked.output

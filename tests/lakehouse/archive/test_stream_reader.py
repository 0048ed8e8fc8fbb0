"""Ranges of a real stream are read whole: nothing is forged, skipped, read twice, or taken from somebody else."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from aggregator.archive import consumer as stream_consumer
from aggregator.archive import direct_gets
from aggregator.archive import reader as stream_reader
from aggregator.archive.consumer import StreamConsumer
from aggregator.archive.direct_gets import DirectGets
from aggregator.archive.hub_clock import HubClock
from aggregator.archive.reader import ReadFailed, StreamReader
from aggregator.config import Reading
from aggregator.lakehouse.archive.mirror import Witnesses, check_witnesses
from aggregator.lakehouse.archive.slices import StreamSlices, cut, decoded_connection, encoded_connection
from aggregator.lakehouse.bronze.spark_source import rows_of
from aggregator.lakehouse.bronze.staging import StagingPlace, have_any, stage_slice
from shared.instants import DAY, SECOND, parse_instant
from shared.nats.connection import ApiError, AuthSettings, ConnectionSettings, RequestFailed, TlsSettings, request_json
from shared.nats.dispatch import Frame
from shared.settings import FilePath
from tests.support.lakehouse.hub import ARCHIVE, DEADLINE, REPORT, Block, Hub, Message
from tests.support.waiting import until

MIDNIGHT = parse_instant("2026-02-01T00:00:00Z")
each_way = pytest.mark.parametrize("reading", ["consumer", "direct"])
WHOLE = "fleet.eu-west.dub1.nodes.watermark"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    hub = Hub(tmp_path, report_limit=5)
    hub.start()
    yield hub
    hub.stop()


async def test_a_stream_that_was_not_made_yet_is_named_with_the_command_that_makes_it(hub: Hub) -> None:
    async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
        with pytest.raises(ReadFailed, match=r"^the hub has no stream NONE: muster-aggregator apply makes it$"):
            await reader.state("NONE")


def source_of(hub: Hub, reading: Reading = "consumer") -> StreamSlices:
    return StreamSlices.of(hub.connection, REPORT, ARCHIVE, reading=reading)


def read(hub: Hub, first: int, last: int, reading: Reading, slices: int = 1) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for part in cut(first, last, slices):
        for messages in source_of(hub, reading).read(*part):
            assert not found.keys() & set(messages.sequences)
            found |= zip(messages.sequences, messages.payloads, strict=True)
    return found


@each_way
def test_what_the_report_has_let_go_is_read_from_the_archive_although_the_report_answers_for_it(
    hub: Hub, reading: Reading
) -> None:
    hub.publish(Message(WHOLE, b"%d" % number) for number in range(1, 41))
    wanted = {number: b"%d" % number for number in range(1, 41)}
    for _ in range(5):
        assert read(hub, 1, 40, reading) == wanted
    assert read(hub, 1, 40, reading, slices=3) == wanted
    assert read(hub, 3, 3, reading) == {3: b"3"}


def test_whole_advisories_are_written_by_day_or_month_and_the_rest_is_handed_on(hub: Hub, tmp_path: Path) -> None:
    dub1 = Block("eu-west", "dub1")
    advisories = [dub1.new(f"n{number}", MIDNIGHT + (number - 3) * SECOND) for number in range(1, 6)]
    hub.publish([*advisories, Message(WHOLE, b"?"), advisories[0]._replace(body=b"?")])
    schema = pa.schema(
        [
            # As pyiceberg gives a table's columns.
            pa.field("site", pa.large_string(), metadata={"PARQUET:field_id": "2"}),
            pa.field("sender_id", pa.large_string(), metadata={"PARQUET:field_id": "4"}),
            pa.field("occurred_at", pa.timestamp("us", "UTC"), metadata={"PARQUET:field_id": "6"}),
            pa.field("last_seen_at", pa.timestamp("us", "UTC"), metadata={"PARQUET:field_id": "7"}),
            pa.field("event_id", pa.large_string(), metadata={"PARQUET:field_id": "8"}),
            pa.field("incarnation", pa.large_string(), metadata={"PARQUET:field_id": "13"}),
            pa.field("hub_sequence", pa.int64(), metadata={"PARQUET:field_id": "18"}),
            pa.field("archived_at", pa.timestamp("us", "UTC"), metadata={"PARQUET:field_id": "19"}),
        ]
    )
    place = StagingPlace.of(f"file://{tmp_path}/advisories", schema, after=1)
    assert place is not None
    staged = stage_slice(source_of(hub), place, (), (1, 7), HubClock())
    others = parquet.read_table(place.path(staged.others)).to_pylist()
    assert [(row["hub_sequence"], row["payload"]) for row in others] == [(6, b"?"), (7, b"?")]
    files = staged.files
    found = {file.partition: parquet.read_table(place.path(file.name)) for file in files}
    assert {day: table["sender_id"].to_pylist() for day, table in found.items()} == {
        "2026-01-31": ["n2"], "2026-02-01": ["n3", "n4", "n5"],
    }  # fmt: skip
    of_all = np.sort(np.frombuffer(staged.fingerprints, np.uint64))
    assert len(set(of_all)) == 4
    paths = [str(place.path(file.name)) for file in files]
    one = of_all[:1]
    assert list(have_any(of_all, paths)) == [True, True]
    assert sum(have_any(one, paths)) == 1
    assert list(have_any(one + np.uint64(1), paths)) == [False, False]
    assert [file.row_count for file in files] == [table.num_rows for table in found.values()]
    for table in found.values():
        assert [field.metadata[b"PARQUET:field_id"] for field in table.schema] == [
            b"2", b"4", b"6", b"7", b"8", b"13", b"18", b"19",
        ]  # fmt: skip
    columns = [parquet.read_metadata(path).row_group(0).column(number) for path in paths for number in (0, 1)]
    assert [column.has_dictionary_page for column in columns] == [True, False] * 2
    # Of many days, each of which has little, by month.
    hub.publish(dub1.new(f"n{number}", MIDNIGHT + (number - 8) * DAY) for number in range(6, 12))
    by_month = stage_slice(source_of(hub), place, (), (8, 13), HubClock()).files
    assert [(file.partition, file.days[-1], file.row_count) for file in by_month] == [
        ("2026-01", date(2026, 1, 31), 2), ("2026-02", date(2026, 2, 4), 4),
    ]  # fmt: skip
    # As Iceberg names its directories: "occurred_at=" would say to other readers what that column is.
    directories = [place.path(file.name).parent.name for file in (*files, *by_month)]
    assert directories == [
        "occurred_at_day=2026-01-31", "occurred_at_day=2026-02-01",
        "occurred_at_month=2026-01", "occurred_at_month=2026-02",
    ]  # fmt: skip
    assert StagingPlace.of("s3://lake/advisories", schema, 0) is None


@each_way
def test_deleted_messages_are_passed_over(hub: Hub, reading: Reading) -> None:
    hub.publish(Message(WHOLE, b"%d" % number) for number in range(1, 13))
    for sequence in (2, 10, 12):
        hub.request("STREAM.MSG.DELETE.ARCHIVE", {"seq": sequence})
    assert set(read(hub, 1, 12, reading)) >= {1, 3, 4, 5, 6, 7, 8, 9, 11}


@each_way
def test_what_retention_took_from_both_is_named(hub: Hub, reading: Reading) -> None:
    hub.publish(Message(WHOLE, b"%d" % number) for number in range(1, 13))
    hub.request("STREAM.PURGE.ARCHIVE", {"seq": 4})
    with pytest.raises(ReadFailed, match=r"ARCHIVE: retention removed 1 to 3 before they were read"):
        read(hub, 1, 12, reading)


@each_way
def test_what_is_lost_on_the_way_is_read_again(hub: Hub, reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.publish(Message(WHOLE, b"%d" % number) for number in range(1, 41))
    reads: Any = StreamConsumer if reading == "consumer" else DirectGets
    takes, seen = reads._on_frames, list[bytes]()

    def loses_some(consumer: object, frames: Sequence[Frame]) -> None:
        for frame in frames:
            seen.append(frame[-1])
            if frame[-1] not in (b"7", b"8") or seen.count(frame[-1]) > 1:
                takes(consumer, [frame])

    monkeypatch.setattr(reads, "_on_frames", loses_some)
    monkeypatch.setattr(stream_consumer, "SILENCE", 0.1)
    assert read(hub, 1, 40, reading) == {number: b"%d" % number for number in range(1, 41)}
    assert seen.count(b"7") + seen.count(b"8") > 2


@each_way
def test_a_message_larger_than_a_batch_is_read_alone(
    hub: Hub, reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_consumer, "BATCH_BYTES", 1_000)
    monkeypatch.setattr(direct_gets, "BATCH_BYTES", 1_000)
    bodies = [b"x" * size for size in (5_000, 300, 300, 300, 300, 5_000, 5_000, 300, 5_000)]
    hub.publish(Message(WHOLE, body) for body in bodies)
    assert read(hub, 1, 9, reading) == dict(enumerate(bodies, start=1))


async def test_reading_goes_on_where_its_consumer_was_deleted_and_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_consumer, "BATCH_MESSAGES", 4)
    hub = Hub(tmp_path)
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(WHOLE, b"%d" % number) for number in range(1, 11)])
        found = list[bytes]()

        async def nobody_reads() -> bool:
            return not (await asyncio.to_thread(hub.request, "CONSUMER.NAMES.ARCHIVE"))["consumers"]

        async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
            async for messages in reader.read(ARCHIVE, 1, 9):
                found += messages.payloads
                consumers = (await asyncio.to_thread(hub.request, "CONSUMER.NAMES.ARCHIVE"))["consumers"]
                if len(found) == 4:
                    await asyncio.to_thread(hub.request, f"CONSUMER.DELETE.ARCHIVE.{consumers[0]}")
        assert found == [b"%d" % number for number in range(1, 10)]
        await until(nobody_reads, "the server has forgotten every consumer")
    finally:
        await asyncio.to_thread(hub.stop)


def test_reading_that_is_left_early_leaves_no_consumer(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_consumer, "BATCH_MESSAGES", 4)
    hub.publish(Message(WHOLE, b"%d" % number) for number in range(1, 10))

    async def nobody_reads() -> bool:
        return not (await asyncio.to_thread(hub.request, "CONSUMER.NAMES.REPORT"))["consumers"]

    with closing(StreamSlices.of(hub.connection, REPORT).read(5, 9)) as batches:
        assert next(batches).payloads == [b"5", b"6", b"7", b"8"]
        assert not asyncio.run(nobody_reads())
    asyncio.run(until(nobody_reads, "the server has forgotten every consumer"))


async def test_whoever_may_not_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_consumer, "SILENCE", 0.1)
    monkeypatch.setattr(stream_reader, "PAUSES", ())
    denied = 'permissions: { publish: { deny: "$JS.API.CONSUMER.MSG.NEXT.>" } }'
    users = f"authorization {{ users: [ {{ user: u, password: p, {denied} }} ] }}"
    hub = Hub(tmp_path, extra_config=f"{users}\nno_auth_user: u")
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(WHOLE, b"1")])
        async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
            with pytest.raises(ReadFailed, match=r"1 failed: no answer within 0\.1 s \(stalled, cut off, or no perm"):
                await anext(reader.read(ARCHIVE, 1, 1))
    finally:
        await asyncio.to_thread(hub.stop)


@each_way
def test_headers_of_a_publisher_cannot_pass_for_the_servers(hub: Hub, reading: Reading) -> None:
    forged = {
        "Nats-Stream": "REPORT",
        "Nats-Subject": "fleet.eu-west.other.nodes.watermark",
        "Nats-Sequence": "99",
        "Nats-Time-Stamp": "1970-01-01T00:00:00Z",
        "Nats-Last-Sequence": "98",
        "Status": "404",
    }
    hub.publish([Message(WHOLE, b"1", forged), Message(WHOLE, b"2")])
    rows = [row for messages in source_of(hub, reading).read(1, 2) for row in rows_of(messages).to_pylist()]
    assert [(row["hub_sequence"], row["subject"], row["payload"]) for row in rows] == [
        (1, WHOLE, b"1"), (2, WHOLE, b"2"),
    ]  # fmt: skip
    assert rows[0]["archived_at"].year > 1970


@each_way
def test_a_message_that_looks_like_the_end_of_a_batch_does_not_end_it(hub: Hub, reading: Reading) -> None:
    async def publish_raw() -> None:
        # What no client library writes, but every client can send.
        reader, writer = await asyncio.open_connection("127.0.0.1", hub.server.port)
        writer.write(b'CONNECT {"verbose": false, "headers": true}\r\n')
        forged = (
            b"Nats-Stream: REPORT\r\nNats-Subject: a.b\r\nNats-Sequence: 9\r\nNats-Time-Stamp: 1970-01-01T00:00:00Z\r\n"
        )
        for head in (
            b"NATS/1.0 404\r\n\r\n",
            b"NATS/1.0\r\nFoo: bar",
            b"NATS/1.0 204 EOB\r\nA: \xff\xfe\r\n\r\n",
            b"NATS/1.0\r\nNats-Stream: evil!!",
            b"NATS/1.0\r\n" + forged + b"Nats-Num-Pending: 0\r\nNats-Last-Sequence: 8\r\n\r\n\r\n",
        ):
            size = b"%d %d" % (len(head), len(head) + 1)
            writer.write(b"HPUB " + WHOLE.encode() + b" " + size + b"\r\n" + head + b"x\r\n")
        writer.write(b"PING\r\n")
        await reader.readuntil(b"PONG\r\n")
        writer.close()
        await writer.wait_closed()

    asyncio.run(publish_raw())
    hub.publish([Message(WHOLE, b"6")])
    assert read(hub, 1, 6, reading) == {**dict.fromkeys(range(1, 6), b"x"), 6: b"6"}


async def test_a_stream_that_is_not_there_is_named_after_pauses_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()

    async def pausing(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(stream_reader, "asyncio", SimpleNamespace(sleep=pausing))
    hub = Hub(tmp_path)
    await asyncio.to_thread(hub.start)
    try:
        async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
            with pytest.raises(ReadFailed, match=r"the hub has no stream NOPE: muster-aggregator apply makes it"):
                await reader.state("NOPE")
            with pytest.raises(ReadFailed, match=r"NOPE: reading from sequence 1 failed: stream not found \(10059\)"):
                await anext(reader.read("NOPE", 1, 1))
        assert pauses == [1, 2, 4, 8]
    finally:
        await asyncio.to_thread(hub.stop)


async def test_a_stream_without_a_leader_is_asked_again_after_pauses_that_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, left = list[float](), 0
    refused = ApiError(503, 10008, "JetStream system temporarily unavailable"), RequestFailed("no answer within 5 s")

    async def pausing(seconds: float) -> None:
        pauses.append(seconds)

    async def electing(*given: Any, **named: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise refused[left % 2]
        return await request_json(*given, **named)

    monkeypatch.setattr(stream_reader, "asyncio", SimpleNamespace(sleep=pausing))
    monkeypatch.setattr(stream_reader, "request_json", electing)
    hub, witnesses = Hub(tmp_path), Witnesses()
    await asyncio.to_thread(hub.start)
    try:
        await asyncio.to_thread(hub.publish, [Message(WHOLE, b"1"), Message(WHOLE, b"2")])
        async with StreamReader(hub.connection, deadline=DEADLINE) as reader:
            async for messages in reader.read(ARCHIVE, 1, 1):
                witnesses.see(messages)
            left = 4
            await check_witnesses(reader, REPORT, ARCHIVE, witnesses)
            assert pauses == [1, 2, 4, 8]
            left = 5
            with pytest.raises(ReadFailed, match=r"ARCHIVE: no quorum: .*\(10008\)"):
                await reader.at_or_after(ARCHIVE, 1)
            assert (await reader.state(ARCHIVE)).last_sequence == 2
            pauses.clear()
            # What is asked first of all is told at once, and so is a refusal that no leader would take back.
            left = 1
            with pytest.raises(ReadFailed, match="no quorum"):
                await reader.state(ARCHIVE)
            with pytest.raises(ReadFailed, match=r"NOPE: stream not found \(10059\)"):
                await reader.at_or_after("NOPE", 1)
            # Who waited for an answer for as long as all pauses take is told so, and does not wait as long again.
            left, clock = 2, iter((0.0, 15.1))
            monkeypatch.setattr(stream_reader, "time", SimpleNamespace(monotonic=lambda: next(clock)))
            with pytest.raises(ReadFailed, match="no answer"):
                await reader.at_or_after(ARCHIVE, 1)
            assert not pauses
    finally:
        await asyncio.to_thread(hub.stop)


def test_connection_settings_survive_the_way_to_a_worker() -> None:
    settings = ConnectionSettings(
        servers=("tls://hub.example:4222",),
        domain="hub",
        auth=AuthSettings(credentials_file=FilePath("/etc/muster/hub.creds")),
        tls=TlsSettings(ca=FilePath("/etc/muster/ca.pem"), handshake_first=True),
    )
    assert decoded_connection(encoded_connection(settings)) == settings

"""What waits in the store reaches the region, all of it, whatever the link does; a watermark never comes too early."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.delivery import flow_control, uploader
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.region_protocol import BEHIND_HEADER
from edge_agent.delivery.shipment import Answer, Form, Shipment
from edge_agent.runtime import pace
from edge_agent.runtime.links import max_payload_of
from edge_agent.store.sqlite_store import SqliteStore
from shared.embedded import link
from shared.nats import client, connection
from shared.nats.jetstream_api import NO_STREAM_ANSWERS
from tests.support.delivery.fleet_region import EMPTY, Region, Stored, running_region, tell_of_shipments, uploading
from tests.support.store.store_batches import BLOCK, advisory, batch, registration, watermark
from tests.support.waiting import until

CUTS = 6
"""How often a link is cut while an outbox is emptied over it."""


@pytest.fixture(autouse=True)
def retries_follow_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)
    monkeypatch.setattr(uploader, "LONGEST_RETRY", 0.5)


async def fill(store: SqliteStore, rows: Sequence[OutboxRow]) -> None:
    for start in range(0, len(rows), 1_000):
        await store.commit(batch(start + 1, rows[start : start + 1_000]))


async def emptied(store: SqliteStore, deadline: float = 30.0) -> None:
    await until(lambda: store.depths() == EMPTY, "the region has acknowledged everything", deadline)


def mixed_rows(count: int) -> list[OutboxRow]:
    """Registrations, advisories, and a watermark behind every hundredth advisory."""
    rows = []
    for number in range(count):
        rows += [advisory(f"a{number}"), registration(f"node{number}", f"r{number}", size=500)]
        if number % 100 == 99:
            rows.append(watermark(f"w{number}", since=number))
    return rows


def words(stored: Sequence[Stored], lane: Lane) -> list[str]:
    """Give the words of one lane's records, in the stream's order."""
    return [record.text for record in stored if lane_of(record) is lane]


def lane_of(record: Stored) -> Lane:
    """Tell a record's lane by its subject."""
    if ".copy." in record.subject:
        return Lane.COPIES
    return Lane.REGISTRATIONS if record.subject.endswith("registration") else Lane.ADVISORIES


def check_barriers(stored: Sequence[Stored], rows: Sequence[OutboxRow]) -> None:
    """No watermark stands before a record that was made before it in its lane."""
    lane = [row.payload.decode().strip() for row in rows if row.lane is Lane.ADVISORIES]
    found = {text: index for index, text in enumerate(words(stored, Lane.ADVISORIES))}
    latest = -1
    for text in lane:
        if text.startswith("w"):
            assert found[text] > latest, f"{text} overtook what it vouches for"
        latest = max(latest, found[text])


async def test_thousands_of_rows_arrive_over_a_long_link_once_and_in_order(tmp_path: Path, store: SqliteStore) -> None:
    rows = mixed_rows(2_000)
    await fill(store, rows)
    async with running_region(tmp_path, round_trip=0.05) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            await emptied(store)
        stored = await region.stored()

    for lane in Lane:
        assert words(stored, lane) == [row.payload.decode().strip() for row in rows if row.lane is lane]
    expected = {row.payload: (row.subject, dict(row.headers)) for row in rows}
    # A watermark has the place of its predecessor.
    found = {record.payload: (record.subject, record.headers) for record in stored}
    assert {
        payload: (subject, {name: value for name, value in headers.items() if name != BEHIND_HEADER})
        for payload, (subject, headers) in found.items()
    } == expected
    assert set(told) == {""}


async def test_a_link_that_is_cut_again_and_again_loses_and_repeats_nothing(tmp_path: Path, store: SqliteStore) -> None:
    rows = mixed_rows(3_000)
    await fill(store, rows)
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    cuts = sorted(random.sample(range(1, len(rows)), CUTS))
    async with running_region(tmp_path, round_trip=0.02) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            for cut in cuts:
                await until(partial(has_stored, region, cut), f"{cut} records have arrived")
                await region.link.cut()
                await region.link.restore()
            await emptied(store)
        stored = await region.stored()

    for lane in Lane:
        expected = [row.payload.decode().strip() for row in rows if row.lane is lane]
        assert sorted(words(stored, lane)) == sorted(expected)
    assert len({record.headers["Nats-Msg-Id"] for record in stored}) == len(rows)
    check_barriers(stored, rows)
    assert any(told), "nobody was told of the cuts"


async def has_stored(region: Region, count: int) -> bool:
    return await region.stored_count() >= count


async def test_a_killed_region_server_loses_nothing_that_it_acknowledged(region: Region, store: SqliteStore) -> None:
    rows = mixed_rows(2_000)
    await fill(store, rows)
    await region.make_stream()
    async with uploading(region, store):
        await until(lambda: has_stored(region, 1_000), "some records have arrived")
        await region.server.kill()
        await region.server.start()
        await emptied(store)
    stored = await region.stored()
    assert sorted(record.payload for record in stored) == sorted(row.payload for row in rows)
    check_barriers(stored, rows)


async def test_a_link_that_falls_silent_is_given_up_and_everything_sent_again(
    region: Region, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "ACKNOWLEDGEMENT_PATIENCE", 1.0)
    await region.make_stream()
    async with uploading(region, store) as told:
        await until(lambda: told, "the uploader runs")
        region.link.stall()
        rows = mixed_rows(200)
        await fill(store, rows)
        await until(lambda: told[-1] == "no acknowledgement for 1 s", "the silence is noticed")
        await region.link.restore()
        await emptied(store)
    assert sorted(record.payload for record in await region.stored()) == sorted(row.payload for row in rows)


async def test_a_region_without_a_stream_is_named_and_everything_arrives_once_there_is_one(
    region: Region, store: SqliteStore
) -> None:
    rows = mixed_rows(300)
    await fill(store, rows)
    async with uploading(region, store) as told:
        why = "block nodes: fleet.eu-west.dub1.nodes.advisory.new: this account holds no stream"
        await until(lambda: told and told[-1] == why, "the reason is told")
        await region.make_stream()
        await emptied(store)
        assert told[-1] == ""
    assert sorted(record.payload for record in await region.stored()) == sorted(row.payload for row in rows)


async def test_each_subject_without_an_answer_has_a_cause_of_its_own(tmp_path: Path) -> None:
    """A record that is mapped elsewhere does not reach its stream; another has no stream."""
    mapped = "fleet.eu-west.dub1.nodes.advisory.new"
    config = f'mappings = {{ "{mapped}": "lost" }}'
    async with running_region(tmp_path, extra_config=config) as region:
        await region.make_stream(subjects=["fleet.eu-west.dub1.nodes.>"])
        settings = connection.ConnectionSettings(servers=(region.link.url,))
        async with AsyncExitStack() as stack:
            connected = await connection.connect(settings, name="test", deadline=30)
            stack.push_async_callback(connected.close)
            upstream = JetStreamUpstream(connected, partial(max_payload_of, connected, settings))
            racks = replace(advisory("racks"), block="racks", subject="fleet.eu-west.dub1.racks.advisory.new")
            rows = dict(enumerate([advisory("nodes"), racks]))
            reasons: dict[int, str] = {}
            await upstream.ready()

            async def are_explained() -> bool:
                for number, row in rows.items():
                    await upstream.send(Shipment(number, row.lane, [row]))
                while answers := await upstream.answers(0.1):
                    reasons.update({each.number: each.reason for each in answers})
                return len(reasons) == 2 and NO_STREAM_ANSWERS not in reasons.values()

            await until(are_explained, "each has a cause")
            upstream.give_up()
    assert reasons == {
        0: "stream FLEET has that subject, but publishes do not reach it from here",
        1: "no stream of this account has that subject",
    }


@pytest.mark.parametrize("limit", [{"max_msgs": 100}, {"max_bytes": 10_000}], ids=["messages", "bytes"])
@pytest.mark.parametrize("allow_atomic", [False, True], ids=["singly", "in batches"])
async def test_a_region_whose_stream_is_full_is_named_and_everything_arrives_once_there_is_room(
    region: Region, store: SqliteStore, limit: dict[str, int], allow_atomic: bool
) -> None:
    rows = mixed_rows(300)
    await fill(store, rows)
    await region.make_stream(discard="new", allow_atomic=allow_atomic, **limit)
    async with uploading(region, store) as told:
        await until(lambda: told and told[-1], "the reason is told")
        assert told[-1].endswith((": maximum messages exceeded", ": maximum bytes exceeded"))
        await region.update_stream(**dict.fromkeys(limit, -1))
        await emptied(store)
    assert sorted(record.payload for record in await region.stored()) == sorted(row.payload for row in rows)


async def test_a_batch_to_several_subjects_that_are_denied_disturbs_no_other_lane(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    forms: list[Form] = []
    tell_of_shipments(monkeypatch, lambda shipment: forms.append(shipment.form) if shipment.lane == 0 else None)
    denied = 'permissions: { publish: { deny: "fleet.*.*.*.advisory.>" } }'
    users = f"authorization {{ users: [ {{ user: u, password: p, {denied} }} ] }}"
    async with running_region(tmp_path, extra_config=f"{users}\nno_auth_user: u") as region:
        await region.make_stream(allow_atomic=True)
        async with uploading(region, store) as told:
            await fill(store, [registration(f"node{number}", f"r{number}") for number in range(300)])
            await emptied(store)
            subjects = [f"fleet.eu-west.dub1.nodes.advisory.{kind}" for kind in ("new", "stale")] * 150
            rows = [replace(advisory(f"a{number}"), subject=subject) for number, subject in enumerate(subjects)]
            await store.commit(batch(2, rows))
            await until(lambda: "not permitted" in told[-1], "the reason is told")
            await store.commit(batch(3, [registration("late", "late")]))
            await until(partial(has_stored, region, 301), "a registration passes what is denied")
    assert forms[0] is Form.BATCH
    assert "denied" not in told


async def test_a_refusal_is_no_longer_told_when_the_operator_has_dropped_what_was_refused(
    region: Region, store: SqliteStore
) -> None:
    await fill(store, [registration("node", "r")])
    async with uploading(region, store) as told:
        await until(lambda: told and told[-1], "the reason is told")

        async def is_dropped() -> bool:
            # What is in flight stays.
            await store.drop_registrations("*")
            return store.depths() == EMPTY

        await until(is_dropped, "the registration is dropped")
        await until(lambda: told[-1] == "", "all is well")


@pytest.mark.parametrize(
    ("extra_config", "stream"),
    [
        pytest.param("max_payload: 65536", {}, id="the server's limit"),
        pytest.param("", {"max_msg_size": 50_000}, id="the stream's limit"),
    ],
)
async def test_a_registration_that_nobody_takes_is_dropped_and_counted_and_its_lane_goes_on(
    tmp_path: Path, store: SqliteStore, extra_config: str, stream: dict[str, object]
) -> None:
    rows = [
        registration(f"node{number}", f"r{number}", size=100_000 if number % 10 == 5 else 100) for number in range(50)
    ]
    await fill(store, [*rows, advisory("a")])
    async with running_region(tmp_path, extra_config=extra_config) as region:
        await region.make_stream(**stream)
        async with uploading(region, store):
            await emptied(store)
        stored = await region.stored()
    assert sorted(words(stored, Lane.REGISTRATIONS)) == sorted(f"r{number}" for number in range(50) if number % 10 != 5)
    assert words(stored, Lane.ADVISORIES) == ["a"]
    assert store.outbox_counters(BLOCK) == {"dropped": {"too_large": 5}}


async def test_an_advisory_leaves_before_every_registration_that_waits(
    region: Region, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a link that answers nothing only so many registrations leave as it has shown that it carries."""
    left: list[OutboxRow] = []
    tell_of_shipments(monkeypatch, lambda sent: left.extend(() if sent.form is Form.QUESTION else sent.rows))
    await region.make_stream()
    registrations = [registration(f"node{number}", f"r{number}", size=10_000) for number in range(200)]
    await fill(store, [*registrations[:20], advisory("a1")])
    async with uploading(region, store):
        await emptied(store)
        assert left[0].lane is Lane.ADVISORIES
        answered = sum(row.size for row in left)

        region.link.stall()
        left.clear()
        await fill(store, registrations[20:])
        await until(lambda: left, "registrations are under way")
        await fill(store, [advisory("a2"), watermark("w"), advisory("a3")])
        await until(lambda: any(row.lane is Lane.ADVISORIES for row in left), "an advisory leaves")
        overtaking = list(left)
        await region.link.restore()
        await emptied(store)
    stored = await region.stored()
    assert sum(row.size for row in overtaking[:-1]) <= flow_control.FIRST + answered
    assert [record.payload for record in stored[21:][: len(overtaking)]] == [row.payload for row in overtaking]
    assert words(stored, Lane.ADVISORIES) == ["a1", "a2", "w", "a3"]


async def test_a_bandwidth_limit_is_kept(region: Region, store: SqliteStore) -> None:
    rate, size = 300_000, 10_000
    await fill(store, [registration(f"node{number}", f"r{number}", size=size) for number in range(80)])
    await region.make_stream()
    samples: list[tuple[float, int]] = []
    began = time.monotonic()
    async with uploading(region, store, bytes_per_second=rate):
        while store.depths() != EMPTY:
            stored = await region.stored_bytes()
            samples.append((time.monotonic() - began, stored))
            await asyncio.sleep(0.05)
            assert time.monotonic() - began < 180, "it has not all arrived"
    for elapsed, stored in samples:
        assert stored <= rate * elapsed + pace.BURST_BYTES + size
    assert await region.stored_count() == 80


async def test_a_row_that_the_bandwidth_limit_keeps_back_for_longer_than_answers_are_waited_for_arrives(
    region: Region, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "ACKNOWLEDGEMENT_PATIENCE", 2.0)
    monkeypatch.setattr(uploader, "LANE_PATIENCE", 2.0)
    await fill(store, [registration("node", "large", size=400_000)])
    await region.make_stream()
    async with uploading(region, store, bytes_per_second=100_000):
        await emptied(store)
    assert words(await region.stored(), Lane.REGISTRATIONS) == ["large"]


async def test_a_row_that_a_thin_link_takes_for_longer_than_answers_are_waited_for_arrives(
    tmp_path: Path, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is answered only when the link has taken all of it, as is every ping behind it; nobody asks all the while."""
    asked, answers = 0, JetStreamUpstream.answers

    async def counted(upstream: JetStreamUpstream, patience: float) -> Sequence[Answer]:
        nonlocal asked
        asked += 1
        return await answers(upstream, patience)

    monkeypatch.setattr(JetStreamUpstream, "answers", counted)
    monkeypatch.setattr(uploader, "ACKNOWLEDGEMENT_PATIENCE", 2.0)
    monkeypatch.setattr(uploader, "LANE_PATIENCE", 2.0)
    monkeypatch.setattr(uploader, "LOOK_AT_LINK_EVERY", 0.2)
    monkeypatch.setattr(connection, "PING_INTERVAL", 0.7)
    monkeypatch.setattr(link, "RECEIVE_BUFFER", 16 << 10)
    await fill(store, [registration("node", "large", size=600_000)])
    async with running_region(tmp_path, bandwidth=100_000) as region:
        await region.make_stream()
        async with uploading(region, store) as told:
            await emptied(store)
        assert words(await region.stored(), Lane.REGISTRATIONS) == ["large"]
        assert set(told) == {""}
    assert asked < 200, "a look every 0.2 s for some six seconds, and not one after the other"


async def test_rows_that_come_while_the_uploader_waits_leave_at_once(
    region: Region, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploader, "IDLE_PATIENCE", 60.0)
    await region.make_stream()
    async with uploading(region, store) as told:
        await until(lambda: told, "the uploader runs")
        for number in range(20):
            await fill(store, [advisory(f"{number}")])
            await until(partial(has_stored, region, number + 1), "the advisory has arrived", deadline=30)


async def test_registrations_that_are_replaced_while_the_link_is_down_arrive_once_as_the_newest(
    region: Region, store: SqliteStore
) -> None:
    await region.make_stream()
    async with uploading(region, store) as told:
        await until(lambda: told, "the uploader runs")
        await region.link.cut()
        await until(lambda: told[-1], "the cut is noticed")
        for number in range(5):
            await fill(store, [registration(f"node{part}", f"r{part}.{number}") for part in range(100)])
        await region.link.restore()
        await emptied(store)
    assert sorted(words(await region.stored(), Lane.REGISTRATIONS)) == sorted(f"r{part}.4" for part in range(100))
    assert store.outbox_counters(BLOCK) == {"compacted": {"newer_sample": 400}}

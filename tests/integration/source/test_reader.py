"""The source gives every message of a stream once and in order, whatever becomes of connections and consumers."""

import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from edge_agent.core.stream_past import PastChange
from edge_agent.source import consumer, pulls
from edge_agent.source.consumer import SourceAddress, StartRule
from edge_agent.source.port import SourceUnavailable
from shared.identifiers import SourcePosition
from shared.instants import SECOND, parse_instant
from shared.nats import client
from tests.support.nats.linked_server import DEADLINE
from tests.support.nats.source_site import CONSUMER, SETTLE, STREAM, SUBJECT, Site, reading, running_site
from tests.support.waiting import until

CUTS = 8


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def bodies(count: int, size: int = 300) -> list[bytes]:
    return [str(number).encode().ljust(size, b".") for number in range(1, count + 1)]


async def test_a_connection_that_dies_with_deliveries_in_flight_loses_and_repeats_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)
    await site.make_stream()
    sent = bodies(20_000)
    last = await site.publish(*sent)
    # pytest-randomly seeds this, prints the seed, and takes it: --randomly-seed=N.
    cuts = sorted(random.sample(range(1, last), CUTS))
    async with reading(site) as reader:
        for cut in cuts:
            await reader.read_on(cut)
            if random.random() < 0.5:
                # What is read and not committed is read again.
                await reader.source.read(0.5)
            await site.link.cut()
            assert await site.acknowledged_through() <= reader.position.sequence
            await site.link.restore()
        await reader.read_on(last)

    assert reader.sequences == list(range(1, last + 1))
    assert [message.payload for message in reader.received] == sent


async def test_every_open_begins_behind_the_committed_position_whatever_the_consumer_believes(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(100))
    async with reading(site) as reader:
        await reader.read_on(100)
        await until(lambda: acknowledged(site, 100), "everything is acknowledged")
        forty, seventy = reader.received[39], reader.received[69]
        for message in (forty, seventy):
            reader.received.clear()
            reader.position = SourcePosition(STREAM, reader.position.incarnation, message.sequence, message.stored_at)
            # More was acknowledged than is known here: an older copy of the store.
            opened = await reader.open()
            assert (opened.change, opened.sequence) == (PastChange.FORGOTTEN, message.sequence)
            await reader.read_on(100)
            assert reader.sequences == list(range(message.sequence + 1, 101))


async def acknowledged(site: Site, sequence: int) -> bool:
    return await site.acknowledged_through() == sequence


@pytest.mark.parametrize(("size", "count"), [(13_000, 2_000), (100, 5_000), (900_000, 12)])
async def test_a_batch_that_is_full_in_bytes_or_in_messages_waits_for_no_more(
    site: Site, monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    await site.make_stream()
    await site.publish(*bodies(count, size))
    # A wait that only a full batch ends.
    monkeypatch.setattr(pulls, "GATHER", math.inf)
    async with reading(site) as reader, asyncio.timeout(DEADLINE):
        batch = await reader.source.read(DEADLINE)

    assert len(batch) == min(pulls.BATCH_MESSAGES, math.ceil(pulls.BATCH_BYTES / size))


async def test_a_link_that_falls_silent_is_noticed_within_seconds(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "HEARTBEAT", 0.5)
    monkeypatch.setattr(pulls, "SILENCE_LIMIT", 1.5)
    await site.make_stream()
    await site.publish(*bodies(50))
    async with reading(site) as reader:
        await reader.read_on(50)
        site.link.stall()
        began = time.monotonic()
        with pytest.raises(SourceUnavailable, match="silent for 1.5 s"):
            await reader.source.read(30)
        assert time.monotonic() - began < 20
        await site.publish(*bodies(50))
        await site.link.restore()
        await reader.read_on(100)
        assert reader.sequences == list(range(1, 101))


async def test_a_quiet_stream_is_not_taken_for_a_silent_link(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "HEARTBEAT", 0.5)
    monkeypatch.setattr(pulls, "SILENCE_LIMIT", 4.0)
    monkeypatch.setattr(pulls, "PULL_EXPIRES", 4.5)
    await site.make_stream()
    async with reading(site) as reader:
        assert await reader.source.read(6) == []
        await site.publish(b"at last")
        await reader.read_on(1)


async def test_a_consumer_that_was_deleted_while_it_was_read_is_made_again(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(10))
    async with reading(site) as reader:
        await reader.read_on(10)
        await site.api(f"CONSUMER.DELETE.{STREAM}.{CONSUMER}")
        await site.publish(*bodies(10))
        await reader.read_on(20)
        assert reader.sequences == list(range(1, 21))


async def test_another_reader_of_the_same_consumer_takes_nothing_away(site: Site) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        thief = await site.client.jetstream().pull_subscribe_bind(CONSUMER, STREAM)
        # More than the reader asks for ahead.
        last = await site.publish(*bodies(8_000))
        stolen = await thief.fetch(10, timeout=5)
        await stolen[-1].ack()
        await reader.read_on(last)
        assert reader.sequences == list(range(1, last + 1))


async def test_what_another_reader_of_the_same_consumer_took_is_counted_as_waiting_still(site: Site) -> None:
    await site.make_stream()
    # More than follow: what comes after the other's reset is not taken for what follows here.
    await site.publish(*bodies(2_000))
    async with reading(site) as reader:
        await reader.read_on(2_000)
        reader.source.break_off("nobody listens here for a while")
        # The other resets it, reads on from there, and acknowledges: nothing is pending, nothing under way.
        await site.api(f"CONSUMER.RESET.{STREAM}.{CONSUMER}", {"seq": 2_001})
        last = await site.publish(*bodies(1_369))
        thief = await site.client.jetstream().pull_subscribe_bind(CONSUMER, STREAM)

        async def is_all_taken() -> bool:
            with contextlib.suppress(TimeoutError):
                await (await thief.fetch(500, timeout=1))[-1].ack()
            info = await site.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
            return bool(info["num_pending"] == 0 and info["delivered"]["stream_seq"] == last)

        await until(is_all_taken, "all is delivered, here or there")
        assert (await reader.source.poll()).consumer.pending == 1_369
        await reader.read_on(last)

        async def is_zero() -> bool:
            return (await reader.source.poll()).consumer.pending == 0

        await until(is_zero, "what was read does not wait")


# Where the first read begins


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        (StartRule("all"), 11),
        (StartRule("new"), 31),
        (StartRule("sequence", 25), 25),
        (StartRule("sequence", 3), 11),
        (StartRule("sequence", 31), 31),
    ],
)
async def test_the_first_read_begins_where_the_settings_say(site: Site, rule: StartRule, first: int) -> None:
    await site.make_stream(max_msgs=20)
    await site.publish(*bodies(30))
    async with reading(site, SourceAddress(STREAM, CONSUMER, start=rule)) as reader:
        assert reader.opened[-1].change is None
        await reader.read_on(30)
        await site.publish(b"later")
        await reader.read_on(31)
        assert reader.sequences == list(range(first, 32))


async def test_the_first_read_begins_at_an_instant(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(10))
    await asyncio.sleep(4.0)
    await site.publish(*bodies(10))
    eleventh = parse_instant((await site.stored(11)).time)
    for rule in (StartRule("time", eleventh), StartRule("time", eleventh - SECOND // 4)):
        async with reading(site, SourceAddress(STREAM, CONSUMER, start=rule)) as reader:
            await reader.read_on(20)
            assert reader.sequences == list(range(11, 21))
    server_at = await site.time()
    delta = StartRule("delta", server_at - eleventh + 3 * SECOND)
    async with reading(site, SourceAddress(STREAM, CONSUMER, start=delta)) as reader:
        assert reader.position.sequence == 10
    for rule in (StartRule("time", eleventh + 3_600 * SECOND), StartRule("delta", 1)):
        async with reading(site, SourceAddress(STREAM, CONSUMER, start=rule)) as reader:
            assert reader.position.sequence == 20
    async with reading(site, SourceAddress(STREAM, CONSUMER, start=StartRule("delta", 3_600 * SECOND))) as reader:
        assert reader.position.sequence == 0


async def test_a_first_sequence_that_does_not_exist_yet_is_waited_for(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(10))
    address = SourceAddress(STREAM, CONSUMER, start=StartRule("sequence", 15))
    with pytest.raises(SourceUnavailable, match="start is sequence 15, but stream REGISTRATION ends at 10"):
        async with reading(site, address):
            pass
    await site.publish(*bodies(5))
    async with reading(site, address) as reader:
        await reader.read_on(15)
        assert reader.sequences == [15]


# Consumers that cannot serve


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (
            {"ack_policy": "none"},
            "must be a pull consumer with ack policy all or explicit, and is one with none: delete it, or name",
        ),
        ({"ack_policy": "all", "deliver_subject": "push"}, "with ack policy all or explicit, and is a push consumer"),
        ({"ack_policy": "all", "filter_subject": SUBJECT}, f"filters '{SUBJECT}', the settings say ''"),
        (
            {"ack_policy": "all", "deliver_policy": "new"},
            "cannot be set back to what was not read .deliver policy new.",
        ),
        ({"ack_policy": "all", "replay_policy": "original"}, "replays what waits as slowly as it once came: delete"),
        (
            {"ack_policy": "all", "priority_groups": ["a"], "priority_policy": "overflow"},
            "delivers to priority groups, and the agent is in none: delete it",
        ),
        (
            {"ack_policy": "all", "max_batch": 100},
            "takes requests with max_batch of up to 100, and the agent's have 1000: take that limit from it",
        ),
        ({"ack_policy": "all", "max_expires": 1_000_000_000}, "takes requests with max_expires of up to 1000000000"),
        ({"ack_policy": "all", "max_bytes": 1_024}, "takes requests with max_bytes of up to 1024"),
    ],
)
async def test_a_consumer_that_cannot_serve_is_refused_in_one_clear_line(
    site: Site, config: dict[str, object], reason: str
) -> None:
    await site.make_stream()
    body = {"stream_name": STREAM, "config": {"durable_name": CONSUMER, **config}}
    await site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", body)
    with pytest.raises(SourceUnavailable, match=reason) as publish_error:
        async with reading(site):
            pass
    assert str(publish_error.value).startswith(f"consumer {CONSUMER} of stream {STREAM} ")
    assert "\n" not in str(publish_error.value)


async def test_a_consumer_that_lets_one_message_wait_for_its_acknowledgement_delivers_behind_a_reset(
    site: Site,
) -> None:
    await site.make_stream()
    config = {"durable_name": CONSUMER, "ack_policy": "all", "max_ack_pending": 1}
    await site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})
    await site.publish(*bodies(3))
    async with reading(site) as reader:
        await reader.read_on(3)
        await site.publish(*bodies(3))
        await reader.open()
        await reader.read_on(6)
        assert reader.sequences == [1, 2, 3, 4, 5, 6]


async def test_a_consumer_that_may_not_be_created_is_asked_for(site: Site) -> None:
    await site.make_stream()
    address = SourceAddress(STREAM, CONSUMER, creates_consumer=False)
    with pytest.raises(SourceUnavailable, match="does not exist and create_consumer is false: create it"):
        async with reading(site, address):
            pass
    config = {"durable_name": CONSUMER, "ack_policy": "all"}
    await site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})
    await site.publish(*bodies(10))
    async with reading(site, address) as reader:
        await reader.read_on(10)


async def test_a_stream_that_does_not_exist_is_named(site: Site) -> None:
    with pytest.raises(SourceUnavailable, match=f"stream {STREAM}: stream not found"):
        async with reading(site):
            pass


# Proofs


async def test_the_reader_is_caught_up_only_once_it_has_read_everything_stored(site: Site) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        assert (await reader.check()).caught_up_through == 0, "nothing was ever stored"
        await reader.read_on(await site.publish(b"first"))
        idle = await reader.check()
        assert idle.caught_up_through == pytest.approx(idle.facts.server_at - SETTLE, abs=SECOND)
        assert idle.examined_sequence == 1

        last = await site.publish(*bodies(5_000))
        await until(lambda: reader.source.delivered_sequence > 1, "something is delivered")
        assert (await reader.check()).caught_up_through == 0
        await reader.take(await reader.source.read(1))
        assert reader.position.sequence < last
        was_behind = reader.source.is_behind
        assert (await reader.check()).caught_up_through == 0
        await reader.read_on(last)
        assert (was_behind, reader.source.is_behind) == (True, False)
        read = await reader.check()
        assert read.caught_up_through > parse_instant((await site.stored(last)).time) - SETTLE
        assert read.examined_sequence == last


async def test_what_was_delivered_and_has_not_arrived_is_not_read(site: Site) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        site.link.round_trip = 0.6
        checking = asyncio.create_task(reader.check())
        # The server has answered nothing yet and delivers this at once: no message is pending then.
        await site.publish(b"on its way")
        assert (await checking).caught_up_through == 0
        await reader.read_on(1)


@pytest.mark.parametrize("limit", [{"max_msgs": 10}, {"max_bytes": 100_000}])
async def test_a_stream_that_is_full_and_refuses_new_messages_proves_nothing(site: Site, limit: dict[str, int]) -> None:
    await site.make_stream(discard="new", **limit)
    async with reading(site) as reader:
        await reader.read_on(await site.publish(b"first"))
        assert (await reader.check()).caught_up_through > 0
        for body in bodies(15, size=10_000):
            await site.client.publish(SUBJECT, body)
        await site.client.flush()
        last = await site.last_sequence()
        assert last < 15
        await reader.read_on(last)
        assert (await reader.check()).caught_up_through == 0
        checked = await reader.check()
        assert checked.facts.storage_fault == "is full and refuses what is new"

        await site.api(f"STREAM.PURGE.{STREAM}")
        assert (await reader.check()).caught_up_through > 0


async def test_a_stream_that_refuses_what_is_new_on_a_full_subject_says_that_it_may(site: Site) -> None:
    await site.make_stream(discard="new", discard_new_per_subject=True, max_msgs_per_subject=1)
    await site.publish(b"1")
    async with reading(site) as reader:
        await reader.read_on(1)
        assert b"maximum messages per subject exceeded" in (await site.client.request(SUBJECT, b"2", timeout=60)).data
        assert (await reader.check()).facts.refuses_by_subject


async def test_a_sealed_stream_proves_nothing(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(3))
    async with reading(site) as reader:
        await reader.read_on(3)
        assert (await reader.check()).caught_up_through > 0
        await site.update_stream(sealed=True)
        assert (await reader.check()).caught_up_through == 0


# What a message is


async def test_a_large_message_with_headers_arrives_as_it_was_stored(site: Site) -> None:
    await site.make_stream()
    headers = {"X-Sender": "node1.example.net", "Choria-Time": "a: b; c=d", "X-Empty": "", "x-lower": "\u00e4\u00f6"}
    large = random.randbytes((1 << 20) - 200)
    await site.publish(large, headers=headers)
    await site.publish(b"", subject="registration.empty")
    async with reading(site) as reader:
        await reader.read_on(2)
    first, second = reader.received
    assert (first.subject, first.payload, first.headers) == (SUBJECT, large, headers)
    assert (second.subject, second.payload, second.headers) == ("registration.empty", b"", None)


async def test_a_message_larger_than_a_pull_does_not_stop_the_reader(tmp_path: Path) -> None:
    async with running_site(tmp_path, "max_payload: 8MB") as site:
        await site.make_stream()
        large = random.randbytes(consumer.PULL_BYTES + 1_000)
        await site.publish(b"before", large, b"after")
        async with reading(site) as reader:
            await reader.read_on(3)
            assert [message.payload for message in reader.received] == [b"before", large, b"after"]


async def test_instants_are_the_streams_own_to_the_microsecond(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies(300))
    async with reading(site) as reader:
        await reader.read_on(300)
    for message in reader.received:
        seconds, _, fraction = (await site.stored(message.sequence)).time.removesuffix("Z").partition(".")
        exact = parse_instant(f"{seconds}Z") + int(fraction.ljust(9, "0")) // 1_000
        assert message.stored_at == exact

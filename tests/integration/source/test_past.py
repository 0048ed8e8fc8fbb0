"""A stream's past can change, and retention can outrun its reader: both are noticed, and nothing later is missed."""

from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from edge_agent.core.stream_past import PastChange, StreamFacts, is_gap
from edge_agent.source.api import SourceApi
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.port import SourceUnavailable
from shared.instants import parse_instant
from shared.nats import client
from tests.support.nats.source_site import CONSUMER, STREAM, Reader, Site, reading, running_site
from tests.support.waiting import until

PASSED_OVER = "passed.over"


@pytest.fixture(autouse=True)
def connections_come_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def bodies(what: str, count: int) -> list[bytes]:
    return [f"{what} {number}".encode() for number in range(count)]


def read_of(reader: Reader, what: str) -> list[bytes]:
    return [message.payload for message in reader.received if message.payload.startswith(f"{what} ".encode())]


# An older copy of what we know


async def is_acknowledged(site: Site, sequence: int) -> bool:
    return await site.acknowledged_through() >= sequence


@pytest.mark.parametrize("taken", ["purged subject", "purged", "purged below", "deleted", "aged"])
@pytest.mark.parametrize("filter_subject", ["", "registration.>"])
async def test_what_is_taken_out_of_a_stream_unread_is_not_taken_for_read(
    site: Site, filter_subject: str, taken: str
) -> None:
    await site.make_stream(subjects=["registration.>", PASSED_OVER])
    await site.publish(*bodies("old", 5))
    async with reading(site, SourceAddress(STREAM, CONSUMER, filter_subject=filter_subject)) as reader:
        await reader.read_on(5)
        await until(lambda: is_acknowledged(site, 5), "all is acknowledged")
        await site.publish(*bodies("gone", 10), subject="registration.gone")
        await site.publish(*bodies("over", 3), subject=PASSED_OVER)
        await site.publish(*bodies("new", 5))
        match taken:
            case "purged subject":
                await site.api(f"STREAM.PURGE.{STREAM}", {"filter": "registration.gone"})
            case "purged":
                await site.api(f"STREAM.PURGE.{STREAM}", {})
            case "purged below":
                await site.api(f"STREAM.PURGE.{STREAM}", {"seq": 12})
            case "deleted":
                for sequence in (5, 6, 7, 23):
                    await site.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": sequence})
            case _:
                await site.api(f"STREAM.PURGE.{STREAM}", {"keep": 2})
        assert (await reader.open_again()).change is None
        assert (await reader.open_again()).change is None
        await site.restart()
        assert (await reader.open_again()).change is None


# Another past


async def test_a_stream_that_was_made_anew_is_read_from_its_beginning(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("old", 20))
    async with reading(site) as reader:
        await reader.read_on(20)
        await site.delete_stream()
        with pytest.raises(SourceUnavailable):
            await reader.source.read(5)
        with pytest.raises(SourceUnavailable, match="stream not found"):
            await reader.open()
        await site.make_stream()
        # As many as before: sequences alone show nothing.
        await site.publish(*bodies("new", 20))
        opened = await reader.open_again()
        assert (opened.change, opened.sequence) == (PastChange.RECREATED, 0)
        await reader.read_on(20)
        assert read_of(reader, "new") == bodies("new", 20)


async def test_a_memory_stream_whose_server_restarted_is_read_from_its_beginning(site: Site) -> None:
    await site.make_stream(storage="memory")
    await site.publish(*bodies("old", 20))
    async with reading(site) as reader:
        await reader.read_on(20)
        await site.restart()
        with pytest.raises(SourceUnavailable):
            await reader.source.read(5)
        await site.make_stream(storage="memory")
        await site.publish(*bodies("new", 30))
        opened = await reader.open_again()
        assert opened.change is PastChange.RECREATED
        await reader.read_on(30)
        assert read_of(reader, "new") == bodies("new", 30)


async def test_a_restart_without_loss_changes_nothing(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("old", 20))
    async with reading(site) as reader:
        await reader.read_on(20)
        await site.restart()
        await site.publish(*bodies("new", 20))
        await reader.read_on(40)
        assert {opened.change for opened in reader.opened} == {None}
        assert reader.sequences == list(range(1, 41))


async def test_a_stream_that_shows_its_last_messages_only_at_a_second_look_has_its_past_still(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a server does that has just come to lead a replicated stream."""
    await site.make_stream()
    await site.publish(*bodies("old", 20))
    async with reading(site) as reader:
        await reader.read_on(20)
        facts, looks = SourceApi.facts, 0

        async def late(api: SourceApi) -> StreamFacts:
            nonlocal looks
            looks += 1
            shown = await facts(api)
            return msgspec.structs.replace(shown, last_sequence=17) if looks == 1 else shown

        monkeypatch.setattr(SourceApi, "facts", late)
        assert (await reader.open()).change is None
        await site.publish(*bodies("new", 3))
        await reader.read_on(23)
        assert reader.sequences == list(range(1, 24))


@pytest.mark.parametrize(
    ("stored_later", "change"),
    [
        pytest.param(0, PastChange.SHORTENED, id="nothing yet"),
        pytest.param(20, PastChange.SHORTENED, id="less than was lost"),
        pytest.param(30, PastChange.REWRITTEN, id="as much as was lost"),
        pytest.param(70, PastChange.REWRITTEN, id="more than was lost"),
    ],
)
async def test_a_server_restored_from_a_copy_is_read_on_at_the_first_message_stored_later(
    site: Site, tmp_path: Path, stored_later: int, change: PastChange
) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        await site.publish(*bodies("before", 50))
        await reader.read_on(50)
        await site.copy_store(tmp_path / "copy")
        await site.publish(*bodies("lost", 30))
        await reader.read_on(80)
        await site.restore_store(tmp_path / "copy")
        if stored_later:
            await site.publish(*bodies("after", stored_later))

        opened = await reader.open_again()
        assert (opened.change, opened.sequence) == (change, 50)
        await site.publish(*bodies("last", 5))
        await reader.read_on(55 + stored_later)
        assert read_of(reader, "before") == bodies("before", 50)
        assert read_of(reader, "after") == bodies("after", stored_later)
        assert read_of(reader, "last") == bodies("last", 5)
        # The next open finds nothing strange about this past.
        assert (await reader.open()).change is None


@pytest.mark.parametrize("stored_later", [0, 30], ids=["nothing yet", "more than was lost"])
async def test_a_server_restored_twice_is_read_on_at_the_first_message_stored_later_than_any_that_was_read(
    site: Site, tmp_path: Path, stored_later: int
) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        await site.publish(*bodies("before", 20))
        await reader.read_on(20)
        await site.copy_store(tmp_path / "older")
        await site.publish(*bodies("later", 20))
        await reader.read_on(40)
        await site.copy_store(tmp_path / "newer")
        await site.publish(*bodies("lost", 20))
        await reader.read_on(60)
        await site.restore_store(tmp_path / "newer")
        opened = await reader.open_again()
        assert (opened.change, opened.sequence) == (PastChange.SHORTENED, 40)
        # Nothing is stored, and no message of this past read, before it changes again.
        await site.restore_store(tmp_path / "older")
        await site.publish(*bodies("after", stored_later))
        opened = await reader.open_again()
        # With more stored than was lost only the message at the position shows it, which was not read in this past.
        change = PastChange.REWRITTEN if stored_later else PastChange.SHORTENED
        assert (opened.change, opened.sequence) == (change, 20)
        await site.publish(*bodies("last", 5))
        await reader.read_on(25 + stored_later)
        assert read_of(reader, "before") == bodies("before", 20)
        assert read_of(reader, "after") == bodies("after", stored_later)
        assert read_of(reader, "last") == bodies("last", 5)
        assert (await reader.open()).change is None


async def test_what_a_stream_was_before_it_was_made_anew_is_not_read_again(site: Site, tmp_path: Path) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        await site.publish(*bodies("before", 20))
        await reader.read_on(20)
        await site.copy_store(tmp_path / "copy")
        await site.delete_stream()
        await site.make_stream()
        await site.publish(*bodies("anew", 10))
        assert (await reader.open_again()).change is PastChange.RECREATED
        await reader.read_on(10)
        await site.restore_store(tmp_path / "copy")
        opened = await reader.open_again()
        assert (opened.change, opened.sequence) == (PastChange.RESTORED, 20)
        await site.publish(*bodies("after", 5))
        await reader.read_on(25)
        assert read_of(reader, "before") == bodies("before", 20)
        assert read_of(reader, "after") == bodies("after", 5)


async def test_a_copy_that_holds_all_that_was_read_is_no_other_past(site: Site, tmp_path: Path) -> None:
    await site.make_stream()
    async with reading(site) as reader:
        await site.publish(*bodies("before", 50))
        await reader.read_on(50)
        await site.copy_store(tmp_path / "copy")
        await site.publish(*bodies("unread and lost", 10))
        await site.restore_store(tmp_path / "copy")
        await site.publish(*bodies("after", 10))
        assert (await reader.open_again()).change is None
        await reader.read_on(60)
        assert read_of(reader, "after") == bodies("after", 10)


async def test_a_committed_message_that_was_deleted_since_is_no_other_past(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        await reader.read_on(10)
        await site.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": 10})
        assert (await reader.open()).change is None
        await site.publish(*bodies("b", 3))
        assert (await reader.open()).change is None
        await reader.read_on(13)
        assert reader.sequences == list(range(1, 14))


async def test_a_stream_that_was_purged_goes_on_with_its_sequences(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        await reader.read_on(10)
        await site.api(f"STREAM.PURGE.{STREAM}")
        opened = await reader.open()
        assert (opened.change, opened.is_gap) == (None, False)
        await site.publish(*bodies("b", 3))
        await reader.read_on(13)
        assert reader.sequences == list(range(1, 14))


# Gaps


async def test_a_gap_is_noticed_on_opening(site: Site) -> None:
    await site.make_stream(max_msgs=20)
    await site.publish(*bodies("a", 20))
    async with reading(site) as reader:
        await reader.read_on(20)
        await site.link.cut()
        await site.publish(*bodies("b", 20))
        await site.link.restore()
        assert not (await reader.open_again()).is_gap
        await site.link.cut()
        await site.publish(*bodies("c", 1))
        await site.link.restore()
        opened = await reader.open_again()
        assert (opened.is_gap, opened.change) == (True, None)
        await reader.read_on(41)
        assert reader.sequences == [*range(1, 21), *range(22, 42)]


async def test_a_gap_is_noticed_by_a_reader_that_could_not_read_for_a_while(site: Site) -> None:
    await site.make_stream(max_msgs=5_000)
    async with reading(site) as reader:
        # More than the reader asks for ahead, and then so much that what it has not asked for is gone.
        for _ in range(2):
            await site.publish(*bodies("a", 5_000))
        checked = await reader.check()
        assert checked.caught_up_through == 0
        assert is_gap(max(reader.read_through, reader.source.delivered_sequence), checked.facts)


async def test_a_gap_is_noticed_in_the_midst_of_reading(site: Site) -> None:
    await site.make_stream(max_msgs=500)
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        await reader.read_on(10)
        last = await site.publish(*bodies("b", 6_000))
        # Reading on at once, with no check that would show where the stream begins now.
        await reader.read_on(last)
        assert [opened.is_gap for opened in reader.opened] == [False, True]
        assert reader.sequences == sorted(set(reader.sequences))
        holes = [(before, after) for before, after in pairwise(reader.sequences) if after > before + 1]
        assert len(holes) == 1
        assert holes[0][1] == last - 499


async def test_a_reader_that_is_outrun_for_ever_still_gets_on(site: Site) -> None:
    await site.make_stream(max_msgs=5)
    async with reading(site) as reader:
        for _ in range(5):
            last = await site.publish(*bodies("a", 5_000))
            await reader.read_on(last)
        assert sum(opened.is_gap for opened in reader.opened) <= 5


async def test_holes_that_retention_did_not_make_are_no_gaps(site: Site) -> None:
    await site.make_stream(max_msgs_per_subject=1)
    await site.publish(b"kept", subject="registration.first")
    async with reading(site) as reader:
        await reader.read_on(1)
        for number in range(1, 4):
            await site.link.cut()
            last = await site.publish(*bodies("a", 100), subject="registration.second")
            await site.link.restore()
            await reader.read_on(last)
            await reader.read_on(await site.publish(b"b", subject=f"registration.of.{number}"))
        assert reader.sequences == [1, 101, 102, 202, 203, 303, 304]
        assert not any(opened.is_gap for opened in reader.opened)


async def test_messages_that_the_filter_passes_over_are_no_gap(site: Site) -> None:
    await site.make_stream(subjects=["registration.>", PASSED_OVER], max_msgs=200)
    address = SourceAddress(STREAM, CONSUMER, filter_subject="registration.>")
    await site.publish(*bodies("a", 10))
    async with reading(site, address) as reader:
        await reader.read_on(10)
        for expected in (510, 1_011):
            assert await site.publish(*bodies("other", 500), subject=PASSED_OVER) == expected
            checked = await reader.check()
            assert (checked.caught_up_through > 0, checked.examined_sequence) == (True, expected)
            reader.read_through = checked.examined_sequence
            assert not (await reader.open()).is_gap
            last = await site.publish(*bodies("b", 1))
            await reader.read_on(last)
        assert reader.sequences == [*range(1, 11), 511, 1_012]
        assert not any(opened.is_gap or opened.change for opened in reader.opened)


async def test_messages_that_the_filter_passed_over_unexamined_may_have_been_ours(site: Site) -> None:
    await site.make_stream(subjects=["registration.>", PASSED_OVER], max_msgs=200)
    address = SourceAddress(STREAM, CONSUMER, filter_subject="registration.>")
    await site.publish(*bodies("a", 10))
    async with reading(site, address) as reader:
        await reader.read_on(10)
        await site.link.cut()
        await site.publish(*bodies("lost to retention", 5))
        await site.publish(*bodies("other", 500), subject=PASSED_OVER)
        await site.link.restore()
        assert (await reader.open_again()).is_gap


async def test_a_position_without_an_instant_is_compared_by_its_sequence_alone(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        reader.position = msgspec.structs.replace(reader.position, sequence=4)
        assert (await reader.open()).change is None
        await reader.read_on(10)
        assert reader.sequences == list(range(5, 11))
        reader.position = msgspec.structs.replace(reader.position, sequence=11, stored_at=0)
        assert (await reader.open()).change is PastChange.SHORTENED


async def test_servers_that_find_nothing_by_its_time_are_asked_by_halves_to_the_same_end(site: Site) -> None:
    await site.make_stream()
    await site.publish(*bodies("a", 20))
    for gone in (1, 2, 7, 8, 9, 13, 20):
        await site.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": gone})
    api = SourceApi(site.client, SourceAddress(STREAM, CONSUMER))
    facts = await api.facts()
    kept = [sequence for sequence in range(3, 20) if sequence not in (7, 8, 9, 13)]
    instants = [parse_instant((await site.stored(sequence)).time) for sequence in kept]
    for at in (instants[0] - 1, *instants, *(each + 1 for each in instants)):
        by_time, by_halves = await api._sequence_before(at, facts), await api._narrow_down(at, facts)
        read_by_time = [sequence for sequence in kept if sequence > by_time]
        assert [sequence for sequence in kept if sequence > by_halves] == read_by_time, at

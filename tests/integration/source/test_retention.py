"""Every kind of stream is read without loss, and servers that cannot reset a consumer are read as well as can be."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.stream_past import PastChange
from edge_agent.source.consumer import PULL_EXPIRES, SourceAddress
from edge_agent.source.holes import Requests
from edge_agent.source.port import SourceUnavailable
from edge_agent.source.pulls import Pulls
from shared.nats import client
from shared.nats.connection import AuthSettings
from tests.support.nats.one_server import written
from tests.support.nats.source_site import CONSUMER, POLICY, STREAM, Reader, Site, reading, running_site
from tests.support.waiting import until

COUNT = 3_000


@pytest.fixture(autouse=True)
def connections_come_back_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LONGEST_RETRY", 0.2)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


def bodies(what: str, count: int) -> list[bytes]:
    return [f"{what} {number}".encode() for number in range(count)]


async def consumer_config(site: Site) -> dict[str, Any]:
    return dict((await site.api(f"CONSUMER.INFO.{STREAM}.{CONSUMER}"))["config"])


async def held(site: Site) -> int:
    """Count the messages that the stream holds."""
    return int((await site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"])


async def until_empty(site: Site) -> None:
    async def is_empty() -> bool:
        return await held(site) == 0

    await until(is_empty, "everything is acknowledged and gone")


# Streams that keep only what is unread


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_stream_that_keeps_what_is_unread_is_read_once_and_emptied_over_links_that_break(
    site: Site, retention: str
) -> None:
    await site.make_stream(retention=retention)
    async with reading(site) as reader:
        last = await site.publish(*bodies("a", COUNT))
        for cut in (500, 1_200, 2_500):
            await reader.read_on(cut, deadline=30)
            await site.link.cut()
            await site.link.restore()
        # What was acknowledged on a dead connection is acknowledged with what comes next.
        last = await site.publish(b"b")
        await reader.read_on(last, deadline=30)
        assert reader.sequences == list(range(1, last + 1))
        assert not any(opened.change or opened.is_gap for opened in reader.opened)
        await until_empty(site)


async def test_a_work_queue_lets_go_what_was_committed_and_not_acknowledged(site: Site) -> None:
    await site.make_stream(retention="workqueue")
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        # Ended between the commit and the acknowledgement.
        messages = await reader.source.read(5)
        await reader.take(messages, acknowledges=False)
        assert (reader.position.sequence, await held(site)) == (10, 10)
        assert (await reader.open()).change is None
        await site.publish(*bodies("b", 5))
        await reader.read_on(15)
        assert reader.sequences == list(range(1, 16))
        await until_empty(site)


async def test_a_work_queue_restored_from_a_copy_is_read_on_and_emptied(site: Site, tmp_path: Path) -> None:
    await site.make_stream(retention="workqueue")
    async with reading(site) as reader:
        await site.publish(*bodies("before", 20))
        await site.copy_store(tmp_path / "copy")
        await reader.read_on(20, deadline=30)
        await site.publish(*bodies("lost", 10))
        await reader.read_on(30, deadline=30)
        await site.restore_store(tmp_path / "copy")
        await site.publish(*bodies("after", 7))
        opened = await reader.open_again(deadline=30)
        assert (opened.change, opened.sequence) == (PastChange.SHORTENED, 20)
        await reader.read_on(27, deadline=30)
        assert [message.payload for message in reader.received][30:] == bodies("after", 7)
        await until_empty(site)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_a_stream_restored_from_a_copy_that_stored_more_than_was_read_loses_nothing_unread(
    site: Site, tmp_path: Path, retention: str
) -> None:
    """Its sequences are used again, up to behind the position: what lies before that has not been read."""
    await site.make_stream(retention=retention)
    async with reading(site) as reader:
        await site.publish(*large("before", 100))
        await reader.read_on(100, deadline=30)
        await site.copy_store(tmp_path / "copy")
        await site.publish(*large("lost", 100))
        await reader.read_on(200, deadline=30)
        await site.link.cut()
        await site.restore_store(tmp_path / "copy")
        await site.publish(*large("after", 150))
        await site.link.restore()
        opened = await reader.open_again(deadline=30)
        assert (opened.change, opened.sequence) == (PastChange.REWRITTEN, 100)
        await reader.read_on(250, deadline=30)
        assert [message.payload for message in reader.received][200:] == large("after", 150)
        await until_empty(site)


async def test_what_was_committed_before_a_clock_went_back_a_little_is_no_other_past(site: Site) -> None:
    await site.make_stream(retention="workqueue")
    await site.publish(*bodies("a", 10))
    async with reading(site) as reader:
        messages = await reader.source.read(5)
        await reader.take(messages, acknowledges=False)
        # As if the last one had been stored by a server whose clock was a second behind.
        earlier = msgspec.structs.replace(reader.position, stored_at=messages[0].stored_at - 1)
        state = BlockState(earlier, POLICY, source_clock=reader.source_clock)
        pulls = Pulls(reader.client, reader.source._api, Requests(PULL_EXPIRES))
        await reader.source._api.reset(1)
        await pulls.begin(11, 0, acknowledges_each=True, committed_at=state.latest_stored_at)
        await pulls.await_first(10, 10)
        assert (pulls.is_rewritten, pulls.buffered_count) == (False, 0)
        await pulls.close()


def large(what: str, count: int) -> list[bytes]:
    """Give more than one pull carries: what it asks for next depends on what was looked at."""
    return [body.ljust(13_000) for body in bodies(what, count)]


async def test_a_work_queue_is_acknowledged_message_by_message_and_other_streams_all_at_once(site: Site) -> None:
    await site.make_stream(retention="workqueue")
    async with reading(site):
        assert (await consumer_config(site))["ack_policy"] == "explicit"
    await site.delete_stream()
    await site.make_stream()
    async with reading(site):
        assert (await consumer_config(site))["ack_policy"] == "all"


async def test_a_consumer_of_an_operator_that_wants_every_message_acknowledged_serves(site: Site) -> None:
    await site.make_stream()
    config = {"durable_name": CONSUMER, "ack_policy": "explicit", "max_ack_pending": 50}
    await site.api(f"CONSUMER.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})
    await site.publish(*bodies("a", 500))
    async with reading(site, SourceAddress(STREAM, CONSUMER, creates_consumer=False)) as reader:
        await reader.read_on(500, deadline=30)
        assert reader.sequences == list(range(1, 501))
        await until(lambda: acknowledged(site, 500), "everything is acknowledged")


async def acknowledged(site: Site, sequence: int) -> bool:
    return await site.acknowledged_through() == sequence


# Servers that cannot reset a consumer. Here a server that can is taken for one that cannot: the same requests are sent.


async def cut_again_and_again(site: Site, reader: Reader, last: int) -> None:
    for cut in range(500, last, 800):
        await reader.read_on(cut, deadline=30)
        await site.link.cut()
        await site.link.restore()
    await reader.read_on(last, deadline=30)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_a_server_that_cannot_reset_gets_a_new_consumer_at_every_open_and_nothing_is_lost(
    site: Site, retention: str
) -> None:
    await site.make_stream(retention=retention)
    last = await site.publish(*bodies("a", COUNT))
    async with reading(site, resets=False) as reader:
        await cut_again_and_again(site, reader, last)
        assert reader.sequences == list(range(1, last + 1))
        assert not any(opened.change or opened.is_gap for opened in reader.opened)
        # One that was already read to its end, and one with something left.
        for _ in range(2):
            await reader.open()
            last = await site.publish(*bodies("b", 3))
            await reader.read_on(last)
        assert reader.sequences == list(range(1, last + 1))
        assert ("opt_start_seq" in await consumer_config(site)) == (retention == "limits")


async def test_a_changed_past_is_noticed_on_a_server_that_cannot_reset(site: Site, tmp_path: Path) -> None:
    await site.make_stream()
    async with reading(site, resets=False) as reader:
        await site.publish(*bodies("before", 50))
        await reader.read_on(50)
        await site.copy_store(tmp_path / "copy")
        await site.publish(*bodies("lost", 30))
        await reader.read_on(80, deadline=30)
        await site.restore_store(tmp_path / "copy")
        await site.publish(*bodies("after", 40))
        opened = await reader.open_again(deadline=30)
        assert (opened.change, opened.sequence) == (PastChange.REWRITTEN, 50)
        await reader.read_on(90, deadline=30)
        assert [message.payload for message in reader.received][80:] == bodies("after", 40)


async def test_a_consumer_that_holds_messages_in_an_interest_stream_is_never_removed(site: Site) -> None:
    await site.make_stream(retention="interest")
    async with reading(site):
        pass
    last = await site.publish(*bodies("a", 10))
    with pytest.raises(SourceUnavailable, match="cannot reset consumer .* would drop what was not read: upgrade it"):
        async with reading(site, resets=False):
            pass
    assert await held(site) == last


async def test_a_consumer_that_may_not_be_made_is_not_removed(site: Site) -> None:
    await site.make_stream()
    async with reading(site):
        pass
    address = SourceAddress(STREAM, CONSUMER, creates_consumer=False)
    with pytest.raises(SourceUnavailable, match="2.14 can: upgrade it, or let create_consumer be true"):
        async with reading(site, address, resets=False):
            pass
    assert await consumer_config(site)


async def test_a_reset_that_is_not_permitted_is_said_and_the_consumer_stays(tmp_path: Path) -> None:
    reset = f"$JS.API.CONSUMER.RESET.{STREAM}.{CONSUMER}"
    permissions = f"""
    authorization {{ users: [
      {{ user: admin, password: secret }}
      {{ user: agent, password: secret, permissions: {{ publish: {{ allow: ">", deny: "{reset}" }} }} }}
    ] }}
    no_auth_user: admin
    """
    password = written(tmp_path / "password", "secret")
    async with running_site(tmp_path, permissions) as site:
        await site.make_stream()
        await site.publish(*bodies("a", 10))
        auth = AuthSettings(user="agent", password_file=password)
        with pytest.raises(SourceUnavailable, match=f"{reset.replace('$', '.')}: no answer within"):
            async with reading(site, auth=auth):
                pass
        assert (await consumer_config(site))["durable_name"] == CONSUMER

"""A consumer that somebody else reads, or resets: no message is passed over in silence, and it is said."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from nats.aio.msg import Msg

from edge_agent.source import reader as source
from edge_agent.source.consumer import SourceAddress
from edge_agent.source.port import SourceUnavailable
from tests.support.nats.source_site import CONSUMER, STREAM, SUBJECT, Reader, Site, reading, running_site
from tests.support.waiting import until

OTHERS = "registration.others"
FILTERED = SourceAddress(STREAM, CONSUMER, filter_subject=SUBJECT)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with running_site(tmp_path) as site:
        yield site


async def reset(site: Site, sequence: int) -> None:
    """Do what another reader of the consumer does when it opens."""
    await site.api(f"CONSUMER.RESET.{STREAM}.{CONSUMER}", {"seq": sequence})


def reset_behind(reader: Reader, monkeypatch: pytest.MonkeyPatch, site: Site, sequence: int) -> None:
    """Let somebody else reset the consumer once, just behind the reader's own next reset."""
    own_reset = reader.source._api.reset

    async def reset_twice(own: int) -> int:
        pending = await own_reset(own)
        monkeypatch.setattr(reader.source._api, "reset", own_reset)
        await reset(site, sequence)
        return pending

    monkeypatch.setattr(reader.source._api, "reset", reset_twice)


async def publish_both(site: Site, count: int) -> int:
    """Store messages for the reader and, behind each, one that a filter keeps from it; give the last one for it."""
    for _ in range(count):
        await site.publish(b"ours")
        await site.publish(b"not ours", subject=OTHERS)
    return await site.last_sequence() - 1


def expected(address: SourceAddress, last: int) -> list[int]:
    return list(range(1, last + 1, 2 if address.filter_subject else 1))


BOTH = pytest.mark.parametrize("address", [SourceAddress(STREAM, CONSUMER), FILTERED], ids=["all", "filtered"])


@BOTH
async def test_a_reset_by_somebody_else_before_the_first_delivery_skips_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch, address: SourceAddress
) -> None:
    await site.make_stream()
    async with reading(site, address) as reader:
        await reader.read_on(await publish_both(site, 5))
        await reader.source._pulls.close()
        last = await publish_both(site, 10)
        reset_behind(reader, monkeypatch, site, last - 6)
        await reader.open_again()
        await reader.read_on(last)
    assert [each for each in reader.sequences if each <= last] == expected(address, last)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
async def test_what_somebody_else_takes_from_a_stream_that_lets_go_of_it_is_a_gap(site: Site, retention: str) -> None:
    await site.make_stream(retention=retention)
    async with reading(site) as reader:
        await reader.read_on(await site.publish(b"1", b"2"))
        await until(lambda: is_empty(site), "what was read is gone")
        other = OtherReader(site)
        await other.ask(1, acknowledges=True)
        # The server serves whoever asks in turn.
        last = await site.publish(*[b"3"] * 8)
        await until(lambda: other.count == 1, "somebody else has read")

        async def is_noticed() -> bool:
            try:
                await reader.take(await reader.source.read(1))
            except SourceUnavailable:
                return True
            return False

        await until(is_noticed, "the reader notices")
        await other.leave()
        await reader.open_again()
        await reader.read_on(last)

        async def is_told() -> bool:
            with contextlib.suppress(SourceUnavailable):
                await reader.take(await reader.source.read(0.1))
                return any(opened.is_gap for opened in reader.opened)
            await reader.open_again()
            return False

        await until(is_told, "the gap is told")


async def is_empty(site: Site) -> bool:
    return int((await site.api(f"STREAM.INFO.{STREAM}"))["state"]["messages"]) == 0


async def test_holes_that_per_subject_limits_make_stop_nobody(site: Site) -> None:
    await site.make_stream(max_msgs_per_subject=1)
    subjects = [f"registration.n{number}" for number in range(300)]

    async def register() -> int:
        last = await site.last_sequence() + len(subjects)
        for subject in subjects:
            await site.client.publish(subject, b"1")

        async def is_stored() -> bool:
            return await site.last_sequence() >= last

        await until(is_stored, "all have registered")
        return last

    # The stream's first message stays: what is lost at its beginning would be a gap.
    await site.publish(b"1", subject="registration.first")
    for _ in range(3):
        await register()
    async with reading(site) as reader:
        last = 0
        for _ in range(5):
            # Some are replaced before they are read, some behind the reader, and some while it reads.
            await register()
            await reader.take(await reader.source.read(1))
            last = await register()
            await reader.read_on(last)
            await reader.check()
        assert len(reader.opened) == 1
        assert reader.sequences == sorted(set(reader.sequences))
        assert reader.sequences[-300:] == list(range(last - 299, last + 1))


class OtherReader:
    """Somebody else, who reads through the consumer from a beginning of his own and goes on asking for more."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._acknowledges = False
        self.count = 0

    async def read(self, beginning: int, count: int) -> None:
        """Take ``count`` messages from a beginning, and wait for no more yet."""
        await self._site.api(f"CONSUMER.RESET.{STREAM}.{CONSUMER}", {"seq": beginning})
        await self.ask(count)
        await until(lambda: self.count == count, "somebody else has read")

    async def ask(self, count: int, expires: int = 60, *, acknowledges: bool = False) -> None:
        """Ask for messages."""
        self._acknowledges = acknowledges
        body = {"batch": count, "expires": expires * 1_000_000_000}
        self._inbox = self._site.client.new_inbox()
        self._subscription = await self._site.client.subscribe(self._inbox, cb=self._take)
        await self._site.client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{CONSUMER}", msgspec.json.encode(body), reply=self._inbox
        )
        await self._site.client.flush()

    async def leave(self) -> None:
        """Wait for nothing any more."""
        await self._subscription.unsubscribe()
        await self._site.client.flush()

    async def _take(self, message: Msg) -> None:
        self.count += message.reply != ""
        if message.reply and self._acknowledges:
            await self._site.client.publish(message.reply, b"+ACK")


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a consumer be taken over soon after somebody else has left it."""
    monkeypatch.setattr(source, "REQUESTS_END", 0.5)
    monkeypatch.setattr(source, "QUIET", 0.5)


async def read_as_another_era(reader: Reader, site: Site) -> int:
    """Let a reader's next delivery be another reset's that seems to follow its last one; give what it comes to."""
    pulls = reader.source._pulls
    await pulls.close()
    # Between two of the reader's requests, as many as it was delivered go elsewhere, from another beginning.
    middle = await publish_both(site, 4)
    other = OtherReader(site)
    await other.read(middle - 2, pulls.consumer_sequence)
    pulls._subscription = await reader.client.subscribe_directly(pulls._inbox, pulls._receive)
    pulls._requested = 0
    reader.source._requests.end_by(0.0)
    return middle


@BOTH
async def test_a_delivery_of_somebody_elses_reset_that_seems_to_follow_skips_nothing_in_silence(
    site: Site, address: SourceAddress
) -> None:
    await site.make_stream()
    async with reading(site, address) as reader:
        await reader.read_on(await publish_both(site, 1))
        await read_as_another_era(reader, site)
        with contextlib.suppress(SourceUnavailable):
            await reader.take(await reader.source.read(5))
        other = OtherReader(site)
        await other.ask(1)
        with pytest.raises(SourceUnavailable, match="somebody else"):
            await reader.check()
        with pytest.raises(SourceUnavailable, match="is read by somebody else"):
            await reader.open()
        await other.leave()
        opened = await reader.open_again()
        last = await publish_both(site, 3)
        await reader.read_on(last)
    is_whole = [each for each in reader.sequences if each <= last] == expected(address, last)
    assert is_whole != opened.is_gap
    assert is_whole == (not address.filter_subject), "without a filter holes are rare, and are asked about at once"

"""The key that only reads: a rollup needs no other, and whoever has stolen it changes nothing at the hub."""

import asyncio
from collections.abc import Iterator
from functools import partial

import msgspec
import pytest

from aggregator.lakehouse.archive.slices import StreamSlices
from tests.support.topology.rendered import Rendered, rendered_servers, until_archived
from tests.support.waiting import until

COUNT = 2_500
OWN = "fleet.eu-west.dub1.nodes.watermark"


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rendered]:
    with rendered_servers(tmp_path_factory.mktemp("rendered")) as servers:
        yield servers


@pytest.mark.parametrize("domain", ["hub", ""])
async def test_the_readers_key_reads_all_that_the_archive_holds(rendered: Rendered, domain: str) -> None:
    before = await rendered.archived()
    async with rendered.visited("eu-west", "dub1-agent", "_INBOX_dub1") as agent:
        for number in range(COUNT):
            await agent.client.publish(OWN, b"%d" % number)
        await agent.client.flush()
    await until_archived(rendered, before + COUNT)
    await until_mirrored(rendered, before + COUNT)
    connection = msgspec.structs.replace(rendered.settings("hub", "reader"), domain=domain)
    for streams in (("REPORT", "ARCHIVE"), ("ARCHIVE",)):
        source = StreamSlices.of(connection, *streams, reading="direct")
        batches = await asyncio.to_thread(partial(read, source, before + 1, before + COUNT))
        assert batches == [b"%d" % number for number in range(COUNT)]


def read(source: StreamSlices, first: int, last: int) -> list[bytes]:
    return [payload for messages in source.read(first, last) for payload in messages.payloads]


@pytest.mark.parametrize(
    "subject",
    [
        *(
            f"$JS.API.{action}"
            for action in (
                "INFO",
                "STREAM.NAMES",
                "STREAM.INFO.MUSTER_POLICY",
                "STREAM.CREATE.MINE",
                "STREAM.PURGE.ARCHIVE",
                "STREAM.DELETE.ARCHIVE",
                "STREAM.UPDATE.REPORT",
                "STREAM.MSG.DELETE.ARCHIVE",
                "STREAM.MSG.GET.MUSTER_POLICY",
                "CONSUMER.CREATE.ARCHIVE",
                "CONSUMER.CREATE.ARCHIVE.mine",
                "CONSUMER.DELETE.ARCHIVE.mine",
                "CONSUMER.MSG.NEXT.ARCHIVE.mine",
                "DIRECT.GET.MUSTER_POLICY",
            )
        ),
        "$JS.eu-west.API.STREAM.INFO.FLEET",
        "$JS.eu-west.API.STREAM.PURGE.FLEET",
        "muster.policy.eu-west.region",
        "muster.source.eu-west.FLEET",
        "fleet.eu-west.dub1.nodes.watermark",
        "$JS.ACK.ARCHIVE.mine.1.1.1.1.1",
        "$JS.FC.FLEET.muster-archive.x",
        "_INBOX.other",
        "$SYS.REQ.SERVER.PING",
    ],
)
async def test_the_readers_key_asks_for_nothing_else(rendered: Rendered, subject: str) -> None:
    async with rendered.visited("hub", "reader") as thief:
        await thief.is_denied(subject)


@pytest.mark.parametrize("reply", ["muster.policy.eu-west.region", "$JS.API.STREAM.PURGE.REPORT", "$JS.ACK.x"])
@pytest.mark.parametrize("asked", ["STREAM.INFO.REPORT", "STREAM.MSG.GET.REPORT", "DIRECT.GET.REPORT"])
async def test_no_answer_that_the_reader_asks_for_is_stored(rendered: Rendered, asked: str, reply: str) -> None:
    async with rendered.visited("hub", "aggregator") as hub, rendered.visited("hub", "reader") as thief:
        before = [(await hub.api(f"STREAM.INFO.{name}"))["state"]["messages"] for name in ("MUSTER_POLICY", "REPORT")]
        await thief.client.publish(f"$JS.API.{asked}", b'{"seq": 1}', reply=reply)
        await thief.api("STREAM.INFO.REPORT")
        after = [(await hub.api(f"STREAM.INFO.{name}"))["state"]["messages"] for name in ("MUSTER_POLICY", "REPORT")]
        assert after == before


async def until_mirrored(rendered: Rendered, count: int) -> None:
    async with rendered.visited("hub", "aggregator") as hub:

        async def there() -> bool:
            return int((await hub.api("STREAM.INFO.REPORT"))["state"]["messages"]) >= count

        await until(there, "REPORT has it too")

"""A server stores a watermark only behind its predecessor; one read of the last message explains a refusal."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from edge_agent.core.records import OutboxRow
from edge_agent.delivery.name_fence import NameFence, NameTaken, boot_id
from edge_agent.delivery.region import JetStreamUpstream
from edge_agent.delivery.region_protocol import BEHIND_HEADER
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment
from edge_agent.runtime.links import max_payload_of
from shared.embedded import server
from shared.nats.connection import ConnectionSettings, connect
from shared.subjects import watermark_subject
from shared.tasks import cancel_all
from shared.wire import encode
from tests.support.delivery.fleet_region import Region, fence_of, running_region
from tests.support.delivery.watermark_records import watermark_of
from tests.support.nats.linked_server import DEADLINE
from tests.support.nats.older_server import OLDER, only_with_an_older_server
from tests.support.store import store_batches
from tests.support.store.store_batches import BLOCK_ID
from tests.support.waiting import until

EARLIER, LATER = (boot_id(at, bytes(10)) for at in (1_000_000, 2_000_000))


class Publisher(NamedTuple):
    """One run of an agent, which publishes rows one after the other."""

    upstream: JetStreamUpstream
    fence: NameFence
    run: str
    numbers: Iterator[int]

    async def send(self, *rows: OutboxRow) -> None:
        """Publish rows as one shipment."""
        form = Form.BATCH if len(rows) > 1 else Form.SINGLE
        await self.upstream.send(Shipment(next(self.numbers), rows[0].lane, rows, form))

    async def answer(self, *rows: OutboxRow) -> Answer:
        """Publish rows as one shipment, and wait for the answer."""
        await self.send(*rows)
        async with asyncio.timeout(DEADLINE):
            while not (answers := await self.upstream.answers(0.1)):
                pass
        return answers[0]

    async def stores(self, through: int) -> int:
        """Publish a watermark of this run; return its sequence."""
        answer = await self.answer(watermark(through, self.run))
        assert answer.outcome is Outcome.STORED
        return answer.sequence


def watermark(through: int, run: str) -> OutboxRow:
    """Make the row of a run's watermark, with a body that can be read."""
    return replace(store_batches.watermark(f"{run}-{through}"), payload=encode(watermark_of(through, run)))


@asynccontextmanager
async def publishing(region: Region, *runs: str) -> AsyncIterator[list[Publisher]]:
    """Connect runs of agents that have one name."""
    settings = ConnectionSettings(servers=(region.link.url,))
    async with AsyncExitStack() as stack:
        publishers = []
        for run in runs:
            client = await connect(settings, name=run, deadline=DEADLINE)
            stack.push_async_callback(client.close)
            fence = fence_of(client, run)
            upstream = JetStreamUpstream(client, partial(max_payload_of, client, settings), fence=fence)
            stack.callback(upstream.give_up)
            await upstream.ready()
            publishers.append(Publisher(upstream, fence, run, count(1)))
        yield publishers


async def conditions(region: Region) -> list[str]:
    """Return the sequence that each watermark was to stand behind, in the stream's order; "" for none."""
    return [stored.headers.get(BEHIND_HEADER, "") for stored in await region.stored() if stored.subject[-4:] == "mark"]


async def test_a_watermark_whose_acknowledgement_was_lost_is_stored_once_also_when_its_id_is_forgotten(
    region: Region,
) -> None:
    await region.make_stream(duplicate_window=100_000_000)
    async with publishing(region, EARLIER) as (agent,):
        first = await agent.stores(1)
        lost = watermark(2, EARLIER)
        stored = await region.client.jetstream().publish(lost.subject, lost.payload, headers=dict(lost.headers))
        await region.forgets_ids()
        answer = await agent.answer(lost)
        assert (answer.outcome, answer.sequence) == (Outcome.STORED, stored.seq)
        await agent.stores(3)
    assert await conditions(region) == ["0", "", str(stored.seq)]
    assert first == 1


async def test_a_restarted_agent_continues_behind_what_it_finds(region: Region) -> None:
    await region.make_stream()
    async with publishing(region, EARLIER, LATER) as (before, after):
        last = await before.stores(1)
        # What the run before had left to send.
        assert (await after.answer(watermark(1, EARLIER))).sequence == last
        await after.stores(2)
    assert await conditions(region) == ["0", str(last)]


@pytest.mark.parametrize("allow_direct", [False, True])
async def test_retention_that_removed_the_predecessor_holds_up_no_watermark(region: Region, allow_direct: bool) -> None:
    await region.make_stream(allow_direct=allow_direct)
    async with publishing(region, EARLIER) as (agent,):
        await agent.stores(1)
        await region.api("STREAM.PURGE.FLEET")
        await agent.stores(2)
        await region.api("STREAM.DELETE.FLEET")
        await region.make_stream(allow_direct=allow_direct)
        await agent.stores(3)
    assert await conditions(region) == ["0"]


async def test_the_later_of_two_living_runs_is_refused_at_its_second_watermark(region: Region) -> None:
    await region.make_stream()
    async with publishing(region, LATER, EARLIER) as (later, earlier):
        await earlier.stores(1)
        await later.stores(2)
        # It continues directly behind the later one's, which proves that it lives.
        last = await earlier.stores(3)
        await later.send(watermark(4, LATER))
        with pytest.raises(NameTaken) as taken:
            await asyncio.wait_for(later.fence.run(), DEADLINE)
        assert taken.value.namesake.boot_id == EARLIER
        assert await later.upstream.answers(0.1) == []
        await earlier.stores(5)
    assert await conditions(region) == ["0", "1", "2", str(last)]


async def test_an_agent_that_publishes_without_the_condition_is_noticed_when_it_has_done_so_twice_more(
    region: Region,
) -> None:
    await region.make_stream()
    publish = region.client.jetstream().publish

    async def older(through: int) -> None:
        row = watermark(through, EARLIER)
        await publish(row.subject, row.payload, headers=dict(row.headers))

    async with publishing(region, LATER) as (agent,):
        for through in (1, 3):
            await older(through)
            await agent.stores(through + 1)
        await older(5)
        await agent.send(watermark(6, LATER))
        with pytest.raises(NameTaken):
            await asyncio.wait_for(agent.fence.run(), DEADLINE)
    assert await conditions(region) == ["", "1", "", "3", ""]


async def test_a_stream_that_renames_subjects_is_fenced_as_soon_as_a_watermark_is_stored(region: Region) -> None:
    """The last message cannot be read by the subject that it was published on."""
    await region.make_stream(subject_transform={"src": "fleet.>", "dest": "renamed.>"})
    async with publishing(region, EARLIER, LATER) as (before, after):
        for publisher, through in ((before, 1), (before, 2), (after, 3), (after, 4)):
            await publisher.stores(through)
    assert await conditions(region) == ["0", "1", "", "3"]


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("", id="the server of the wheel"),
        pytest.param(OLDER, id="an older server", marks=only_with_an_older_server),
    ],
)
async def test_a_batch_stands_behind_the_last_watermark_and_the_archive_takes_what_had_conditions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    started = command or server.find_command()
    monkeypatch.setattr(server, "find_command", lambda: started)
    advisories = [store_batches.advisory(f"a{number}") for number in range(6)]
    async with running_region(tmp_path) as region:
        await region.make_stream(allow_atomic=True)
        await region.create_stream({"name": "ARCHIVE", "sources": [{"name": "FLEET"}]})
        async with publishing(region, EARLIER, LATER) as (first, second):
            await first.stores(1)
            batch = [advisories[0], watermark(2, EARLIER), advisories[1], watermark(3, EARLIER), advisories[2]]
            assert (await first.answer(*batch)).sequence == 6
            # Directly behind the batch's last watermark.
            assert await first.stores(4) == 7
            await second.stores(5)
            # Of a batch that is refused, nothing is stored before its place is known.
            assert (await first.answer(advisories[3], watermark(6, EARLIER), advisories[4])).sequence == 11
        placed = await stored_conditions(region)
        assert placed == {1: "0", 2: "1", 7: "5", 8: "7", 9: "8"}

        async def is_archived() -> bool:
            return bool((await region.api("STREAM.INFO.ARCHIVE"))["state"]["messages"] == 11)

        await until(is_archived, "the archive has everything")


async def stored_conditions(region: Region) -> Mapping[int, str]:
    """Return by sequence which place a message was to have; a batch names it with its first."""
    return {
        each.sequence: each.headers[BEHIND_HEADER] for each in await region.stored() if BEHIND_HEADER in each.headers
    }


async def test_a_denied_read_names_its_subject_also_when_another_denial_follows_at_once(region: Region) -> None:
    asked = watermark_subject(BLOCK_ID)
    reasons: list[str] = []
    client = await connect(ConnectionSettings(servers=(region.link.url,)), name="run", deadline=DEADLINE)
    fence = fence_of(client, report=lambda _phase, reason: reasons.append(reason))
    running = asyncio.create_task(fence.run())
    await asyncio.sleep(0)
    for subject, is_ours in ((asked.lower(), True), ("$js.api.stream.info.registration", False)):
        assert fence.takes_denial(f'nats: permissions violation for publish to "{subject}"') is is_ours
    await until(lambda: reasons, "it reports that it cannot read")
    assert reasons[0].startswith(f"not permitted: publish on {asked}; ")
    await cancel_all([running])
    await client.close()

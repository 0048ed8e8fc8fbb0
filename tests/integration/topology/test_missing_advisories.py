"""On a real server: advisories that the archive lacks are found, however long ago, whatever came behind them."""

from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from nats.aio.client import Client

from aggregator.live.fold.changes import Archived
from aggregator.live.fold.fleet import Fleet
from aggregator.topology.desired.model import HUB, Place
from aggregator.topology.observed.state import FoundStream
from aggregator.topology.report.contradictions import read_voices
from aggregator.topology.report.evidence import last_watermarks
from aggregator.topology.report.missing_advisories import OrdinalFaults, Ranges, held_ordinals, ordinal_faults
from shared.decoding import Decoder
from shared.embedded.server import EmbeddedNats, ServerSettings
from shared.identifiers import AdvisoryKind
from shared.instants import HOUR, SECOND
from shared.nats.connection import request_json
from shared.subjects import BLOCKS_PER_SITE
from tests.support.lakehouse.hub import Block, Message
from tests.support.topology.aggregator_command import ran
from tests.support.topology.regions import client_of, stream
from tests.support.waiting import until

ARCHIVE = Place(HUB, "hub"), "ARCHIVE"
START = 1_795_600_000_000_000
NOTHING_LATELY = 0
EVERYTHING_LATELY = 600 * SECOND


class Stage(NamedTuple):
    """A hub whose archive copies a region in its own domain."""

    hub: Client
    site: Block

    async def publish(self, messages: Iterable[Message]) -> None:
        """Publish as agents do, and wait for the archive."""
        for message in messages:
            await self.hub.jetstream().publish(message.subject, message.body, headers=message.headers)
        held = (await stream(self.hub, "FLEET"))["state"]["last_seq"]
        await until(partial(self._holds, held), f"the archive holds {held}")

    async def _holds(self, count: int) -> bool:
        return bool((await stream(self.hub, "ARCHIVE"))["state"]["last_seq"] == count)

    def advisories(self, *ordinals: int) -> list[Message]:
        """Write the advisories of these ordinals, and what counts all up to now."""
        written = []
        for ordinal in ordinals:
            self.site.ordinal = ordinal - 1
            written.append(self.site.advisory([*AdvisoryKind][ordinal % 2], f"sender {ordinal}", ordinal * SECOND))
        return written

    def counts(self, issued: int) -> Message:
        self.site.ordinal = issued
        return self.site.watermark(START, START + SECOND)

    async def now(self) -> int:
        return (await last_watermarks(self.hub, ARCHIVE)).now

    async def missing(self, lately: int) -> Ranges:
        """Look for what is missing; ``lately``: of how many microseconds the archive is read, as of one with many."""
        archive = Decoder(FoundStream, "a stream")(msgspec.json.encode(await stream(self.hub, "ARCHIVE")))
        now, words, *_ = await last_watermarks(self.hub, ARCHIVE)
        (counted,) = (await ordinal_faults(self.hub, ARCHIVE, archive, words, now - lately, read_whole=0)).values()
        (read,) = (await ordinal_faults(self.hub, ARCHIVE, archive, words, now - lately)).values()
        assert counted.missing == read.missing
        return counted.missing


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub")) as server:
        path = tmp_path / "topology.toml"
        region = '[[region]]\nname = "here"\ndomain = "hub"\n'
        path.write_text(f'[hub]\nservers = ["{server.url}"]\ndomain = "hub"\n{region}')
        await ran("apply", "--config", path)
        async with await client_of(server) as hub:
            yield Stage(hub, Block("here", "dub1"))


async def test_a_hole_of_a_quiet_site_stays_known_when_it_speaks_again_and_when_that_is_long_ago(stage: Stage) -> None:
    await stage.publish([*stage.advisories(*range(1, 8)), stage.counts(8)])
    assert await stage.missing(NOTHING_LATELY) == ((8, 8),)
    before = await stage.now()
    await stage.publish([*stage.advisories(9), stage.counts(9)])
    assert await stage.missing(await stage.now() - before) == ((8, 8),)
    assert await stage.missing(NOTHING_LATELY) == ((8, 8),)
    before = await stage.now()
    await stage.publish([*stage.advisories(10), stage.counts(10)])
    assert await stage.missing(await stage.now() - before) == ((8, 8),)
    await stage.publish([*stage.advisories(8), stage.counts(10)])
    for lately in (NOTHING_LATELY, await stage.now() - before, EVERYTHING_LATELY):
        assert await stage.missing(lately) == ()


async def test_what_was_lost_before_all_that_came_lately_is_missing(stage: Stage) -> None:
    """As of a hub that was restored from a copy older than what is read."""
    await stage.publish([*stage.advisories(*range(1, 51)), stage.counts(50)])
    before = await stage.now()
    await stage.publish([*stage.advisories(75, 76, 77), stage.counts(77)])
    for lately in (NOTHING_LATELY, await stage.now() - before, EVERYTHING_LATELY):
        assert await stage.missing(lately) == ((51, 74),)


async def test_what_another_life_issued_and_what_came_twice_fills_no_hole(stage: Stage) -> None:
    await stage.publish(stage.advisories(*range(1, 21)))
    again = stage._replace(site=Block("here", "dub1", epoch=2))
    await again.publish([*again.advisories(1, 2, 3, 5, 5, 6, 2), again.counts(6)])
    for lately in (NOTHING_LATELY, EVERYTHING_LATELY):
        assert await again.missing(lately) == ((4, 4),)
    await again.publish([*again.advisories(4, 7), again.counts(7)])
    for lately in (NOTHING_LATELY, EVERYTHING_LATELY):
        assert await again.missing(lately) == ()


async def test_what_the_archive_let_go_of_is_not_missing_and_what_lacks_behind_that_is(stage: Stage) -> None:
    await stage.publish([*stage.advisories(*range(1, 31)), stage.counts(30)])
    for held_from, missing in ((11, ()), (31, ())):
        purge = {"seq": held_from}
        await request_json(stage.hub, "$JS.API.STREAM.PURGE.ARCHIVE", purge, dict[str, Any], deadline=60)
        assert await stage.missing(NOTHING_LATELY) == missing
    await stage.publish([*stage.advisories(31, 33, 34), stage.counts(34)])
    for lately in (NOTHING_LATELY, EVERYTHING_LATELY):
        assert await stage.missing(lately) == ((32, 32),)


async def test_a_block_is_looked_through_by_counting_wherever_its_ordinals_lie(stage: Stage) -> None:
    """Of two lives, with holes, among other blocks' messages, and taken once more in part."""
    other = Block("here", "other")
    first, second = Block("here", "dub1"), stage._replace(site=Block("here", "dub1", epoch=2))
    held = [*range(1, 100), *range(111, 301), 302]
    messages = [first.new(f"sender {number}", SECOND) for number in range(40)]
    messages += [other.new(f"sender {number}", SECOND) for number in range(30)]
    for message in second.advisories(*held, *range(180, 301), 302, 7, 8, 9, *range(303, 320)):
        messages += [message, other.new("sender", SECOND)]
    await stage.publish(messages)
    for read_at_once in (1, 5, 1_000):
        for block, expected in ((second.site, {*held, *range(303, 320)}), (first, set(range(1, 41)))):
            life = block.id, str(block.incarnation)
            assert await held_ordinals(stage.hub, ARCHIVE, life, read_at_once) == expected


async def test_records_that_cannot_be_read_are_counted_and_hide_nothing(stage: Stage) -> None:
    deep = b'{"x":' + b"[" * 997 + b"]" * 997 + b"}"
    (first,) = stage.advisories(1)
    unreadable = [first._replace(body=deep), first._replace(body=b'"\xff"')]
    mark = stage.counts(1)
    other = Block("here", "ams1").watermark(START, START + SECOND)
    await stage.publish([first, *unreadable, mark, mark._replace(body=deep), mark, other._replace(body=deep)])
    archive = Decoder(FoundStream, "a stream")(msgspec.json.encode(await stream(stage.hub, "ARCHIVE")))
    now, words, refused, crowded = await last_watermarks(stage.hub, ARCHIVE)
    assert ([*words], refused, crowded) == ([stage.site.id], (Block("here", "ams1").id,), {})
    assert [*await read_voices(stage.hub, ARCHIVE, 0)] == [stage.site.id]
    (faults,) = (await ordinal_faults(stage.hub, ARCHIVE, archive, words, now - EVERYTHING_LATELY)).values()
    assert faults == OrdinalFaults(refused_count=2)


async def test_a_site_of_many_blocks_is_named_and_as_many_as_count_are_read(stage: Stage) -> None:
    blocks = [Block("here", "dub1", f"b{number}") for number in range(BLOCKS_PER_SITE + 3)]
    await stage.publish([*(block.watermark(START, START + SECOND) for block in blocks), stage.counts(0)])
    _, words, _, crowded = await last_watermarks(stage.hub, ARCHIVE)
    assert (len(words), crowded) == (BLOCKS_PER_SITE, {("here", "dub1"): BLOCKS_PER_SITE + 4})
    _, words, _, crowded = await last_watermarks(stage.hub, ARCHIVE, BLOCKS_PER_SITE + 4)
    assert (len(words), crowded) == (BLOCKS_PER_SITE + 4, {})


async def test_the_blocks_of_a_site_that_count_are_its_first_ones_as_in_the_live_fleet(stage: Stage) -> None:
    names = ["zeta", "quiet", "mid", "alpha", "beta", "aaa", "none", "flood"]
    blocks = {name: Block("here", "dub1", name) for name in names}
    marks = {name: block.watermark(START, START + SECOND) for name, block in blocks.items()}
    messages = [
        *(marks[name]._replace(body=b"{}") for name in ("aaa", "none", *["flood"] * 40)),
        marks["zeta"],
        blocks["quiet"].new("web1", START),
        blocks["mid"].new("web1", START),
        *(marks[name] for name in ("alpha", "mid", "beta", "aaa", "zeta", "flood")),
    ]
    await stage.publish(messages)
    fleet = Fleet()
    fleet.site_blocks.most = 4
    for sequence, message in enumerate(messages, start=1):
        fleet.fold([Archived(sequence, message.subject.encode(), START + HOUR, message.body)])
    assert [each.block for each in fleet.blocks] == ["zeta", "quiet", "mid", "alpha"]
    _, words, unreadable, crowded = await last_watermarks(stage.hub, ARCHIVE, 4)
    assert (sorted(each.block for each in words), unreadable) == (["alpha", "mid", "zeta"], ())
    # Of the block whose first records are many and none is valid, no more is read.
    assert crowded == {("here", "dub1"): 6}
    assert (await last_watermarks(stage.hub, ARCHIVE, 6)).crowded == {}

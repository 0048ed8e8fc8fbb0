"""A claim without support costs its own site, and never changes the shape of the tables."""

import asyncio
import time
from datetime import UTC, datetime

import msgspec
import pytest
from pyspark.sql import SparkSession

from aggregator.fleet.agreement import compare
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupResult
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.stories import Played, Story, Telling, each_of
from tests.support.lakehouse.hub import Block, Hub, Message

NOW = int(time.time()) * SECOND
TODAY = NOW - NOW % DAY
YEAR = 365 * DAY
LIVES = (
    "SELECT state, epoch_us(started_at), epoch_us(ended_at), basis FROM sender_intervals WHERE {0}"
    " ORDER BY sender_id, 2"
)
LAST = (
    "SELECT sender_id, arg_max(state, started_at), epoch_us(max(started_at)) FROM sender_intervals WHERE site = '{0}'"
    " GROUP BY 1 ORDER BY 1"
)


def hour(number: int) -> int:
    return TODAY - 2 * DAY + number * HOUR


def warnings(result: RollupResult, *sites: str) -> list[str]:
    """Return the lines about times that sites claim."""
    return [line for line in result.astray if line.startswith(tuple(f"eu-west.{site}," for site in sites))]


def lost_clock_ahead(tables: Lakehouse) -> Story:
    """A record of a clock ahead loses to an observation after it."""
    before, after = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2)
    yield [before.new("back", hour(0)), before.new("away", hour(0)), before.watermark(hour(0), hour(2))]
    stale = [before.advisory(AdvisoryKind.STALE, sender_id, NOW + YEAR, hour(1)) for sender_id in ("back", "away")]
    first = yield [*stale, before.watermark(hour(2), NOW + YEAR)]
    (warned,) = warnings(first, "dub1")
    assert warned == (
        "eu-west.dub1, block nodes: 3 of its records claim a time later than the hub stored them, and count from"
        " then; keep the site's servers on NTP, and look at its agent"
    )
    # The clock is right again, and the store is a new one: of one site now, of the other while its link was down.
    right_at = time.time_ns() // 1000
    cut_off, anew = Block("eu-west", "ams1"), Block("eu-west", "ams1", epoch=2)
    second = yield [
        after.new("back", right_at, rebuilt=True),
        after.watermark(right_at, right_at, rebuilt_at=right_at),
        cut_off.new("cut", hour(0)),
        cut_off.advisory(AdvisoryKind.STALE, "cut", NOW + YEAR, hour(1)),
        anew.new("cut", hour(3), rebuilt=True),
        anew.watermark(hour(3), hour(30), rebuilt_at=hour(3)),
    ]
    ((counted, _),) = (line.split(" of its records", 1) for line in warnings(second, "dub1", "ams1"))
    assert counted == "eu-west.ams1, block nodes: 1"
    # The coverage of the first store ends when the hub stored its last watermark.
    ((covered,),) = tables.rows(
        "SELECT epoch_us(max(archived_at)) FROM watermarks WHERE site = 'dub1' AND rebuilt_at IS NULL"
    )
    lost = [("down", hour(1), covered, "ahead"), ("unknown", covered, right_at, "ahead")]
    for sender_id, silence, back_at in (
        ("back", lost, right_at),
        ("cut", [("down", hour(1), hour(3), "ahead")], hour(3)),
    ):
        assert tables.rows(LIVES.format(f"sender_id = '{sender_id}'")) == [
            ("up", hour(0), hour(1), None),
            *silence,
            ("up", back_at, None, None),
        ]
    # The state of a sender without a later record is unknown from the store's loss on.
    assert [row[0] for row in tables.rows(LIVES.format("sender_id = 'away'"))] == ["up", "down", "unknown"]
    # A watermark covers nothing after the hub stored it.
    known_through = second.position.known_through
    assert tables.rows(f"FROM site_coverage SELECT site WHERE known AND epoch_us(ended_at) > {known_through}") == []


def new_store_of_a_clock_ahead(tables: Lakehouse) -> Story:
    """A new store under a clock ahead knows the senders of its advisories, also before its first watermark."""
    sites = {f"ahead-{seconds}": seconds * SECOND for seconds in (5, 30, 300)}
    before = {site: Block("eu-west", site) for site in sites}
    first, second = ({site: Block("eu-west", site, epoch=epoch) for site in sites} for epoch in (2, 3))
    yield [
        message
        for block in before.values()
        for message in (
            *(block.new(name, hour(0)) for name in ("a", "b", "c", "gone")),
            block.watermark(hour(0), hour(2)),
        )
    ]
    lost_at = time.time_ns() // 1000
    yield [first[site].new("a", lost_at + ahead, rebuilt=True) for site, ahead in sites.items()]
    # Of two incarnations of the new store, the second one's watermark comes first.
    for blocks, name in ((second, "b"), (first, "c")):
        messages = []
        for site, ahead in sites.items():
            at, store = time.time_ns() // 1000 + ahead, lost_at + ahead
            messages.append(blocks[site].new(name, at, rebuilt=True))
            messages.append(blocks[site].watermark(store, at + SECOND, rebuilt_at=store))
        yield messages
    for site in sites:
        states = {sender_id: state for sender_id, state, _ in tables.rows(LAST.format(site))}
        assert states == {"a": "up", "b": "up", "c": "up", "gone": "unknown"}


def lengths_under_a_clock_ahead(tables: Lakehouse) -> Story:
    """Outage and coverage keep their length however far the clock is ahead."""
    aheads = [2 * SECOND, 20 * SECOND, 20 * MINUTE]
    sites = {f"long-{number}": (Block("eu-west", f"long-{number}"), ahead) for number, ahead in enumerate(aheads)}
    now, messages = time.time_ns() // 1000, []
    for block, ahead in sites.values():
        # The agent was blind until it saw the node for the last time.
        last_seen_at = now - 12 * MINUTE + ahead
        messages += [block.new("n1", now - HOUR), block.watermark(now - HOUR, now - 30 * MINUTE)]
        messages += [block.stale("n1", last_seen_at), block.watermark(last_seen_at, now + ahead)]
    result = yield messages
    warned = warnings(result, *sites)
    assert [line.split(",")[0] for line in warned] == [f"eu-west.{site}" for site in sites]
    assert not [line for line in warned if "look back" in line]
    # The hub stored a record a moment after the site made it, and believes no more than that.
    of_sites = "site LIKE 'long-%'"
    outage = "SELECT site, epoch_us(advisory_at - started_at) FROM sender_intervals WHERE state = 'down'"
    assert tables.rows(f"{outage} AND {of_sites} ORDER BY ALL") == [(site, 12 * MINUTE) for site in sites]
    covered = f"SELECT site, max(epoch_us(ended_at - started_at)) FROM site_coverage WHERE known AND {of_sites}"
    covered += f" AND epoch_us(started_at) > {now - 20 * MINUTE} GROUP BY 1 ORDER BY 1"
    assert tables.rows(covered) == [(site, 12 * MINUTE) for site in sites]


def store_of_a_new_host(tables: Lakehouse) -> Story:
    """A sender that the store of a new host has not heard is unknown."""
    block, again = Block("eu-west", "moved1"), Block("eu-west", "moved1", epoch=2)
    yield [
        *(block.new(name, hour(0)) for name in ("stays", "died", "silent")),
        block.stale("silent", hour(1)),
        block.watermark(hour(0), hour(4), store=hour(0)),
    ]
    # The new store reads what the stream still holds, from before the end of the old one's coverage.
    yield [
        again.new("stays", hour(3)),
        again.watermark(hour(3), hour(6), store=hour(5)),
        again.new("moved", hour(3)),
        again.advisory(AdvisoryKind.RETIRED, "moved", hour(5), hour(4)),
    ]
    # The region had held back a record of the old store.
    yield [block.new("moved", hour(6))]
    lost = [(name, "unknown", hour(4)) for name in ("died", "silent")]
    assert tables.rows(LAST.format("moved1")) == sorted([*lost, ("moved", "up", hour(6)), ("stays", "up", hour(3))])


def store_of_a_host_to_which_an_operator_returns(tables: Lakehouse) -> Story:
    """The store of a host to which an operator returns is the last again."""
    first, other, again = (Block("eu-west", "returned1", epoch=epoch) for epoch in (1, 2, 3))
    yield [*(first.new(name, hour(0)) for name in ("stays", "quiet")), first.watermark(hour(0), hour(4), store=hour(0))]
    yield [*(other.new(name, hour(5)) for name in ("stays", "other")), other.watermark(hour(5), hour(7), store=hour(5))]
    unknown = ("quiet", "unknown", hour(4))
    assert tables.rows(LAST.format("returned1")) == [("other", "up", hour(5)), unknown, ("stays", "up", hour(5))]
    # Its stream was created again meanwhile.
    yield [again.new("late", hour(8)), again.watermark(hour(8), hour(9), store=hour(0))]
    assert tables.rows(LAST.format("returned1")) == [
        ("late", "up", hour(8)),
        ("other", "unknown", hour(7)),
        ("quiet", "up", hour(0)),
        ("stays", "up", hour(5)),
    ]


def store_that_was_cut_off(tables: Lakehouse) -> Story:
    """A store that was cut off for its whole life comes before its successor."""
    cut_off, successor = (Block("eu-west", "cut1", epoch=epoch) for epoch in (1, 2))
    told = (successor.new(name, hour(5)) for name in ("stays", "came"))
    yield [*told, successor.watermark(hour(5), hour(7), store=hour(5))]
    told = (cut_off.new(name, hour(0)) for name in ("stays", "died"))
    yield [*told, cut_off.watermark(hour(0), hour(4), store=hour(0))]
    unknown = ("died", "unknown", hour(4))
    assert tables.rows(LAST.format("cut1")) == [("came", "up", hour(5)), unknown, ("stays", "up", hour(5))]
    # The operator returns to its host.
    yield [cut_off.new("late", hour(8)), cut_off.watermark(hour(7), hour(9), store=hour(0))]
    unknown = ("came", "unknown", hour(7))
    found = tables.rows(LAST.format("cut1"))
    assert found == [unknown, ("died", "up", hour(0)), ("late", "up", hour(8)), ("stays", "up", hour(5))]


def long_claims(tables: Lakehouse) -> Story:
    """No body makes the tables as long as its claim."""
    whole, far = Block("eu-west", "whole1"), Block("eu-west", "far1")
    dawn = int(datetime(2000, 1, 2, tzinfo=UTC).timestamp()) * SECOND
    result = yield [
        whole.new("n1", hour(0)),
        whole.watermark(hour(0), hour(9)),
        far.advisory(AdvisoryKind.STALE, "n1", hour(2), 1),
        far.advisory(AdvisoryKind.STALE, "n2", dawn, dawn),
        far.watermark(dawn, hour(9)),
    ]
    (warned,) = warnings(result, "whole1", "far1")
    assert warned.startswith("eu-west.far1, block nodes: 2 look back behind the creation of their stream")
    assert (result.counts.backdated, result.counts.quarantined) == (2, 1)
    assert tables.rows(LIVES.format("site IN ('whole1', 'far1')")) == [
        ("down", hour(2) - 30 * DAY, None, None), ("up", hour(0), None, None),
    ]  # fmt: skip
    ((first,),) = tables.rows("SELECT epoch_us(min(started_at)) FROM site_coverage")
    assert first == hour(9) - 400 * DAY
    assert tables.rows("SELECT count(*) < 5 FROM site_coverage_daily WHERE site = 'whole1'") == [(True,)]


def plain_advisories(tables: Lakehouse) -> Story:
    """Plain advisories report an outage whose timeout never came."""
    told = [("new", 0, 0), ("recover", 60, 20), ("timeout", 120, 90), ("recover", 130, 90), ("expire", 600, 200)]
    for event, at, seen in told:
        body = {
            "protocol": "io.choria.sr.v2.age_advisory", "event_id": f"{event}{at}", "inspect_field": "sender",
            "value": "n1", "age": at - seen, "seen": (hour(0) + seen * MINUTE) // SECOND, "replicator": "plain1",
            "timestamp": (hour(0) + at * MINUTE) // SECOND, "event": event,
        }  # fmt: skip
        # Each in its own run, which continues the open interval.
        yield [Message("choria.node_metadata_advisories", msgspec.json.encode(body))]
    times = "(epoch_us(started_at) - {0}) // {1}, (epoch_us(ended_at) - {0}) // {1}".format(hour(0), MINUTE)
    of_site = "WHERE site = 'plain1'"
    assert tables.rows(f"SELECT state, {times}, basis FROM sender_intervals {of_site} ORDER BY started_at") == [
        ("up", 0, 20, None),
        ("down", 20, 60, "inferred"),
        ("up", 60, 90, None),
        ("down", 90, 130, None),
        ("up", 130, 200, None),
        ("down", 200, 600, "inferred"),
    ]
    assert tables.rows(f"SELECT basis, count(*) FROM outages {of_site} GROUP BY 1 ORDER BY 1 NULLS FIRST") == [
        (None, 1), ("inferred", 2)
    ]  # fmt: skip


STORIES: tuple[Telling, ...] = (
    lost_clock_ahead,
    new_store_of_a_clock_ahead,
    lengths_under_a_clock_ahead,
    store_of_a_new_host,
    store_of_a_host_to_which_an_operator_returns,
    store_that_was_cut_off,
    long_claims,
    plain_advisories,
)


@pytest.fixture(scope="module")
def played(spark: SparkSession, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Played:
    tables = Lakehouse(hub, tmp_path_factory.mktemp("stories") / "lake")
    of_choria = msgspec.structs.replace(tables.settings.lakehouse, choria_region="eu-west")
    tables.settings = msgspec.structs.replace(tables.settings, lakehouse=of_choria)
    return Played(tables, STORIES)


@each_of(STORIES)
def test_tables_agree_with_each_story(played: Played, story: Telling) -> None:
    played.check(story)


def test_live_view_and_a_full_run_agree_with_the_runs_of_all_stories(played: Played) -> None:
    tables = played.tables
    with open_tables(tables.warehouse, tables.settings.lakehouse.catalog) as opened:
        agreed = asyncio.run(compare(tables.settings, opened, say))
    senders = tables.rows("SELECT count(DISTINCT (site, sender_id)) FROM sender_intervals")
    assert (agreed.differences, [(agreed.agree,)]) == ([], senders)
    played.check_full_run()

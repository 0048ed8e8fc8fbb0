"""What a record claims that nothing supports costs its own site, and never the tables their shape."""

import asyncio
import time
from datetime import UTC, datetime

import msgspec

from aggregator.fleet.agreement import compare
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from shared.identifiers import AdvisoryKind
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import Block, Message

NOW = int(time.time()) * SECOND
TODAY = NOW - NOW % DAY
YEAR = 365 * DAY
LIVES = (
    "SELECT state, epoch_us(started_at), epoch_us(ended_at), basis FROM sender_intervals WHERE sender_id = '{0}'"
    " ORDER BY 2"
)


def hour(number: int) -> int:
    return TODAY - 2 * DAY + number * HOUR


def test_what_a_clock_ahead_said_loses_to_what_was_observed_after_it(lakehouse: Lakehouse) -> None:
    hub = lakehouse.hub
    before, after = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2)
    hub.publish([before.new("back", hour(0)), before.new("away", hour(0)), before.watermark(hour(0), hour(2))])
    lakehouse.roll_up()
    for sender_id in ("back", "away"):
        stale = before.advisory(AdvisoryKind.STALE, sender_id, NOW + YEAR, hour(1))
        hub.publish([stale])
    hub.publish([before.watermark(hour(2), NOW + YEAR)])
    first = lakehouse.roll_up()
    assert first.counts.ahead == 3
    assert first.astray == (
        (
            "eu-west.dub1, block nodes: 3 of its records claim a time later than the hub stored them, and count from"
            " then; keep the site's servers on NTP, and look at its agent"
        ),
    )
    # The clock is right again, and the store was begun anew: of one site now, of the other while its link was down.
    right_at = time.time_ns() // 1000
    hub.publish([after.new("back", right_at, rebuilt=True), after.watermark(right_at, right_at, rebuilt_at=right_at)])
    cut_off, anew = Block("eu-west", "ams1"), Block("eu-west", "ams1", epoch=2)
    hub.publish([cut_off.new("cut", hour(0)), cut_off.advisory(AdvisoryKind.STALE, "cut", NOW + YEAR, hour(1))])
    hub.publish([anew.new("cut", hour(3), rebuilt=True), anew.watermark(hour(3), hour(30), rebuilt_at=hour(3))])
    second = lakehouse.roll_up()
    assert second.counts.ahead == 1
    # What the first store knew ends with its coverage, that is when the hub stored its last watermark.
    ((covered,),) = lakehouse.rows(
        "SELECT epoch_us(max(archived_at)) FROM watermarks WHERE site = 'dub1' AND rebuilt_at IS NULL"
    )
    lost = [("down", hour(1), covered, "ahead"), ("unknown", covered, right_at, "ahead")]
    for sender_id, silence, back_at in (
        ("back", lost, right_at),
        ("cut", [("down", hour(1), hour(3), "ahead")], hour(3)),
    ):
        assert lakehouse.rows(LIVES.format(sender_id)) == [
            ("up", hour(0), hour(1), None),
            *silence,
            ("up", back_at, None, None),
        ]
    # Of whom nothing was heard since nobody knows anything, from the store's loss on.
    assert [row[0] for row in lakehouse.rows(LIVES.format("away"))] == ["up", "down", "unknown"]
    # A watermark vouches for nothing after the hub stored it: nobody watches on.
    known_through = second.position.known_through
    beyond = f"SELECT * FROM site_coverage WHERE known AND epoch_us(ended_at) > {known_through}"
    assert lakehouse.rows(beyond) == []
    everything = lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")
    lakehouse.roll_up(RollupRequest(full=True))
    assert everything == lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")


def test_of_a_clock_ahead_a_new_store_knows_whom_it_has_told_of_also_before_its_first_watermark(
    lakehouse: Lakehouse,
) -> None:
    hub, sites = lakehouse.hub, {f"ahead-{seconds}": seconds * SECOND for seconds in (5, 30, 300)}
    before = {site: Block("eu-west", site) for site in sites}
    first, second = ({site: Block("eu-west", site, epoch=epoch) for site in sites} for epoch in (2, 3))
    for block in before.values():
        hub.publish(block.new(name, hour(0)) for name in ("a", "b", "c", "gone"))
        hub.publish([block.watermark(hour(0), hour(2))])
    lakehouse.roll_up()
    lost_at = time.time_ns() // 1000
    for site, ahead in sites.items():
        hub.publish([first[site].new("a", lost_at + ahead, rebuilt=True)])
    lakehouse.roll_up()
    # Of two incarnations of the new store, the second one's watermark comes first.
    for blocks, name in ((second, "b"), (first, "c")):
        for site, ahead in sites.items():
            at, store = time.time_ns() // 1000 + ahead, lost_at + ahead
            told = blocks[site].new(name, at, rebuilt=True)
            hub.publish([told, blocks[site].watermark(store, at + SECOND, rebuilt_at=store)])
        lakehouse.roll_up()
    last = "SELECT site, sender_id, arg_max(state, started_at) FROM sender_intervals GROUP BY ALL ORDER BY ALL"
    states = {"a": "up", "b": "up", "c": "up", "gone": "unknown"}
    assert lakehouse.rows(last) == [(site, *each) for site in sorted(sites) for each in states.items()]
    everything = lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")
    assert agreed(lakehouse) == 12
    lakehouse.roll_up(RollupRequest(full=True))
    assert everything == lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")


def test_outage_and_coverage_keep_their_length_however_far_the_clock_is_ahead(lakehouse: Lakehouse) -> None:
    aheads = [2 * SECOND, 20 * SECOND, 20 * MINUTE]
    sites = {f"site{number}": (Block("eu-west", f"site{number}"), ahead) for number, ahead in enumerate(aheads)}
    now = time.time_ns() // 1000
    for block, ahead in sites.values():
        # The agent was blind until it saw the node for the last time.
        last_seen_at = now - 12 * MINUTE + ahead
        hub_time = block.new("n1", now - HOUR), block.watermark(now - HOUR, now - 30 * MINUTE)
        lakehouse.hub.publish([*hub_time, block.stale("n1", last_seen_at), block.watermark(last_seen_at, now + ahead)])
    result = lakehouse.roll_up()
    assert [line.split(",")[0] for line in result.astray] == [f"eu-west.{site}" for site in sites]
    assert not [line for line in result.astray if "look back" in line]
    # The hub stored a record a moment after the site made it, and believes no more than that.
    outage = "SELECT site, epoch_us(advisory_at - started_at) FROM sender_intervals WHERE state = 'down' ORDER BY ALL"
    assert lakehouse.rows(outage) == [(site, 12 * MINUTE) for site in sites]
    covered = "SELECT site, max(epoch_us(ended_at - started_at)) FROM site_coverage WHERE known"
    covered += f" AND epoch_us(started_at) > {now - 20 * MINUTE} GROUP BY 1 ORDER BY 1"
    assert lakehouse.rows(covered) == [(site, 12 * MINUTE) for site in sites]
    assert agreed(lakehouse) == len(sites)


def test_sender_that_the_store_of_a_new_host_has_not_heard_is_unknown(lakehouse: Lakehouse) -> None:
    block, again = Block("eu-west", "dub1"), Block("eu-west", "dub1", epoch=2)
    names = ("stays", "died", "silent")
    lakehouse.hub.publish(block.new(name, hour(0)) for name in names)
    lakehouse.hub.publish([block.stale("silent", hour(1)), block.watermark(hour(0), hour(4), store=hour(0))])
    lakehouse.roll_up()
    # The new store reads what the stream still holds, from before the end of the old one's coverage.
    lakehouse.hub.publish([again.new("stays", hour(3)), again.watermark(hour(3), hour(6), store=hour(5))])
    retired = again.advisory(AdvisoryKind.RETIRED, "moved", hour(5), hour(4))
    lakehouse.hub.publish([again.new("moved", hour(3)), retired])
    lakehouse.roll_up()
    # The region had held back a record of the old store.
    lakehouse.hub.publish([block.new("moved", hour(6))])
    lakehouse.roll_up()
    last = "SELECT sender_id, arg_max(state, started_at), epoch_us(max(started_at)) FROM sender_intervals GROUP BY 1"
    lost = [(name, "unknown", hour(4)) for name in ("died", "silent")]
    states = sorted([*lost, ("moved", "up", hour(6)), ("stays", "up", hour(3))])
    assert lakehouse.rows(last + " ORDER BY 1") == states
    everything = lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")
    assert agreed(lakehouse) == len(states)
    lakehouse.roll_up(RollupRequest(full=True))
    assert everything == lakehouse.rows("SELECT * FROM sender_intervals ORDER BY ALL")


def test_store_of_a_host_to_which_an_operator_returns_is_the_last_again(lakehouse: Lakehouse) -> None:
    first, other, again = (Block("eu-west", "dub1", epoch=epoch) for epoch in (1, 2, 3))
    lakehouse.hub.publish(first.new(name, hour(0)) for name in ("stays", "quiet"))
    lakehouse.hub.publish([first.watermark(hour(0), hour(4), store=hour(0))])
    lakehouse.roll_up()
    lakehouse.hub.publish(other.new(name, hour(5)) for name in ("stays", "other"))
    lakehouse.hub.publish([other.watermark(hour(5), hour(7), store=hour(5))])
    lakehouse.roll_up()
    states = "SELECT sender_id, state, epoch_us(started_at) FROM sender_intervals WHERE ended_at IS NULL ORDER BY 1"
    unknown = ("quiet", "unknown", hour(4))
    assert lakehouse.rows(states) == [("other", "up", hour(5)), unknown, ("stays", "up", hour(5))]
    # Its stream was created again meanwhile.
    lakehouse.hub.publish([again.new("late", hour(8)), again.watermark(hour(8), hour(9), store=hour(0))])
    lakehouse.roll_up()
    found = lakehouse.rows(states)
    assert found == [
        ("late", "up", hour(8)),
        ("other", "unknown", hour(7)),
        ("quiet", "up", hour(0)),
        ("stays", "up", hour(5)),
    ]
    assert agreed(lakehouse) == len(found)
    lakehouse.roll_up(RollupRequest(full=True))
    assert lakehouse.rows(states) == found


def test_store_that_was_cut_off_for_its_whole_life_comes_before_its_successor(lakehouse: Lakehouse) -> None:
    cut_off, successor = (Block("eu-west", "dub1", epoch=epoch) for epoch in (1, 2))
    lakehouse.hub.publish(successor.new(name, hour(5)) for name in ("stays", "came"))
    lakehouse.hub.publish([successor.watermark(hour(5), hour(7), store=hour(5))])
    lakehouse.roll_up()
    lakehouse.hub.publish(cut_off.new(name, hour(0)) for name in ("stays", "died"))
    lakehouse.hub.publish([cut_off.watermark(hour(0), hour(4), store=hour(0))])
    lakehouse.roll_up()
    states = "SELECT sender_id, state, epoch_us(started_at) FROM sender_intervals WHERE ended_at IS NULL ORDER BY 1"
    unknown = ("died", "unknown", hour(4))
    assert lakehouse.rows(states) == [("came", "up", hour(5)), unknown, ("stays", "up", hour(5))]
    # The operator returns to its host.
    lakehouse.hub.publish([cut_off.new("late", hour(8)), cut_off.watermark(hour(7), hour(9), store=hour(0))])
    lakehouse.roll_up()
    found = lakehouse.rows(states)
    unknown = ("came", "unknown", hour(7))
    assert found == [unknown, ("died", "up", hour(0)), ("late", "up", hour(8)), ("stays", "up", hour(5))]
    assert agreed(lakehouse) == len(found)
    lakehouse.roll_up(RollupRequest(full=True))
    assert lakehouse.rows(states) == found


def agreed(lakehouse: Lakehouse) -> int:
    """Count the senders of whom the live state says the same, and that is all of them."""
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        found = asyncio.run(compare(lakehouse.settings, tables, say))
    assert found.differences == []
    return found.agree


def test_no_body_makes_the_tables_as_long_as_its_claim(lakehouse: Lakehouse) -> None:
    hub, dub1, ams1 = lakehouse.hub, Block("eu-west", "dub1"), Block("eu-west", "ams1")
    dawn = int(datetime(2000, 1, 2, tzinfo=UTC).timestamp()) * SECOND
    hub.publish(
        [
            dub1.new("n1", hour(0)), dub1.watermark(hour(0), hour(9)),
            ams1.advisory(AdvisoryKind.STALE, "n1", hour(2), 1),
            ams1.advisory(AdvisoryKind.STALE, "n2", dawn, dawn),
            ams1.watermark(dawn, hour(9)),
        ]
    )  # fmt: skip
    result = lakehouse.roll_up()
    assert (result.counts.backdated, result.counts.quarantined) == (2, 1)
    assert result.astray[0].startswith("eu-west.ams1, block nodes: 2 look back behind the creation of their stream")
    assert lakehouse.rows(LIVES.format("n1") + ", 1") == [
        ("down", hour(2) - 30 * DAY, None, None), ("up", hour(0), None, None),
    ]  # fmt: skip
    ((first,),) = lakehouse.rows("SELECT epoch_us(min(started_at)) FROM site_coverage")
    assert first == hour(9) - 400 * DAY
    of_dub1 = "SELECT count(*) < 5 FROM site_coverage_daily WHERE site = 'dub1'"
    assert lakehouse.rows(of_dub1) == [(True,)]


def test_plain_advisories_tell_of_an_outage_whose_timeout_never_came(lakehouse: Lakehouse) -> None:
    said = [("new", 0, 0), ("recover", 60, 20), ("timeout", 120, 90), ("recover", 130, 90), ("expire", 600, 200)]

    def plain(event: str, at: int, seen: int) -> Message:
        body = {
            "protocol": "io.choria.sr.v2.age_advisory", "event_id": f"{event}{at}", "inspect_field": "sender",
            "value": "n1", "age": at - seen, "seen": (hour(0) + seen * MINUTE) // SECOND, "replicator": "dub1",
            "timestamp": (hour(0) + at * MINUTE) // SECOND, "event": event,
        }  # fmt: skip
        return Message("choria.node_metadata_advisories", msgspec.json.encode(body))

    changed = msgspec.structs.replace(lakehouse.settings.lakehouse, choria_region="eu-west")
    lakehouse.settings = msgspec.structs.replace(lakehouse.settings, lakehouse=changed)
    for each in said:
        # Each in a run of its own: what goes on is gone on from.
        lakehouse.hub.publish([plain(*each)])
        lakehouse.roll_up()
    times = "(epoch_us(started_at) - {0}) // {1}, (epoch_us(ended_at) - {0}) // {1}".format(hour(0), MINUTE)
    assert lakehouse.rows(f"SELECT state, {times}, basis FROM sender_intervals ORDER BY started_at") == [
        ("up", 0, 20, None),
        ("down", 20, 60, "inferred"),
        ("up", 60, 90, None),
        ("down", 90, 130, None),
        ("up", 130, 200, None),
        ("down", 200, 600, "inferred"),
    ]
    assert lakehouse.rows("SELECT basis, count(*) FROM outages GROUP BY 1 ORDER BY 1 NULLS FIRST") == [
        (None, 1), ("inferred", 2)
    ]  # fmt: skip

"""What agents say against each other is unknown in the tables, counted once, and said in one line."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from aggregator.archive.contests import QUIET
from aggregator.lakehouse.derive import changed_senders
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.lakehouse.tables.schemas import DERIVED
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant
from tests.lakehouse.conftest import Lakehouse
from tests.support.lakehouse.hub import Block, Message

TODAY = int(time.time()) * SECOND // DAY * DAY
FIRST = TODAY - 2 * DAY
"""Midnight of the first of two whole days."""
N2_AT_FIRST = 7 * HOUR, HOUR - QUIET, 16 * HOUR + QUIET, 0


def hour(number: int) -> int:
    return FIRST + number * HOUR


def times(lakehouse: Lakehouse, site: str) -> dict[object, tuple[object, ...]]:
    """Give up, down, unknown and absent, in microseconds, of each sender of a site on the first day."""
    day = datetime.fromtimestamp(FIRST // SECOND, tz=UTC).date()
    rows = lakehouse.rows(
        "SELECT sender_id, up_us, down_us, unknown_us, absent_us FROM sender_availability_daily"
        f" WHERE site = '{site}' AND day = '{day}'"
    )
    return {row[0]: row[1:] for row in rows}


def coverage(lakehouse: Lakehouse, site: str) -> list[tuple[object, ...]]:
    rows = lakehouse.rows(
        f"SELECT (epoch_us(started_at) - {FIRST}) // {MINUTE}, cause FROM site_coverage"
        f" WHERE site = '{site}' AND epoch_us(started_at) < {FIRST + DAY} ORDER BY started_at"
    )
    return [tuple(row) for row in rows]


def tables(lakehouse: Lakehouse) -> dict[str, list[tuple[object, ...]]]:
    return {table.name: sorted(lakehouse.rows(f"SELECT * FROM {table.name}"), key=repr) for table in DERIVED}


def two_agents(first: Block, second: Block) -> list[Message]:
    """Have two agents speak for one block; the second believes that n1 is down, and leaves."""
    return [
        first.new("n1", hour(0)), first.new("n2", hour(0)), first.watermark(hour(0), hour(5)),
        second.new("n1", hour(6)), second.watermark(hour(6), hour(7)),
        first.watermark(hour(0), hour(8)),
        second.stale("n1", hour(8)), second.watermark(hour(6), hour(9)),
        first.stale("n2", hour(9)), first.watermark(hour(0), hour(10)),
    ]  # fmt: skip


def two_sites(leaving: Block, staying: Block) -> list[Message]:
    """Have two sites have one name, of which the one that began later stays."""
    return [
        leaving.new("gone", hour(0)), leaving.new("both", hour(0)), leaving.watermark(hour(0), hour(6)),
        staying.new("both", hour(6)), staying.new("came", hour(6)), staying.watermark(hour(6), hour(7)),
        leaving.stale("both", hour(7)), leaving.watermark(hour(0), hour(9)),
        staying.watermark(hour(6), hour(24)),
    ]  # fmt: skip


def put_back(store: Block, older: Block) -> list[Message]:
    """Put an older copy of a store back, and lose its third word: that the first life's is there hides nothing."""
    said = [
        store.new("n1", hour(0)), store.new("n2", hour(0)), store.watermark(hour(0), hour(5)),
        store.stale("n1", hour(5)), store.watermark(hour(0), hour(6)),
        older.watermark(hour(0), hour(7)),
    ]  # fmt: skip
    older.stale("n2", hour(8))
    return [*said, older.watermark(hour(0), hour(24))]


def seen_copy(store: Block, older: Block) -> list[Message]:
    """Have an agent see that its store is an older copy: under a new number it says again what it had said."""
    said = [store.new("n1", hour(0)), store.stale("n1", hour(2)), store.watermark(hour(0), hour(3))]
    older.knows(store)
    said += [store.recovered("n1", hour(4)), store.watermark(hour(0), hour(9))]
    said += [older.recovered("n1", hour(4)), older.watermark(hour(4), hour(6)), older.watermark(hour(4), hour(24))]
    return said


def pair(one: Block, other: Block) -> list[Message]:
    """Have two members of a pair take turns, and an operator retire a sender at the instant at which it was new."""
    said = [one.new("n1", hour(0)), one.new("brief", hour(2)), one.retired_by_operator("brief", hour(2), hour(2))]
    other.ordinal = one.ordinal
    return [*said, one.watermark(hour(0), hour(4)), other.watermark(hour(0), hour(8)), one.watermark(hour(0), hour(24))]


def test_agents_that_contradict_each_other_are_named_and_their_time_is_unknown(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Block("eu-west", "dub1")
    second = Block("eu-west", "dub1", agent="dub1-b", boot_id="other", epoch=2)
    lakehouse.hub.publish(
        [
            *two_agents(first, second),
            *two_sites(Block("eu-west", "ams1"), Block("eu-west", "ams1", agent="ams1-z", epoch=2)),
            *put_back(Block("eu-west", "par1", boot_id="before"), Block("eu-west", "par1", boot_id="after", ordinal=2)),
            *seen_copy(Block("eu-west", "ber1", boot_id="before"), Block("eu-west", "ber1", boot_id="after", epoch=2)),
            *pair(*(Block("eu-west", "lon1", agent=f"lon1-{name}", boot_id=name) for name in "ab")),
        ]
    )
    result = lakehouse.roll_up()
    assert coverage(lakehouse, "dub1") == [(0, "observed"), (420, "contested"), (550, "observed"), (600, "unobserved")]
    assert coverage(lakehouse, "ams1") == [(0, "observed"), (420, "contested"), (550, "observed")]
    assert coverage(lakehouse, "par1") == [(0, "observed"), (360, "put_back")]
    assert coverage(lakehouse, "lon1") == coverage(lakehouse, "ber1") == [(0, "observed")]
    # Of dub1 the one that stayed is believed: n1 never fell silent. Of ams1, whoever the other never heard is unknown.
    assert times(lakehouse, "dub1") == {"n1": (8 * HOUR - QUIET, 0, 16 * HOUR + QUIET, 0), "n2": N2_AT_FIRST}
    assert times(lakehouse, "ams1") == {
        "gone": (6 * HOUR, 0, 18 * HOUR, 0),
        "both": (22 * HOUR - QUIET, 0, 2 * HOUR + QUIET, 0),
        "came": (16 * HOUR - QUIET, 0, 2 * HOUR + QUIET, 6 * HOUR),
    }
    assert times(lakehouse, "par1") == {"n1": (5 * HOUR, HOUR, 18 * HOUR, 0), "n2": (6 * HOUR, 0, 18 * HOUR, 0)}
    assert times(lakehouse, "ber1") == {"n1": (22 * HOUR, 2 * HOUR, 0, 0)}
    assert times(lakehouse, "lon1") == {"n1": (24 * HOUR, 0, 0, 0)}
    assert lakehouse.rows("SELECT count(*), count(DISTINCT event_id) FROM advisories WHERE site = 'ber1'") == [(4, 3)]
    check_that_each_is_named(result.contested)

    # Known time goes on by itself, and of what is over no line is said any more.
    fresh = Block("eu-west", "par1", epoch=9, boot_id="anew")
    known_again = [first.recovered("n2", hour(12)), first.watermark(hour(0), hour(24))]
    begun_anew = [fresh.new("n1", hour(20), rebuilt=True), fresh.watermark(hour(20), hour(24), rebuilt_at=hour(20))]
    lakehouse.hub.publish([*known_again, *begun_anew])
    assert lakehouse.roll_up().contested == ()
    assert coverage(lakehouse, "dub1") == [(0, "observed"), (420, "contested"), (550, "observed")]
    assert coverage(lakehouse, "par1") == [(0, "observed"), (360, "put_back"), (1200, "observed")]
    assert times(lakehouse, "dub1")["n2"] == (19 * HOUR, 3 * HOUR - QUIET, 2 * HOUR + QUIET, 0)
    assert times(lakehouse, "par1") == {"n1": (9 * HOUR, HOUR, 14 * HOUR, 0), "n2": (6 * HOUR, 0, 18 * HOUR, 0)}
    # Who is not believed may go on: no history is read because of that.
    lakehouse.hub.publish([first.stale("n1", hour(23)), second.new("n2", hour(23)), second.new("n3", hour(23))])
    with monkeypatch.context() as in_order:
        in_order.delattr(changed_senders, "partly_recomputed")
        lakehouse.roll_up()
    found = tables(lakehouse)
    lakehouse.roll_up(RollupRequest(full=True))
    assert found == tables(lakehouse)


def check_that_each_is_named(lines: Sequence[str]) -> None:
    ams1, dub1, par1 = lines
    assert ams1.startswith(
        "eu-west.ams1, block nodes: agents ams1-a (boot boot) of incarnation 1-1 and ams1-z (boot boot)"
    )
    assert dub1.startswith(
        "eu-west.dub1, block nodes: agents dub1-a (boot boot) of incarnation 1-1 and dub1-b (boot other)"
    )
    until = format_instant(hour(9) + QUIET)
    assert (
        f"speak at once and are no pair: from {format_instant(hour(7))} to {until} is unknown (contested); end" in dub1
    )
    assert par1.startswith(
        "eu-west.par1, block nodes: par1-a (boot before) and par1-a (boot after) count the advisories of"
    )
    assert f"from {format_instant(hour(7))} on all is unknown (put_back)" in par1

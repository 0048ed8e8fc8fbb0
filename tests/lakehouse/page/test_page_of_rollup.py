"""The page and the queries over tables that Spark wrote."""

import json
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime

from aggregator.lakehouse import rollup
from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.period import Grid
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.spark import effort
from aggregator.lakehouse.tables.schemas import TABLES, VIEWS
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant
from shared.policy import DeclareMaintenance, Scope
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.query.test_analysis_views import check_views_against_days, enveloped
from tests.support.lakehouse.hub import Block, Message, said

TODAY = int(time.time()) * SECOND // DAY * DAY
FIRST, SECOND_DAY, END = TODAY - 2 * DAY, TODAY - DAY, TODAY
RACK = [f"dub1-r1-n{number}" for number in range(5)]


def outage(block: Block, sender: str, begin: int, end: int) -> Iterator[Message]:
    yield block.stale(sender, begin)
    yield block.recovered(sender, end)


def maintenance(revision: int, scope: Scope, hours: tuple[int, int], senders: tuple[str, ...] = ()) -> Message:
    begin, end = (FIRST + hour * HOUR for hour in hours)
    return said(scope, revision, FIRST, DeclareMaintenance(begin, end, "new disk", senders))


def history() -> Iterator[Message]:
    """Give two sites: an incident, a sender that flaps, blind agents, and maintenance by name and by region."""
    dub1, nyc1, racks = Block("eu-west", "dub1"), Block("us-east", "nyc1"), Block("us-east", "nyc1", "racks")
    yield from (dub1.new(name, FIRST + 6 * HOUR) for name in RACK)
    yield dub1.watermark(FIRST + 5 * HOUR, FIRST + 8 * HOUR)
    yield from (dub1.stale(name, FIRST + 9 * HOUR + number * MINUTE) for number, name in enumerate(RACK))
    yield from (dub1.recovered(name, FIRST + 11 * HOUR + number * MINUTE) for number, name in enumerate(RACK))
    for begin, end in ((780, 800), (820, 835), (850, 890)):
        yield from outage(dub1, RACK[4], FIRST + begin * MINUTE, FIRST + end * MINUTE)
    yield dub1.watermark(FIRST + 5 * HOUR, SECOND_DAY)
    yield dub1.watermark(SECOND_DAY + 2 * HOUR, END)
    yield nyc1.new("n1", FIRST + 7 * HOUR)
    yield nyc1.watermark(FIRST + 7 * HOUR, FIRST + 20 * HOUR)
    yield nyc1.stale("n1", FIRST + 21 * HOUR)
    yield nyc1.watermark(FIRST + 7 * HOUR, END)
    yield racks.new("n1", FIRST + 7 * HOUR)
    yield racks.watermark(FIRST + 7 * HOUR, FIRST + 20 * HOUR)
    yield racks.watermark(SECOND_DAY + 6 * HOUR, END)
    yield maintenance(1, Scope("us-east"), (19, 22))
    yield maintenance(2, Scope("eu-west", "dub1"), (8, 10), (RACK[0],))
    yield maintenance(3, Scope("eu-west", "dub1"), (14, 15), (RACK[4],))
    # On a day that it was up throughout.
    yield maintenance(4, Scope("eu-west", "dub1"), (30, 31), (RACK[1],))
    said_in_choria: dict[str, object] = {"content": {"facts": {"os": "el9", "load": 0.25}, "classes": ["base", "web"]}}
    bodies = {"facts": {"os": "el8", "named": 'Zo\u00eb "z"'}}, json.loads(enveloped(said_in_choria))
    for hour, body in enumerate(bodies, start=6):
        yield dub1.registration(json.dumps({"sender": RACK[0], **body}).encode(), hour, FIRST + hour * HOUR)


def test_what_spark_wrote_is_queried_and_shown_without_it(lakehouse: Lakehouse) -> None:
    lakehouse.hub.publish(history())
    lakehouse.roll_up()
    check_views_against_days(lakehouse.warehouse)
    answers = {}
    with open_tables(lakehouse.warehouse) as tables:
        for table in (*TABLES, *VIEWS):
            assert tables.answer(f"SELECT * FROM muster.{table.name} LIMIT 0").names == table.column_names
        for view in VIEWS:
            query = f"SELECT * FROM muster.{view.name} ORDER BY {', '.join(view.identity)}"
            answers[query] = tables.rows(query)
        figures = read_figures(tables, Choice(format_instant(FIRST), format_instant(END)), 5 * MINUTE)
        hours = tables.rows(
            "SELECT site, epoch_us(hour), up_us, down_us, unknown_us, maintenance_us FROM site_availability_hourly"
            " WHERE epoch_us(hour) < ?",
            [END],
        )
        (times,) = tables.rows(
            "SELECT sum(up_us), sum(down_us), sum(unknown_us), sum(maintenance_us) FROM sender_availability_daily"
            " WHERE epoch_us(day) < ?",
            [END],
        )
        # Both blocks of the site have it.
        assert tables.rows("SELECT DISTINCT sender_count FROM site_availability_daily WHERE site = 'nyc1'") == [(2,)]
    assert figures.heat == Grid(HOUR)
    assert {(cell.name, cell.started_at): cell.times for cell in figures.cells if any(cell.times)} == {
        (site, at): SenderTimes(*map(int, times)) for site, at, *times in hours
    }
    assert figures.times == SenderTimes(*map(int, times))
    assert figures.times.maintenance == 10 * HOUR
    page = render(figures)
    assert "dub1: all 5 senders" in page
    assert "still down at the end" in page

    # Every view says in Spark what it says without.
    spark = rollup.start_session(lakehouse.settings, say)
    effort.fit(spark, (), 0, {})
    for query, rows in answers.items():
        assert rows, query
        assert [in_utc(row) for row in spark.sql(query).collect()] == rows, query


def in_utc(row: Iterable[object]) -> tuple[object, ...]:
    """Give instants as DuckDB has them: PySpark's are in this machine's own time, and do not say so."""
    return tuple(value.astimezone(UTC) if isinstance(value, datetime) else value for value in row)

"""The page and the queries over tables that Spark wrote."""

import time

from aggregator.lakehouse.page.document import render
from aggregator.lakehouse.page.figures import SenderTimes
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.period import Grid
from aggregator.lakehouse.page.reading import read_figures
from aggregator.lakehouse.query import open_tables
from aggregator.lakehouse.schemas import TABLES, VIEWS
from shared.instants import DAY, HOUR, MINUTE, SECOND, format_instant
from shared.policy import DeclareMaintenance, Scope
from tests.lakehouse.conftest import Lakehouse
from tests.support.hub import Block, said

TODAY = int(time.time()) * SECOND // DAY * DAY
FIRST = TODAY - 2 * DAY


def test_what_spark_wrote_is_queried_and_shown_without_it(lakehouse: Lakehouse) -> None:
    dub1, nyc1 = Block("eu-west", "dub1"), Block("us-east", "nyc1")
    rack = [f"dub1-r1-n{number}" for number in range(5)]
    lakehouse.hub.publish(
        [
            *(dub1.new(name, FIRST + 6 * HOUR) for name in rack),
            dub1.watermark(FIRST + 5 * HOUR, FIRST + 8 * HOUR),
            *(dub1.stale(name, FIRST + 9 * HOUR + number * MINUTE) for number, name in enumerate(rack)),
            *(dub1.recovered(name, FIRST + 11 * HOUR + number * MINUTE) for number, name in enumerate(rack)),
            dub1.watermark(FIRST + 5 * HOUR, FIRST + DAY),
            dub1.watermark(FIRST + DAY + 2 * HOUR, TODAY),
            nyc1.new("n1", FIRST + 7 * HOUR),
            nyc1.watermark(FIRST + 7 * HOUR, FIRST + 20 * HOUR),
            nyc1.stale("n1", FIRST + 21 * HOUR),
            nyc1.watermark(FIRST + 7 * HOUR, TODAY),
            said(Scope("us-east"), 1, FIRST, DeclareMaintenance(FIRST + 19 * HOUR, FIRST + 22 * HOUR, "new switch")),
            said(
                Scope("eu-west", "dub1"),
                2,
                FIRST,
                DeclareMaintenance(FIRST + 8 * HOUR, FIRST + 10 * HOUR, "new disk", (rack[0],)),
            ),
        ]
    )
    lakehouse.roll_up()
    with open_tables(lakehouse.warehouse) as tables:
        for table in (*TABLES, *VIEWS):
            assert tables.answer(f"SELECT * FROM muster.{table.name} LIMIT 0").names == table.column_names
        figures = read_figures(tables, Choice(format_instant(FIRST), format_instant(FIRST + 2 * DAY)), 5 * MINUTE)
        hours = tables.rows(
            "SELECT site, epoch_us(hour), up_us, down_us, unknown_us, maintenance_us FROM site_availability_hourly"
            " WHERE epoch_us(hour) < ?",
            [FIRST + 2 * DAY],
        )
        (times,) = tables.rows(
            "SELECT sum(up_us), sum(down_us), sum(unknown_us), sum(maintenance_us) FROM sender_availability_daily"
            " WHERE epoch_us(day) < ?",
            [FIRST + 2 * DAY],
        )
    assert figures.heat == Grid(HOUR)
    assert {(cell.name, cell.started_at): cell.times for cell in figures.cells if any(cell.times)} == {
        (site, at): SenderTimes(*map(int, times)) for site, at, *times in hours
    }
    assert figures.times == SenderTimes(*map(int, times))
    assert figures.times.maintenance == 5 * HOUR
    page = render(figures)
    assert "dub1: all 5 senders" in page
    assert "still down at the end" in page

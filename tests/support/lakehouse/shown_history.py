"""Make the tables of a history, and read what the page shows of it."""

from pathlib import Path
from typing import Any

from aggregator.lakehouse.page.figures import PageFigures
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import open_tables
from tests.support.lakehouse.histories import History
from tests.support.lakehouse.small_lakehouse import SmallLakehouse


class Shown:
    """A history, the tables that a rollup makes of it, and where they are."""

    def __init__(self, directory: Path, history: History) -> None:
        self.history = history
        self.lakehouse = SmallLakehouse(directory / "tables")
        self.lakehouse.roll_up(
            history.intervals,
            history.coverage,
            history.known_through,
            stale_after=history.stale_after,
            registration_interval=history.registration_interval,
        )
        self.config = directory / "aggregator.toml"
        interval = f"{history.registration_interval // 1000}ms"
        self.config.write_text(
            '[hub]\nservers = ["nats://127.0.0.1:1"]\n'
            f'[lakehouse]\npath = "tables"\nregistration_interval = "{interval}"\n'
        )

    def figures(self, since: str | None = None, until: str | None = None, **chosen: Any) -> PageFigures:
        with open_tables(self.lakehouse.warehouse) as tables:
            return read_figures(tables, Choice(since, until, **chosen), self.history.registration_interval)

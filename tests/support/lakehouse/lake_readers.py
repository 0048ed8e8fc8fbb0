"""Read two tables again and again, each way that needs no Java, while somebody else writes and keeps them up."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import polars as pl
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from aggregator.lakehouse.query.engine import open_tables
from tests.support.lakehouse.quick_runs import APPENDED

Answer = tuple[int, ...]
_DEADLINE = 300.0


class Readers:
    """Give the answers that readers got, by the way that they asked; in each, all figures count the runs."""

    def __init__(self, warehouse: Path) -> None:
        self._warehouse = warehouse
        self.answers: dict[str, list[Answer]] = {"sql": [], "pyiceberg": [], "polars": []}
        self._ended = threading.Event()
        self._asked: list[Future[None]] = []

    def begin(self, threads: ThreadPoolExecutor) -> None:
        """Ask in threads, each way in its own."""
        self._asked = [threads.submit(self._read, way) for way in self.asking()]

    def asking(self) -> dict[str, Callable[[], Answer]]:
        """Give the ways to ask."""
        return {"sql": self._by_sql, "pyiceberg": self._by_pyiceberg, "polars": self._by_polars}

    def wait_for_another(self) -> None:
        """Wait until each way has begun and ended a question; raise what failed one."""
        ends_at = time.monotonic() + _DEADLINE
        wanted = {way: len(answers) + 2 for way, answers in self.answers.items()}
        while any(len(self.answers[way]) < count for way, count in wanted.items()):
            for each in self._asked:
                if each.done():
                    each.result()
            assert time.monotonic() < ends_at, f"a reader no longer answers: {self.answers}"
            time.sleep(0.02)

    def end(self) -> None:
        """Ask no more."""
        self._ended.set()

    def _read(self, way: str) -> None:
        while not self._ended.is_set():
            self.answers[way].append(self.asking()[way]())

    def _by_sql(self) -> Answer:
        with open_tables(self._warehouse) as tables:
            query = "SELECT count(*), count(DISTINCT sender_id), (SELECT max(window_us) FROM site_coverage_daily)"
            return tuple(tables.rows(f"{query} FROM {APPENDED.name}")[0])

    def _by_pyiceberg(self) -> Answer:
        senders = self._load().scan(selected_fields=("sender_id",)).to_arrow()["sender_id"]
        return len(senders), len(senders.unique())

    def _by_polars(self) -> Answer:
        senders = pl.scan_iceberg(self._load()).select("sender_id").collect()["sender_id"]
        return len(senders), senders.n_unique()

    def _load(self) -> Table:
        catalog = SqlCatalog("lake", uri=f"sqlite:///{self._warehouse}/catalog.db", init_catalog_tables="false")
        return catalog.load_table(APPENDED.identifier)


@contextmanager
def readers_at_work(warehouse: Path) -> Iterator[Readers]:
    """Have everybody read before, meanwhile and after; raise what failed any of them."""
    readers = Readers(warehouse)
    with ThreadPoolExecutor() as threads:
        readers.begin(threads)
        try:
            readers.wait_for_another()
            yield readers
            readers.wait_for_another()
        finally:
            readers.end()

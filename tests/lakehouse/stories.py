"""Stories of sites that share an archive: one run reads a step of every story, for a run costs far more than its rows.

A story is a generator: it yields the messages of each step, takes the result of the run that reads them, and checks
the tables. Each has its own sites.
"""

from collections.abc import Callable, Generator, Iterable, Sequence

import pytest

from aggregator.lakehouse.rollup import RollupRequest, RollupResult
from aggregator.lakehouse.tables.schemas import DERIVED
from tests.lakehouse.conftest import Lakehouse
from tests.support.lakehouse.hub import Message

Story = Generator[Iterable[Message], RollupResult, None]
Telling = Callable[[Lakehouse], Story]
"""A function that starts a story about tables."""


class Played:
    """The tables after all stories, and the failure of each story that failed."""

    def __init__(self, tables: Lakehouse, stories: Sequence[Telling]) -> None:
        self.tables = tables
        self._failures: dict[Telling, AssertionError] = {}
        going_on = {telling: telling(tables) for telling in stories}
        result: RollupResult | None = None
        while going_on:
            messages: list[Message] = []
            for telling, story in [*going_on.items()]:
                try:
                    messages += next(story) if result is None else story.send(result)
                except StopIteration:
                    del going_on[telling]
                except AssertionError as failure:
                    self._failures[telling] = failure
                    del going_on[telling]
            if going_on:
                tables.hub.publish(messages)
                result = tables.roll_up()

    def check(self, telling: Telling) -> None:
        """Raise the failure of a story."""
        if failure := self._failures.get(telling):
            raise failure

    def check_full_run(self) -> None:
        """Assert that a full run changes no derived table."""
        before = self._derived()
        self.tables.roll_up(RollupRequest(full=True))
        assert self._derived() == before

    def _derived(self) -> dict[str, list[tuple[object, ...]]]:
        return {table.name: sorted(self.tables.rows(f"SELECT * FROM {table.name}"), key=repr) for table in DERIVED}


def each_of(stories: Sequence[Telling]) -> pytest.MarkDecorator:
    """Parametrize a test with stories, named as their functions."""
    return pytest.mark.parametrize("story", [pytest.param(each, id=each.__name__) for each in stories])

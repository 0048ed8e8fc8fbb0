"""Counts of the work of the agent's loops and adapters, for people: nothing depends on them."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Tally:
    """How often something was done, how often it failed, and for how many seconds it went on in all."""

    def __init__(self) -> None:
        self.done = 0
        self.failed = 0
        self.seconds = 0.0

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the block as done, or as failed if it raises."""
        began = time.perf_counter()
        try:
            yield
        except BaseException:
            self.failed += 1
            raise
        else:
            self.done += 1
        finally:
            self.seconds += time.perf_counter() - began

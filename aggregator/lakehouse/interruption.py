"""Let Ctrl-C end a long query at once."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def interruptible() -> Iterator[None]:
    """Have Ctrl-C end the process itself meanwhile: whoever only reads leaves nothing half done.

    Python would notice only when DuckDB returns, and DuckDB asks Python only between parts of its plan, of which one
    may take hours. For the main thread of a command only.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

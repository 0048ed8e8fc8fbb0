"""Ask questions one after the other: a prompt for ``muster-aggregator sql``."""

import readline
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from aggregator.lakehouse.query.engine import Tables
from aggregator.lakehouse.query.watch import Watch
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from shared.command_line.terminal import echo

_PROMPT = "muster> "
_CONTINUED = "   ...> "
_LEAVE = frozenset({"exit", "quit", "\\q", ".exit", ".quit"})
_POLL_SECONDS = 0.2
_GREETING = """Ask in SQL, ending with a semicolon. SHOW TABLES; lists what there is, DESCRIBE outages; explains it.
Ctrl-C ends a query, Ctrl-D (or exit) the prompt."""

T = TypeVar("T")
Opening = Callable[[], Tables]
Answering = Callable[[Tables, str], None]


def ask_at_prompt(open_anew: Opening, answer: Answering, timeout: float) -> None:
    """Read statements until the person leaves; each is answered from the state that the last whole rollup left.

    One that takes longer than ``timeout`` seconds, 0: none, is ended.
    Raise TablesUnreadable where there are no tables at all; what is wrong with a statement is said, and that is all.
    """
    with open_anew() as tables:
        _offer_names(tables.names)
    echo(_GREETING, err=True)
    while (statement := _read()) is not None:
        if statement.strip(" \n;"):
            try:
                with open_anew() as tables:
                    run_watched(Watch(tables, timeout), partial(answer, tables, statement))
            except KeyboardInterrupt:
                echo("interrupted", err=True)
            except TablesUnreadable as error:
                echo(f"Error: {error}", err=True)


def _read() -> str | None:
    """Give the lines of one statement; None where the person leaves."""
    lines: list[str] = []
    while True:
        try:
            line = input(_CONTINUED if lines else _PROMPT)
        except EOFError:
            echo(err=True)
            return None
        except KeyboardInterrupt:
            echo(err=True)
            lines = []
            continue
        if not lines and line.strip().rstrip(";").lower() in _LEAVE:
            return None
        lines.append(line)
        if line.rstrip().endswith(";"):
            return "\n".join(lines)
        if not line.strip() and len(lines) == 1:
            lines = []


def run_watched(watch: Watch, work: Callable[[], T]) -> T:
    """Run ``work`` in a thread, so that Ctrl-C is heard; DuckDB is then told to stop. Raise KeyboardInterrupt."""
    done: list[T] = []
    failed: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            with watch:
                done.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised below
            failed.append(error)
        finally:
            finished.set()

    thread = threading.Thread(target=run)
    thread.start()
    is_interrupted = False
    # Not with join: a thread whose join Ctrl-C interrupts counts as ended in Python 3.11, though it runs on.
    while not finished.is_set():
        try:
            finished.wait(_POLL_SECONDS)
        except KeyboardInterrupt:
            is_interrupted = True
            watch.end("interrupted")
    thread.join()
    if is_interrupted:
        raise KeyboardInterrupt
    if failed:
        raise failed[0]
    return done[0]


def _offer_names(names: tuple[str, ...]) -> None:
    """Complete the names of tables with Tab; to have readline at all gives the arrow keys their meaning."""

    def complete(text: str, state: int) -> str | None:
        found = [name for name in names if name.startswith(text.lower())]
        return found[state] if state < len(found) else None

    readline.set_completer(complete)
    readline.parse_and_bind("tab: complete")


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

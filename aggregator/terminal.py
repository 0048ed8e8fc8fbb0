"""Show tables, progress, the pages of long answers, and errors; write files. rich is loaded when it is used."""

import os
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import TypeVar

import click

from shared.command_line.tables import UNWRAPPED, TableColumn, fit, stack, visible
from shared.command_line.terminal import echo
from shared.command_line.terminal import width as width_of_output
from shared.whole_files import replacing

T = TypeVar("T")


def format_table(columns: Sequence[TableColumn[T]], rows: Sequence[T], width: int = UNWRAPPED) -> str:
    """Lay out as shared.command_line.tables does, and break texts between words where ``width`` asks for it."""
    from rich.console import Console  # noqa: PLC0415 - takes a tenth of a second
    from rich.table import Table  # noqa: PLC0415 - as above
    from rich.text import Text  # noqa: PLC0415 - as above

    layout = fit(columns, rows, width, wraps=True)
    if not layout.fits:
        return "\n".join(stack(layout.titles, layout.cells, width))
    table = Table(box=None, pad_edge=False, header_style="")
    for column, title in zip(layout.columns, layout.titles, strict=True):
        table.add_column(Text(title), justify="right" if column.right else "left", no_wrap=not column.wraps)
    for row in layout.cells:
        table.add_row(*map(Text, row))
    text = StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    return "\n".join([*lines, *layout.note])


@contextmanager
def clear_errors(*expected: type[Exception]) -> Iterator[None]:
    """Raise what is ``expected``, whose text is one clear line, as click.ClickException: a person gets no traceback."""
    try:
        yield
    except expected as error:
        raise click.ClickException(str(error)) from error


@contextmanager
def terminable() -> Iterator[None]:
    """Have SIGTERM end this as Ctrl-C does: what is there only meanwhile goes. For the main thread of a command."""
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def whole_file(file: Path) -> Iterator[Path]:
    """Give a path to write to: what is there at the end takes the place of ``file``, and is nowhere before that.

    It is gone, too, where Ctrl-C or SIGTERM ends this. For the main thread of a command only.
    """
    with terminable():
        try:
            with replacing(file) as unfinished:
                yield unfinished
        except OSError as error:
            raise click.ClickException(f"{file}: cannot be written: {error.strerror}") from error


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give what tells of each step as it begins, on standard error; a terminal shows how long the present one takes."""
    from rich.console import Console  # noqa: PLC0415 - takes a tenth of a second
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

    console = Console(stderr=True)
    if not console.is_terminal or console.is_dumb_terminal:
        yield lambda line: echo(line, err=True)
        return
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    with Progress(*columns, console=console) as shown:

        def end_step() -> None:
            for task in shown.task_ids:
                shown.update(task, total=1, completed=1)

        def tell(line: str) -> None:
            end_step()
            shown.add_task(visible(line), total=None)

        yield tell
        end_step()


def page(lines: Sequence[str], narrow: Callable[[int], Iterable[str]]) -> None:
    """Print lines as they are; where a terminal has no room for them, through the pager.

    Where there is none (PAGER=cat, or no less), what ``narrow`` makes of them for so many columns is printed.
    """
    columns, rows = shutil.get_terminal_size()
    is_wide = max(map(len, lines), default=0) > width_of_output()
    is_seen = sys.stdin.isatty() and sys.stdout.isatty()
    program = (shlex.split(os.environ.get("PAGER", "less")) or ["cat"])[0]
    if is_seen and (is_wide or len(lines) >= rows) and program != "cat" and shutil.which(program):
        # Lines are not broken, the arrow keys show what lies to the right; and the last page stays on the screen.
        os.environ.setdefault("LESS", "-SX")
        with _deaf_to_interrupts():
            click.echo_via_pager("\n".join(lines))
    else:
        sys.stdout.writelines(f"{line}\n" for line in (narrow(columns) if is_wide else lines))
        sys.stdout.flush()


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Leave Ctrl-C to the pager: it ends a search there, and must not end what the pager reads from."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

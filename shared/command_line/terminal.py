"""Print for people: the one way out of both programs.

Whatever a sender, a payload or a file's author wrote is shown and never obeyed. Colours come only where a terminal
shows them and NO_COLOR (no-color.org) is not set; in a pipe lines stay whole and plain.
"""

import os
import re
import shutil
import sys
from typing import Any

import click
import msgspec

from shared.command_line.tables import UNWRAPPED, visible, wrap_text

_OBEYED = re.compile(r"[^\x00-\x7f]")


def width() -> int:
    """Give the columns that standard output has; many where that is no terminal, so that grep finds whole lines."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else UNWRAPPED


def colours() -> bool | None:
    """Tell click whether colours may be shown: False, or None where that depends on the stream alone."""
    return False if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else None


def echo(
    text: object = "", *, err: bool = False, prose: bool = False, lead: str = "", colour: str | None = None
) -> None:
    """Print lines to standard output or error, behind a ``lead`` that may have a colour.

    Sentences, which are ``prose`` and all that goes to standard error, are broken between words where a terminal ends.
    """
    shown = visible(str(text), keep="\n")
    stream = sys.stderr if err else sys.stdout
    if (err or prose) and stream.isatty():
        columns = shutil.get_terminal_size().columns
        shown = "\n".join(_break_line(line, columns) for line in shown.split("\n"))
    head = click.style(lead, fg=colour) if lead else ""
    click.echo(head + shown, err=err)  # noqa: TID251 - here alone


def _break_line(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    indent = line[: len(line) - len(line.lstrip())]
    return "\n".join(wrap_text(line.strip(), columns, indent, f"{indent}  "))


def json_text(data: Any, *, in_one_line: bool = False) -> str:
    r"""Write data as JSON; what a terminal would obey stands as an escape of JSON's, so nothing is lost.

    >>> json_text({"sender": "web\x9b1\u202e"}, in_one_line=True)
    '{"sender":"web\\u009b1\\u202e"}'
    """
    encoded = msgspec.json.encode(data)
    return escaped_json((encoded if in_one_line else msgspec.json.format(encoded)).decode())


def escaped_json(text: str) -> str:
    """Escape within JSON what a terminal would obey; JSON itself leaves C1 and marks of direction as they are."""
    if text.isascii() or text.isprintable():
        return text
    return _OBEYED.sub(lambda each: _escape(each[0]), text)


def _escape(letter: str) -> str:
    if visible(letter) == letter:
        return letter
    units = letter.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

"""Tell the demo to a person at a terminal: a clock before every line, the commands as one would type them.

Colour only where a terminal shows it; lines fit into 100 columns, or fewer where the terminal has fewer.
"""

import os
import shlex
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import TextIO

from aggregator.demo.directory import shown
from shared.command_line.terminal import colours

_WIDEST = 100
_CLOCK = 6
_QUIET_FOR = 8.0


class Tone(Enum):
    """How a line sounds: the SGR codes of a terminal."""

    PLAIN = ""
    STRONG = "1"
    COMMAND = "36"
    DIM = "2"
    GOOD = "32"
    WARNING = "33"
    BAD = "1;31"


class Story:
    """What is printed, in order, ``width`` columns wide. A clock counts from the first line."""

    def __init__(self, stream: TextIO = sys.stdout) -> None:
        self._stream = stream
        self._started_at = time.monotonic()
        self._spoke_at = self._started_at
        self._coloured = stream.isatty() and colours() is None
        self.width = min(_WIDEST, shutil.get_terminal_size((_WIDEST, 24)).columns)

    @property
    def elapsed(self) -> float:
        """Give the seconds since the first line."""
        return time.monotonic() - self._started_at

    @property
    def is_quiet(self) -> bool:
        """Tell whether a person might begin to wonder whether anything still happens."""
        return time.monotonic() - self._spoke_at > _QUIET_FOR

    def chapter(self, title: str) -> None:
        self._write("")
        self._timed(title, Tone.STRONG)

    def say(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._timed(text, tone, indent="  ")

    def event(self, place: str, text: str, tone: Tone = Tone.PLAIN) -> None:
        self._timed(f"{place:8} {text}", tone, indent="  ", hanging=" " * 11)

    def command(self, command: Sequence[str]) -> None:
        """Show a command that is run now, as one would type it."""
        self._timed(f"$ {typed(command)}", Tone.COMMAND, indent="  ", hanging="      ", continued=" \\")

    def output(self, lines: Iterable[str], *, timed: bool = False) -> None:
        """Show what a command prints; ``timed`` where it prints as it goes."""
        first = "  | "
        for line in lines:
            later = " " * _CLOCK + first + " " * (len(line) - len(line.lstrip()) + 4)
            folded = self._folded(line, " " * _CLOCK + first, later)
            for number, part in enumerate(folded or [" " * _CLOCK + first.rstrip()]):
                clock = self._clock if timed and number == 0 else " " * _CLOCK
                self._write(clock + part[_CLOCK:].rstrip(), Tone.DIM)

    def text(self, text: str = "", tone: Tone = Tone.PLAIN) -> None:
        """Print without a clock: for what stays to be read."""
        for line in text.splitlines() or [""]:
            indent = " " * (len(line) - len(line.lstrip()))
            wrapped = textwrap.wrap(line.strip(), self.width - len(indent), break_on_hyphens=False) or [""]
            for part in wrapped:
                self._write(indent + part, tone)

    def raw(self, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Print a line as it is, however long: what is to be copied must not be broken."""
        self._write(text, tone)

    def marked(self, mark: str, text: str, tone: Tone = Tone.PLAIN) -> None:
        """Print a line of a list behind its mark, which alone has the tone."""
        for number, line in enumerate(textwrap.wrap(text, self.width - 10, break_on_hyphens=False) or [""]):
            shown_mark = self._in(tone, f"{mark if number == 0 else '':6}")
            self._write(f"  {shown_mark}  {line}")

    def _timed(self, text: str, tone: Tone, indent: str = "", hanging: str | None = None, continued: str = "") -> None:
        later = " " * _CLOCK + (indent if hanging is None else hanging)
        lines = self._folded(text, " " * _CLOCK + indent, later, len(continued))
        for number, line in enumerate(lines):
            end = continued if number + 1 < len(lines) else ""
            self._write((self._clock if number == 0 else line[:_CLOCK]) + self._in(tone, line[_CLOCK:] + end))

    @property
    def _clock(self) -> str:
        seconds = int(self.elapsed)
        return f"{seconds // 60}:{seconds % 60:02d}".ljust(_CLOCK)

    def _folded(self, text: str, first: str, later: str, spared: int = 0) -> list[str]:
        return textwrap.wrap(
            text,
            self.width - spared,
            initial_indent=first,
            subsequent_indent=later,
            break_on_hyphens=False,
            break_long_words=False,
            replace_whitespace=False,
            drop_whitespace=True,
        )

    def _in(self, tone: Tone, text: str) -> str:
        return f"\x1b[{tone.value}m{text}\x1b[0m" if self._coloured and tone.value else text

    def _write(self, line: str, tone: Tone = Tone.PLAIN) -> None:
        self._spoke_at = time.monotonic()
        self._stream.write(self._in(tone, line) + "\n" if line else "\n")
        self._stream.flush()


def muster(program: str, *arguments: str | Path) -> list[str]:
    """Give a command of this very installation: the program beside this Python, where it is there."""
    beside = Path(sys.executable).parent / program
    return [str(beside) if os.access(beside, os.X_OK) else program, *map(str, arguments)]


def typed(command: Sequence[str]) -> str:
    """Write a command as one would type it here."""
    program, *arguments = command
    if shutil.which(Path(program).name) == program:
        program = Path(program).name
    words = [shown(Path(word)) if word.startswith("/") else word for word in (program, *arguments)]
    return " ".join(shlex.quote(word) for word in words)

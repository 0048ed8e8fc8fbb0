"""Collect what a scenario shows, step by step: a claim, what was found, and what should be found.

A scenario never stops at a step that does not hold: the rest may still show why.
"""

import asyncio
import signal
import textwrap
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from shared.command_line.tables import UNWRAPPED
from shared.nats.jetstream_api import ApiError, RequestFailed

DEADLINE = 90.0
_POLL = 0.05
_INDENT = "    "


class Step(msgspec.Struct, frozen=True):
    """One thing shown. ``note`` says where today's server does otherwise than its documentation."""

    claim: str
    found: Any
    expected: Any
    note: str = ""

    @property
    def holds(self) -> bool:
        return bool(self.found == self.expected)


class Narrator:
    """What was shown so far; everything is told at once to whoever watches.

    Sentences are broken to ``width`` columns, and tables are to be laid out in the ``room`` that is left of them. With
    ``stays``, whoever watches may look around on the servers before they end.
    """

    def __init__(self, tell: Callable[[str], None], *, width: int = UNWRAPPED, stays: bool = False) -> None:
        self.steps: list[Step] = []
        self._tell = tell
        self._width = width
        self._stays = stays

    @property
    def room(self) -> int:
        return self._width - len(_INDENT)

    def introduce(self, *lines: str) -> None:
        for line in lines:
            self._say(line, "", "  ")

    def chapter(self, title: str) -> None:
        self._tell("")
        self._say(title, "", "  ")

    def output(self, text: str) -> None:
        """Show tables, or what else a command prints, a line for a line."""
        for line in text.splitlines():
            self._tell(f"{_INDENT}{line}".rstrip())

    def sentence(self, text: str) -> None:
        """Show a line that may be broken."""
        self._say(text, "    ", "      ")

    def show(self, claim: str, found: Any, expected: Any, note: str = "") -> None:
        step = Step(claim, found, expected, note)
        self.steps.append(step)
        wrong = "" if step.holds else f", not {_shown(expected)}"
        first, *further = f"{claim}: {_shown(found)}{wrong}".split("\n")
        self._say(first, f"  {'+' if step.holds else '!'} ", "      ")
        for line in further:
            self._say(line, "      ", "        ")
        if note:
            self._say(f"(the documentation: {note})", "      ", "       ")

    async def comes(self, claim: str, ask: Callable[[], Awaitable[Any]], expected: Any, note: str = "") -> None:
        """Ask until the answer is as expected, for ``DEADLINE`` seconds at most, and show the last one.

        Servers that elect a leader, or do not know a stream yet, may say so instead.
        """
        ends_at = time.monotonic() + DEADLINE
        found = await _answer(ask)
        while found != expected and time.monotonic() < ends_at:
            await asyncio.sleep(_POLL)
            found = await _answer(ask)
        self.show(claim, found, expected, note)

    async def stay(self, *ways: str) -> None:
        """Where whoever watches wants to look around: say in which ways, and wait for Ctrl-C."""
        if not self._stays:
            return
        self.chapter("The servers run until Ctrl-C. Look around in another terminal:")
        for way in ways:
            self._tell(f"    {way}")
        enough, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, enough.set)
        try:
            await enough.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    def _say(self, text: str, first: str, further: str) -> None:
        for line in textwrap.wrap(
            text,
            self._width,
            initial_indent=first,
            subsequent_indent=further,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self._tell(line)


async def _answer(ask: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await ask()
    except (ApiError, RequestFailed) as error:
        return str(error)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(each) for each in value if each != "") or "none"
    if isinstance(value, dict):
        return "".join(f"\n{key}: {_shown(each)}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)

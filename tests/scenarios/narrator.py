"""Narration of a documented scenario: each claim is printed with the value found, and asserted.

pytest captures the narration; ``make scenarios`` shows it.
"""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from shared.command_line.tables import UNWRAPPED, wrap_text
from shared.nats.jetstream_api import ApiError, RequestFailed

DEADLINE = 90.0
_POLL = 0.05


class Narrator:
    """Prints chapters, claims and tables, broken to ``width`` columns; ``room`` is the width left for a table."""

    def __init__(self, *, width: int = UNWRAPPED, stays: bool = False) -> None:
        self.room = width - 4
        self.step_count = 0
        self._width = width
        self._stays = stays

    def chapter(self, title: str) -> None:
        print()
        self._wrapped(title, "", "  ")

    def output(self, text: str) -> None:
        for line in text.splitlines():
            print(f"    {line}".rstrip())

    def sentence(self, text: str) -> None:
        self._wrapped(text, "    ", "      ")

    def show(self, claim: str, found: Any, wanted: Any, note: str = "") -> None:
        """Print a claim and assert it. ``note`` is the documentation's claim where the server does otherwise."""
        holds = bool(found == wanted)
        first, *further = f"{claim}: {_shown(found)}{'' if holds else f', not {_shown(wanted)}'}".split("\n")
        self._wrapped(first, f"  {'+' if holds else '!'} ", "      ")
        for line in further:
            self._wrapped(line, "      ", "        ")
        if note:
            self._wrapped(f"(the documentation: {note})", "      ", "       ")
        assert found == wanted, claim
        self.step_count += 1

    async def comes(self, claim: str, ask: Callable[[], Awaitable[Any]], wanted: Any, note: str = "") -> None:
        """Ask until the answer is the wanted one, for ``DEADLINE`` seconds at most, and show the last answer.

        A server that elects a leader, or does not know a stream yet, may answer with an error first.
        """
        ends_at = time.monotonic() + DEADLINE
        found = await _answer(ask)
        while found != wanted and time.monotonic() < ends_at:
            await asyncio.sleep(_POLL)
            found = await _answer(ask)
        self.show(claim, found, wanted, note)

    async def stay(self, *commands: str) -> None:
        """Print commands that inspect the servers, and wait for Ctrl-C, if the reader asked for it with ``--stay``."""
        if not self._stays:
            return
        self.chapter("The servers run until Ctrl-C. Look around in another terminal:")
        for command in commands:
            print(f"    {command}")
        enough, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, enough.set)
        try:
            await enough.wait()
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _wrapped(self, text: str, first: str, further: str) -> None:
        print("\n".join(wrap_text(text, self._width, first, further)))


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

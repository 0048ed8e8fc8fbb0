"""Collect what a scenario shows, step by step: a claim, what was found, and what should be found.

A scenario never stops at a step that does not hold: the rest may still show why.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from shared.jetstream_api import ApiError, RequestFailed

DEADLINE = 90.0
_POLL = 0.05


class Step(msgspec.Struct, frozen=True):
    """One thing shown. ``note`` says where today's server does otherwise than its documentation."""

    claim: str
    found: Any
    expected: Any
    note: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether it came as claimed."""
        return bool(self.found == self.expected)


class Telling:
    """What was shown so far; everything is told at once to whoever watches."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.steps: list[Step] = []
        self._tell = tell

    @property
    def holds(self) -> bool:
        """Tell whether every step so far came as claimed."""
        return all(step.holds for step in self.steps)

    def chapter(self, title: str) -> None:
        """Begin another part."""
        self._tell(f"\n{title}")

    def output(self, text: str) -> None:
        """Show what a command prints."""
        for line in text.splitlines():
            self._tell(f"    {line}".rstrip())

    def show(self, claim: str, found: Any, expected: Any, note: str = "") -> None:
        """Show one thing, as it is."""
        step = Step(claim, found, expected, note)
        self.steps.append(step)
        self._tell(f"  {'+' if step.holds else '!'} {claim}: {_shown(found)}" + self._rest(step))

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

    def _rest(self, step: Step) -> str:
        wrong = "" if step.holds else f", not {_shown(step.expected)}"
        return wrong + (f"\n      (the documentation: {step.note})" if step.note else "")


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
        return "".join(f"\n      {key}: {_shown(each)}" for key, each in value.items())
    return f"{value:,}" if isinstance(value, int) else str(value)

"""Let what must not be interrupted finish."""

from collections.abc import Callable

Check = Callable[[], None]
"""Raises Stopped where the process was asked to end: for whoever waits between two commits."""


def unstoppable() -> None:
    """Check nothing: for whoever is not asked to end."""

"""Finding of a check: its severity, its subject, and the remedy."""

from enum import IntEnum

import msgspec

from edge_agent.observability.conditions import Kind


class Level(IntEnum):
    """How bad; also the exit code of the worst."""

    OK = 0
    WARN = 1
    FAIL = 2


class Finding(msgspec.Struct, frozen=True):
    """One line. ``remedy`` is empty where nothing is wrong; ``condition`` names the agent's, where there is one."""

    level: Level
    subject: str
    text: str
    remedy: str = ""
    condition: str = ""


def good(subject: str, text: str) -> Finding:
    """Return a finding that all is well."""
    return Finding(Level.OK, subject, text)


def warning(subject: str, text: str, remedy: str, kind: Kind | None = None) -> Finding:
    """Return a finding that the agent works, but not as it should, or not indefinitely."""
    return Finding(Level.WARN, subject, text, remedy, kind.name if kind else "")


def bad(subject: str, text: str, remedy: str, kind: Kind | None = None) -> Finding:
    """Return a finding that the agent cannot do its work."""
    return Finding(Level.FAIL, subject, text, remedy, kind.name if kind else "")

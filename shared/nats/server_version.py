"""Versions of nats-server: how old the connected one is, from which on it can do what, and which pairs were tried.

This is the one table. docs/reference/versions.md is written from it (``make docs``), and
tests/integration/topology/test_server_versions.py tries its pairs on the real servers.
"""

from collections.abc import Iterator
from typing import NamedTuple

from nats.aio.client import Client

Version = tuple[int, int]
Release = tuple[int, int, int]


FINDS_BY_TIME: Version = (2, 11)
"""From which nats-server on STREAM.MSG.GET takes ``start_time``."""


TAKES_BATCHES: Version = (2, 12)


RESETS_CONSUMERS: Version = (2, 14)


OLDEST: Release = (2, 10, 0)
"""Before it, STREAM.INFO has no server's clock (``ts``), and no stream can be read."""

RECOMMENDED = "2.14.4"
SAFE: tuple[Release, ...] = (2, 11, 15), (2, 12, 6)
"""The oldest releases of their series without known security holes: a leaf node's panic, MQTT past the permissions."""
_POLICY_LOST: tuple[Release, Release] = (2, 14, 0), (2, 14, 4)
"""From the first on, and before the second, a hub's policy does not pass the accounts that render writes."""
_OURS: Release = (1 << 31, 0, 0)
"""A build without a version is newer than any release."""


class Pair(NamedTuple):
    """A hub's and a region's version that were tried together: the region links, and the hub archives it.

    ``policy``: the hub's policy reaches the region. ``rendered``: with the configurations that ``render`` writes, which
    older servers refuse (``feature_flags``); else in one account, with a configuration by hand.
    """

    hub: str
    region: str
    policy: bool = True
    rendered: bool = True


PAIRS = (
    Pair("2.15.1", "2.15.1"),
    Pair("2.15.1", "2.15.0"),
    Pair("2.15.1", "2.14.6"),
    Pair("2.15.1", "2.14.4"),
    Pair("2.15.1", "2.14.0"),
    Pair("2.15.0", "2.14.4"),
    Pair("2.14.6", "2.15.1"),
    Pair("2.14.4", "2.15.1"),
    Pair("2.14.4", "2.14.4"),
    Pair("2.14.3", "2.15.1", policy=False),
    Pair("2.14.2", "2.15.1", policy=False),
    Pair("2.14.0", "2.15.1", policy=False),
    Pair("2.15.1", "2.12.8", rendered=False),
    Pair("2.12.8", "2.15.1", rendered=False),
    Pair("2.12.8", "2.12.8", rendered=False),
    Pair("2.12.6", "2.12.6", rendered=False),
    Pair("2.11.11", "2.11.11", rendered=False),
    Pair("2.10.26", "2.10.26", rendered=False),
)


def is_older(client: Client, than: Version) -> bool:
    """Return True if the connected server is a release before a version."""
    return version_of(client) < than


def version_of(client: Client) -> Version:
    """Return the version of the connected server."""
    major, minor, _ = release_of(client)
    return major, minor


def release_of(client: Client) -> Release:
    """Return the release of the connected server."""
    try:
        found = client.connected_server_version
    except ValueError:
        return _OURS
    return found.major, found.minor, found.patch


def parse_release(text: str) -> Release:
    """Return the release that a server names.

    >>> parse_release("2.15.1"), parse_release("2.16.0-dev"), parse_release("ours")
    ((2, 15, 1), (2, 16, 0), (2147483648, 0, 0))
    """
    try:
        major, minor, patch = map(int, text.partition("-")[0].split("."))
    except ValueError:
        return _OURS
    return major, minor, patch


def release_text(release: Release) -> str:
    return ".".join(map(str, release))


def unusable(release: Release) -> str:
    """Return why a server cannot be used at all; "" where it can.

    >>> unusable((2, 9, 10))
    'nats-server 2.9.10 is too old: its streams do not tell the time; upgrade it to 2.14.4 or newer'
    """
    if release >= OLDEST:
        return ""
    return f"{_named(release)} is too old: its streams do not tell the time; upgrade it to {RECOMMENDED} or newer"


def doubts(release: Release, *, is_policys_hub: bool = False) -> Iterator[str]:
    """Yield one line for each reason to upgrade a server that can be used; none for one that is ``unusable``.

    >>> list(doubts((2, 12, 5)))
    ['nats-server 2.12.5 has known security holes (2.11.15 and 2.12.6 are the oldest without): upgrade it']
    >>> list(doubts((2, 9, 10)))
    []
    """
    if unusable(release):
        return
    if any(release < safe and (release[:2] == safe[:2] or safe == SAFE[0]) for safe in SAFE):
        without = " and ".join(map(release_text, SAFE))
        yield f"{_named(release)} has known security holes ({without} are the oldest without): upgrade it"
    if is_policys_hub and _POLICY_LOST[0] <= release < _POLICY_LOST[1]:
        fixed = release_text(_POLICY_LOST[1])
        regions = "regions with accounts of their own, as render writes them"
        yield f"the hub's {_named(release)} never delivers its policy to {regions}: upgrade it to {fixed} or newer"


def _named(release: Release) -> str:
    return f"nats-server {release_text(release)}"

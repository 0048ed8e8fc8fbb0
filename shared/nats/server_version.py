"""Tell how old the connected nats-server is, and from which version on it can do what."""

from nats.aio.client import Client

Version = tuple[int, int]


FINDS_BY_TIME: Version = (2, 11)
"""From which nats-server on STREAM.MSG.GET takes ``start_time``."""


TAKES_BATCHES: Version = (2, 12)


RESETS_CONSUMERS: Version = (2, 14)


def is_older(client: Client, than: Version) -> bool:
    """Tell whether the connected server is a release before a version."""
    return version_of(client) < than


def version_of(client: Client) -> Version:
    """Give the version of the connected server; somebody's own build is newer than any release."""
    found = client.connected_server_version
    try:
        return found.major, found.minor
    except ValueError:
        return 1 << 31, 0

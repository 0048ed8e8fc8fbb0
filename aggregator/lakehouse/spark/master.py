"""Look whether a Spark master can be had: Spark itself tries for a minute, and then says so in pages."""

import re
import socket

_CONNECT_SECONDS = 5.0
_STANDALONE = re.compile(r"spark://(?P<hosts>[^/,\s]+:\d+(?:,[^/,\s]+:\d+)*)")
_LOCAL = re.compile(r"local(\[.*\])?|local-cluster\[.*\]")
_SENT_AWAY = re.compile(r"yarn|k8s://\S*|mesos://\S*", re.IGNORECASE)


class MasterUnreachable(RuntimeError):
    """The master is none, or does not answer. The text is one line: what, where, what to do."""


def check_master(master: str) -> None:
    """Raise MasterUnreachable; of Spark's own cluster at least one master must answer."""
    standalone = _STANDALONE.fullmatch(master)
    if standalone is None:
        if _LOCAL.fullmatch(master):
            return
        if _SENT_AWAY.fullmatch(master):
            # Its executors start in containers without our Python and jars: each task would fail there, one by one.
            raise MasterUnreachable(
                f"{master}: workers there have no Muster, and none is sent to them; write local[*] or spark://host:7077"
            )
        raise MasterUnreachable(f"not a Spark master: {master!r}, write local[*] or spark://host:7077")
    reasons = []
    for place in standalone["hosts"].split(","):
        host, _, port = place.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
        except (OSError, OverflowError) as error:
            reasons.append(f"{place}: {getattr(error, 'strerror', None) or error}")
        else:
            return
    raise MasterUnreachable(f"no Spark master answers at {master} ({'; '.join(reasons)}): start it, or name another")

"""Choose ports that stay free while their server is stopped for a while.

The system gives outgoing connections a port out of a range of its own. A port in there may be taken meanwhile, even by
somebody who tries to reach that very port: a connection to itself.
"""

import errno
import os
import socket
from pathlib import Path

_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000
_SPREAD = 97


def free_ports(count: int) -> list[int]:
    """Give ports of 127.0.0.1 that nothing has, below the system's range; 0, the system's choice, where there are none.

    Two demos at the same time begin to look at different places.
    """
    highest = int(_RANGE_FILE.read_text().split()[0])
    room = highest - _LOWEST
    found: list[int] = []
    for number in range(max(0, room)):
        if len(found) == count:
            break
        port = _LOWEST + (os.getpid() * _SPREAD + number) % room
        if _is_free(port):
            found.append(port)
    return found + [0] * (count - len(found))


def _is_free(port: int) -> bool:
    with socket.socket() as attempt:
        try:
            attempt.bind(("127.0.0.1", port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return False
    return True

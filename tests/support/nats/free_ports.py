"""Find ports for servers that cannot choose one and say which."""

import random
import socket
from pathlib import Path

_FOR_WHO_CONNECTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LEAST = 10_000
# Other workers' tests ask meanwhile, and pytest-randomly has them all draw the same numbers from the usual source.
_DRAW = random.SystemRandom()


def free_ports(count: int) -> list[int]:
    """Give ports of 127.0.0.1 on which nobody listens at the moment.

    A server may take many seconds to listen there. So they are none that the kernel gives to whoever connects.
    """
    first, last = map(int, _FOR_WHO_CONNECTS.read_text().split())
    candidates = [*range(_LEAST, first), *range(last + 1, 1 << 16)] or [0]
    sockets: list[socket.socket] = []
    while len(sockets) < count:
        each = socket.socket()
        try:
            each.bind(("127.0.0.1", _DRAW.choice(candidates)))
        except OSError:
            each.close()
        else:
            sockets.append(each)
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

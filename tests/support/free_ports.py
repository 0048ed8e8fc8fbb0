"""Find ports for servers that cannot choose one and say which."""

import socket


def free_ports(count: int) -> list[int]:
    """Give ports of 127.0.0.1 on which nobody listens at the moment."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports

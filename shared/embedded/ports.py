"""Hold a port for a server that may be away for a while: the system gives it to nobody else meanwhile.

A socket that never listens is bound to it. The server listens beside it, since both let the address be used again, as
nats-server's do; while it is away, whoever connects is refused.
"""

import socket
import weakref


class HeldPort:
    """A port of ``host`` that is free but for whoever knows it, as long as this object lives; raise OSError."""

    def __init__(self, host: str) -> None:
        holding = socket.socket()
        weakref.finalize(self, holding.close)
        holding.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holding.bind((host, 0))
        self.number: int = holding.getsockname()[1]

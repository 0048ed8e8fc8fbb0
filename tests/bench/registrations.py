"""Make what senders publish: JSON of a given size, senders in turns."""

from collections.abc import Iterator

OVERHEAD = 45


def sender(number: int) -> str:
    """Name a sender."""
    return f"node{number:07}.example.net"


def registrations(senders: int, count: int, size: int) -> Iterator[bytes]:
    """Give ``count`` registrations of about ``size`` bytes, from each sender in turn."""
    end = b'", "data": "' + b"x" * (size - OVERHEAD) + b'"}'
    for number in range(count):
        yield b'{"sender": "' + sender(number % senders).encode() + end

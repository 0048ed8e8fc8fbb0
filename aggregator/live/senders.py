"""Keep what is told of each sender in columns: a million of them take a fraction of what objects would. Pure."""

from array import array
from collections.abc import Iterable
from itertools import islice
from typing import Any, NamedTuple

UP, STALE, RETIRED, UNHEARD, LOST = range(1, 6)
"""What a sender is by what was told: UNHEARD and LOST are unknown for reasons of its own (``api.UnknownReason``)."""
LIVING = frozenset((UP, STALE, UNHEARD, LOST))

_ID_BYTES = 16


class Place(NamedTuple):
    """Where an advisory stands among its sender's: the lesser comes first."""

    at: int
    rank: int
    event: bytes


class SenderRecord(NamedTuple):
    """All of one sender, as it is stored."""

    sender: int
    block: int
    name: str
    state: int
    word: int
    rank: int
    at: int
    last_seen: int
    since: int
    floor: int
    event: bytes
    head: int
    until: int


class Senders:
    """Columns by number: a sender keeps the number that it got when it was first told of."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.block = array("I")
        self.state = array("B")
        self.word = array("B")
        self.rank = array("b")
        self.at = array("q")
        self.last_seen = array("q")
        self.since = array("q")
        self.floor = array("q")
        self.head = array("q")
        self.events = bytearray()
        self.until: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def add(self, name: str, block: int) -> int:
        """Number a sender of which nothing is known yet."""
        self.names.append(name)
        self.block.append(block)
        self.state.append(0)
        self.word.append(0)
        self.rank.append(0)
        for column in (self.at, self.last_seen, self.since, self.floor, self.head):
            column.append(0)
        self.events += bytes(_ID_BYTES)
        return len(self.names) - 1

    def event(self, sender: int) -> bytes:
        """Give what identifies the last advisory of a sender."""
        return bytes(self.events[sender * _ID_BYTES : (sender + 1) * _ID_BYTES])

    def place(self, sender: int) -> Place:
        """Give the place of a sender's last advisory."""
        return Place(self.at[sender], self.rank[sender], self.event(sender))

    def set_event(self, sender: int, event: bytes) -> None:
        """Note which advisory is the last."""
        self.events[sender * _ID_BYTES : (sender + 1) * _ID_BYTES] = event

    def forget(self, sender: int) -> None:
        """Forget what was told of a sender, but for its story."""
        self.word[sender] = self.rank[sender] = 0
        self.at[sender] = self.last_seen[sender] = self.since[sender] = self.floor[sender] = 0
        self.set_event(sender, bytes(_ID_BYTES))
        self.until.pop(sender, None)

    def record(self, sender: int) -> SenderRecord:
        """Give all of a sender, to be stored."""
        return SenderRecord(
            sender, self.block[sender], self.names[sender], self.state[sender], self.word[sender], self.rank[sender],
            self.at[sender], self.last_seen[sender], self.since[sender], self.floor[sender], self.event(sender),
            self.head[sender], self.until.get(sender, 0),
        )  # fmt: skip

    def restore(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Add senders as they were stored (the fields of SenderRecord), in the order of their numbers."""
        columns: tuple[Any, ...] = (
            self.block,
            self.names,
            self.state,
            self.word,
            self.rank,
            self.at,
            self.last_seen,
            self.since,
        )
        rows = iter(records)
        while some := list(islice(rows, 10_000)):
            _, *fields, events, heads, untils = zip(*some, strict=True)
            for column, values in zip((*columns, self.floor), fields, strict=True):
                column.extend(values)
            self.events += b"".join(events)
            self.head.extend(heads)
            if any(untils):
                first = len(self.names) - len(untils)
                self.until |= {sender: until for sender, until in enumerate(untils, start=first) if until}


def event_key(event_id: str) -> bytes:
    r"""Give 16 bytes that identify an advisory and sort as its id does.

    >>> event_key("00ff" * 8).hex(), event_key("plain-1")
    ('00ff00ff00ff00ff00ff00ff00ff00ff', b'plain-1\x00\x00\x00\x00\x00\x00\x00\x00\x00')
    """
    if len(event_id) == 2 * _ID_BYTES:
        try:
            return bytes.fromhex(event_id)
        except ValueError:
            pass
    return event_id.encode(errors="surrogatepass")[:_ID_BYTES].ljust(_ID_BYTES, b"\0")

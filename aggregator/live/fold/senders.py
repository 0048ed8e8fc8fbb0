"""State of each sender, in columns: a million senders take a fraction of the memory of objects. Pure."""

import heapq
from array import array
from collections.abc import Iterable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

UP, STALE, RETIRED, UNHEARD, LOST = range(1, 6)
"""States of a sender. UNHEARD and LOST are unknown for a reason of the sender's own (``api.UnknownReason``)."""
LIVING = frozenset((UP, STALE, UNHEARD, LOST))

WIDTH = 13
_ID_BYTES = 16
_GROWTH = 4_096


class Senders:
    """Columns by number: a sender keeps its number from its first record until it is removed.

    The number of a removed sender goes to the next new one; until then its name is "".
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        self.block = array("I")
        self.state = array("B")
        self.word = array("B")
        self.rank = array("q")
        self.at = array("q")
        self.last_seen = array("q")
        self.since = array("q")
        self.floor = array("q")
        self.head = array("q")
        self.events: list[bytes] = []
        self.until: dict[int, int] = {}
        self._free: list[int] = []
        self._room = 0

    def __len__(self) -> int:
        return len(self.names) - len(self._free)

    def add(self, name: str, block: int) -> int:
        """Add a sender without a state and return its number."""
        if self._free:
            sender = heapq.heappop(self._free)
            self.names[sender] = name
        else:
            sender = len(self.names)
            if sender == self._room:
                for column in self._columns:
                    column.frombytes(bytes(column.itemsize * _GROWTH))
                self._room += _GROWTH
            self.names.append(name)
            self.events.append(b"")
        self.block[sender] = block
        return sender

    def remove(self, sender: int) -> None:
        """Clear all columns of a sender and free its number."""
        for column in self._columns:
            column[sender] = 0
        self.names[sender], self.events[sender] = "", b""
        self.until.pop(sender, None)
        heapq.heappush(self._free, sender)

    @property
    def numbers(self) -> list[int]:
        """The numbers of all senders."""
        return [sender for sender, name in enumerate(self.names) if name]

    @property
    def _columns(self) -> "tuple[array[int], ...]":
        return (
            self.block, self.state, self.word, self.rank, self.at, self.last_seen, self.since, self.floor, self.head,
        )  # fmt: skip

    def forget(self, sender: int) -> None:
        """Clear the state of a sender, but keep its story."""
        self.word[sender] = self.rank[sender] = 0
        self.at[sender] = self.last_seen[sender] = self.since[sender] = self.floor[sender] = 0
        self.events[sender] = b""
        self.until.pop(sender, None)

    def records(self, senders: Sequence[int]) -> list[Any]:
        """Return the rows of ``senders`` as one flat list, ``WIDTH`` columns of the table ``sender`` for each."""
        columns: tuple[Any, ...] = (
            self.block, self.names, self.state, self.word, self.rank, self.at, self.last_seen, self.since, self.floor,
            self.events, self.head,
        )  # fmt: skip
        values: list[Any] = [0] * (WIDTH * len(senders))
        values[::WIDTH] = senders
        # An itemgetter with one index does not return a tuple.
        picked = itemgetter(*senders) if len(senders) > 1 else lambda column: [column[sender] for sender in senders]
        for place, column in enumerate(columns, start=1):
            values[place::WIDTH] = picked(column)
        if self.until:
            values[WIDTH - 1 :: WIDTH] = [self.until.get(sender, 0) for sender in senders]
        return values

    def restore(self, records: Iterable[tuple[Any, ...]]) -> None:
        """Add senders as they were stored (the columns of the table ``sender``), in the order of their numbers."""
        columns: tuple[Any, ...] = (
            self.block, self.names, self.state, self.word, self.rank, self.at, self.last_seen, self.since, self.floor,
            self.events, self.head,
        )  # fmt: skip
        rows = iter(records)
        while some := list(islice(rows, 10_000)):
            if some[-1][0] - len(self.names) >= len(some):
                some = self._filled(some)
            numbers, *fields, untils = zip(*some, strict=True)
            for column, values in zip(columns, fields, strict=True):
                column.extend(values)
            if any(untils):
                self.until |= {sender: until for sender, until in zip(numbers, untils, strict=True) if until}
        self._room = len(self.names)

    def _filled(self, records: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Return ``records`` with an empty row for each unused number, and add these to the free numbers."""
        following, filled = len(self.names), list[tuple[Any, ...]]()
        for record in records:
            free = range(following, record[0])
            self._free += free
            filled += ((number, 0, "", *(0,) * 7, b"", 0, 0) for number in free)
            filled.append(record)
            following = record[0] + 1
        return filled


def event_key(event_id: str) -> bytes:
    r"""Return 16 bytes that identify an advisory and sort as its id does.

    >>> event_key("00ff" * 8).hex(), event_key("plain-1")
    ('00ff00ff00ff00ff00ff00ff00ff00ff', b'plain-1\x00\x00\x00\x00\x00\x00\x00\x00\x00')
    """
    if len(event_id) == 2 * _ID_BYTES:
        try:
            return bytes.fromhex(event_id)
        except ValueError:
            pass
    return event_id.encode(errors="surrogatepass")[:_ID_BYTES].ljust(_ID_BYTES, b"\0")

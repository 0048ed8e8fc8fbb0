"""Shipments (rows that are published and answered together), their answers, and the region's terms."""

from collections.abc import Sequence
from enum import Enum, auto

import msgspec

from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow, SizeLimit
from edge_agent.store.port import EVERYTHING


class Form(Enum):
    """The form in which rows are published.

    A batch is stored whole or not at all, each row behind the previous one. In a chain, each row is stored only
    directly behind the previous one, and the last answer covers all: MISPLACED if the chain broke, when some of the
    first rows may be stored. A question stores nothing: it is answered with DUPLICATE if the region has the row,
    otherwise MISPLACED.
    """

    SINGLE = auto()
    BATCH = auto()
    CHAIN = auto()
    QUESTION = auto()


class ShipmentPlace(msgspec.Struct, frozen=True):
    """The place in the stream of the last message of a subject; a successor elsewhere is refused."""

    subject: str
    sequence: int


class Shipment(msgspec.Struct, frozen=True, gc=False):
    """Rows of one lane and block. ``number`` is never used again; rows may have to stand ``behind`` another one."""

    number: int
    lane: Lane
    rows: Sequence[OutboxRow]
    form: Form = Form.SINGLE
    behind: ShipmentPlace | None = None

    @property
    def size(self) -> int:
        """The approximate size on the wire, in bytes."""
        return RECORD_OVERHEAD if self.form is Form.QUESTION else sum([row.size for row in self.rows])


class Outcome(Enum):
    """The outcome of a shipment. Everything but STORED stored nothing of it, unless it was a chain.

    A single row that the region already has is STORED; a batch with such a row is a DUPLICATE. MISPLACED: it would not
    be stored at its place. NO_BATCHES: the stream, or its server, takes none. BUSY: not now. TOO_LARGE: never.
    """

    STORED = auto()
    DUPLICATE = auto()
    MISPLACED = auto()
    NO_BATCHES = auto()
    BUSY = auto()
    TOO_LARGE = auto()
    REFUSED = auto()


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to one shipment: ``sequence`` is where its last row is stored, ``reason`` why it was refused.

    ``limit`` is that of a row that is TOO_LARGE.
    """

    number: int
    outcome: Outcome
    sequence: int = 0
    reason: str = ""
    limit: SizeLimit = SizeLimit.MAX_MSG_SIZE


FIRST_RETRY, LONGEST_RETRY = 0.25, 5.0
"""The first and the longest pause before a retry, in seconds."""

HEADROOM = 512
"""Bytes by which a row in a batch must be below the limit, for the headers of the batch."""


class Terms:
    """Terms of the region, as far as this connection has shown them; and numbers for shipments.

    Whether batches are taken is learnt by block, since blocks may use different streams; and only by a question,
    because rows of a failed trial would arrive after later ones. A row that may be too large is sent alone: in a batch,
    all rows would be refused and sent again alone.

    ``max_payload`` is the servers' limit in bytes. ``dropped`` are blocks with records dropped for their size;
    largest_accepted() is the largest message accepted since. ``takes_batches`` has the blocks whose answer arrived,
    ``asked`` those with a question under way.
    """

    def __init__(self) -> None:
        self.max_payload = EVERYTHING
        self.dropped: set[str] = set()
        self._largest_accepted: dict[str, int] = {}
        self._refused_sizes: dict[str, int] = {}
        self.takes_batches: dict[str, bool] = {}
        self.asked: set[str] = set()
        self._number = 0

    def forget(self) -> None:
        """Forget all terms for a new connection."""
        self.takes_batches.clear()
        self._refused_sizes.clear()
        self.asked.clear()

    def is_asked(self, block: str) -> bool:
        """Return True if it is known whether batches of a block are taken, or a question is under way."""
        return block in self.asked or block in self.takes_batches

    def alone_from(self, block: str) -> int:
        """Return the row size in bytes from which on a row of a block is sent alone."""
        return min(self.max_payload - HEADROOM, self._refused_sizes.get(block, EVERYTHING))

    def note_refused_size(self, block: str, size: int) -> None:
        self._refused_sizes[block] = min(size, self._refused_sizes.get(block, size))
        self._largest_accepted.pop(block, None)
        self.dropped.add(block)

    def note_accepted_size(self, block: str, size: int) -> None:
        if self._refused_sizes and size >= self._refused_sizes.get(block, EVERYTHING):
            del self._refused_sizes[block]

    def note_accepted_need(self, block: str, needed: int) -> None:
        self._largest_accepted[block] = max(needed, self._largest_accepted.get(block, 0))

    def largest_accepted(self, block: str) -> int:
        """Return the largest checked message accepted since one was too large, in bytes; 0 if there is none."""
        return self._largest_accepted.get(block, 0)

    def learn(self, block: str, form: Form, outcome: Outcome) -> None:
        """Apply the answer to a question or a batch."""
        self.asked.discard(block)
        if form is Form.QUESTION and outcome is Outcome.TOO_LARGE:
            # Its headers are more than the stream takes of any message.
            outcome = Outcome.NO_BATCHES
        match outcome:
            case Outcome.NO_BATCHES:
                self.takes_batches[block] = False
            case Outcome.STORED | Outcome.DUPLICATE | Outcome.MISPLACED:
                self.takes_batches.setdefault(block, True)

    def next_number(self) -> int:
        self._number += 1
        return self._number

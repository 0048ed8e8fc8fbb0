"""Name what goes to the region and is answered as one, and the answers that there are."""

from collections.abc import Sequence
from enum import Enum, StrEnum, auto

import msgspec

from edge_agent.core.records import RECORD_OVERHEAD, Lane, OutboxRow


class Form(Enum):
    """How rows are published.

    A batch is stored whole or not at all, each of its rows behind the one before. Of a chain, each row is stored only
    directly behind the one before, and the last one's answer stands for all: MISPLACED where it broke, when some of
    the first may be stored. A question stores nothing: it is answered with DUPLICATE where the region knows the row,
    with MISPLACED where it does not.
    """

    SINGLE = auto()
    BATCH = auto()
    CHAIN = auto()
    QUESTION = auto()


class Place(msgspec.Struct, frozen=True):
    """Where the last message of a subject stands in the stream: what is to follow it is refused otherwise."""

    subject: str
    sequence: int


class Shipment(msgspec.Struct, frozen=True, gc=False):
    """Rows of one lane and block. ``number`` is never used again; a batch may have to stand ``behind`` another row."""

    number: int
    lane: Lane
    rows: Sequence[OutboxRow]
    form: Form = Form.SINGLE
    behind: Place | None = None

    @property
    def size(self) -> int:
        """Give about what it takes on the wire, in bytes."""
        return RECORD_OVERHEAD if self.form is Form.QUESTION else sum([row.size for row in self.rows])


class Outcome(Enum):
    """What became of a shipment. Everything but STORED stored nothing of it, unless it was a chain.

    A single row that the region knows already is STORED; a batch with such a row is a DUPLICATE. MISPLACED: it would
    not stand where it has to. NO_BATCHES: the stream, or its server, takes none. BUSY: not now. TOO_LARGE: never.
    """

    STORED = auto()
    DUPLICATE = auto()
    MISPLACED = auto()
    NO_BATCHES = auto()
    BUSY = auto()
    TOO_LARGE = auto()
    REFUSED = auto()


class SizeLimit(StrEnum):
    """Whose limit a message is over: the servers' for any message, or that of the stream. Named as the settings are."""

    MAX_PAYLOAD = "max_payload"
    MAX_MSG_SIZE = "max_msg_size"


class Answer(msgspec.Struct, frozen=True, gc=False):
    """The answer to one shipment: ``sequence`` is where its last row is stored, ``reason`` why it was refused.

    ``limit`` is that of a row that is TOO_LARGE.
    """

    number: int
    outcome: Outcome
    sequence: int = 0
    reason: str = ""
    limit: SizeLimit = SizeLimit.MAX_MSG_SIZE


class TooLarge(msgspec.Struct, frozen=True):
    """Why a row cannot be taken: the target would have to take messages of ``needed`` bytes, headers included."""

    limit: SizeLimit
    needed: int

"""Learn anew on each connection whether the region takes batches of a block, and which rows had better go alone."""

from edge_agent.delivery.shipment import Form, Outcome
from edge_agent.ingest.port import EVERYTHING

HEADROOM = 512
"""How much shorter than a message may be, in bytes, a row is that may go in a batch: that has headers of its own."""


class Terms:
    """What the region takes, as far as this connection has shown; and numbers for shipments.

    Whether batches are taken is known by block, since blocks may go into different streams; and only when it was asked:
    a trial with rows would have them arrive behind later ones.

    A row that may be too large goes alone: in a batch it would have all of them refused, and each sent again alone.
    ``max_payload`` is what the servers take, in bytes. ``dropped`` names the blocks whose records were dropped for
    their size: of these taken() says how large a message was taken since.
    """

    def __init__(self) -> None:
        self.max_payload = EVERYTHING
        self.dropped: set[str] = set()
        self._taken: dict[str, int] = {}
        self._refused_sizes: dict[str, int] = {}
        self._takes_batches: dict[str, bool] = {}
        self._asked: set[str] = set()
        self._number = 0

    def forget(self) -> None:
        """Expect nothing of another connection."""
        self._takes_batches.clear()
        self._refused_sizes.clear()
        self._asked.clear()

    def takes_batches(self, block: str) -> bool | None:
        """Tell whether batches of a block are taken, None where nobody knows."""
        return self._takes_batches.get(block)

    def is_asked(self, block: str) -> bool:
        """Tell whether that is known, or a question under way."""
        return block in self._asked or block in self._takes_batches

    def ask(self, block: str) -> None:
        """Note that a question is under way."""
        self._asked.add(block)

    def unanswered(self, block: str) -> None:
        """Note that nobody waits for the answer any more."""
        self._asked.discard(block)

    def alone_from(self, block: str) -> int:
        """Give from which size on a row of a block goes alone."""
        return min(self.max_payload - HEADROOM, self._refused_sizes.get(block, EVERYTHING))

    def was_too_large(self, block: str, size: int) -> None:
        """Note that a row of a size was refused for it."""
        self._refused_sizes[block] = min(size, self._refused_sizes.get(block, size))
        self._taken.pop(block, None)
        self.dropped.add(block)

    def was_taken(self, block: str, size: int) -> None:
        """Note that a row of a size was taken."""
        if self._refused_sizes and size >= self._refused_sizes.get(block, EVERYTHING):
            del self._refused_sizes[block]

    def covers(self, block: str, needed: int) -> None:
        """Note that a message was taken that needs so many bytes."""
        self._taken[block] = max(needed, self._taken.get(block, 0))

    def taken(self, block: str) -> int:
        """Give how large a message was taken, of those that were looked at, since one was too large; 0: not known."""
        return self._taken.get(block, 0)

    def learn(self, block: str, form: Form, outcome: Outcome) -> None:
        """Take what the answer to a question or to a batch says."""
        self._asked.discard(block)
        if form is Form.QUESTION and outcome is Outcome.TOO_LARGE:
            # Its headers are more than the stream takes of any message.
            outcome = Outcome.NO_BATCHES
        match outcome:
            case Outcome.NO_BATCHES:
                self._takes_batches[block] = False
            case Outcome.STORED | Outcome.DUPLICATE | Outcome.MISPLACED:
                self._takes_batches.setdefault(block, True)

    def next_number(self) -> int:
        """Give a number that no shipment had."""
        self._number += 1
        return self._number

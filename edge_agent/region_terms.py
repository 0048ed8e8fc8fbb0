"""Learn anew on each connection, by asking, whether the region takes batches of a block."""

from edge_agent.core.shipment import Outcome


class Terms:
    """What the region takes, as far as this connection has shown; and numbers for shipments.

    Whether batches are taken is known by block, since blocks may go into different streams; and only when it was asked:
    a trial with rows would have them arrive behind later ones.
    """

    def __init__(self) -> None:
        self._takes_batches: dict[str, bool] = {}
        self._asked: set[str] = set()
        self._number = 0

    def forget(self) -> None:
        """Expect nothing of another connection."""
        self._takes_batches.clear()
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

    def learn(self, block: str, outcome: Outcome) -> None:
        """Take what the answer to a question or to a batch says."""
        self._asked.discard(block)
        match outcome:
            case Outcome.NO_BATCHES:
                self._takes_batches[block] = False
            case Outcome.STORED | Outcome.DUPLICATE | Outcome.MISPLACED:
                self._takes_batches.setdefault(block, True)

    def next_number(self) -> int:
        """Give a number that no shipment had."""
        self._number += 1
        return self._number

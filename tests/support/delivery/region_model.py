"""Model what a region's stream does with copies, conditions included, while others write to it too.

Learnt from nats-server 2.15.1; ``tests/integration/delivery/test_copy_chains.py`` asks the real one.
"""

import random
from collections.abc import Iterator, Sequence

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.delivery.shipment import Answer, Form, Outcome, Shipment
from shared.wire import MESSAGE_ID_HEADER, REASON_HEADER

NEVER_TAKEN, TAKEN_SHORTENED = 5_000, 4_000
"""Sizes of payloads that are too large, one of them only with a header that can be spared."""

ANOTHER_SITES = "fleet.eu-west.other.nodes.registration"


class RegionModel:
    """One stream. ``others_write`` is how often another site's messages come before a shipment, of 1."""

    def __init__(self, draw: random.Random, *, takes_batches: bool, others_write: float) -> None:
        self._draw = draw
        self._takes_batches, self._others_write = takes_batches, others_write
        self._length = 0
        self._ends: dict[str, int] = {}
        self._places: dict[str, int] = {}
        self._refused: set[str] = set()
        self.stored: list[str] = []

    def refuse(self, rows: Sequence[OutboxRow]) -> None:
        """Take none of these rows from now on; others are taken again."""
        self._refused = {_id(row) for row in rows}

    def take(self, shipment: Shipment) -> Answer:
        """Store what may be stored, and answer."""
        if self._happens(self._others_write):
            self._others(self._draw.choice((1, 2, 8)))
        takes = {Form.SINGLE: self._single, Form.BATCH: self._batch, Form.CHAIN: self._chain, Form.QUESTION: self._word}
        outcome, sequence = takes[shipment.form](shipment)
        return Answer(shipment.number, outcome, sequence)

    def _single(self, shipment: Shipment) -> tuple[Outcome, int]:
        return self._put(shipment.rows[0])

    def _word(self, shipment: Shipment) -> tuple[Outcome, int]:
        if not self._takes_batches:
            return Outcome.NO_BATCHES, 0
        if self._happens(0.05):
            return Outcome.BUSY, 0
        return (Outcome.DUPLICATE if _id(shipment.rows[0]) in self._places else Outcome.MISPLACED), 0

    def _batch(self, shipment: Shipment) -> tuple[Outcome, int]:
        ids = {_id(row) for row in shipment.rows}
        if not self._takes_batches:
            return Outcome.NO_BATCHES, 0
        if self._happens(0.03):
            return Outcome.BUSY, 0
        if ids & self._places.keys():
            return Outcome.DUPLICATE, 0
        if shipment.behind and self._ends.get(shipment.behind.subject, 0) != shipment.behind.sequence:
            return Outcome.MISPLACED, 0
        is_too_large = any(map(_is_too_large, shipment.rows))
        if is_too_large or ids & self._refused or self._happens(0.01):
            return Outcome.TOO_LARGE if is_too_large else Outcome.REFUSED, 0
        for row in shipment.rows:
            self._store(row)
        return Outcome.STORED, self._length

    def _chain(self, shipment: Shipment) -> tuple[Outcome, int]:
        """Judge each row by itself; the last one's answer is the chain's."""
        assert shipment.behind is not None
        before, sequence = shipment.behind.subject, shipment.behind.sequence
        answer = Outcome.MISPLACED, 0
        for row in shipment.rows:
            if self._happens(self._others_write / 4):
                self._others(1)
            if (self._length, self._ends.get(before, 0)) != (sequence, sequence):
                answer = Outcome.MISPLACED, 0
            else:
                answer = self._put(row)
            before, sequence = row.subject, sequence + 1
        return answer

    def _put(self, row: OutboxRow) -> tuple[Outcome, int]:
        known = self._places.get(_id(row))
        if known:
            return Outcome.STORED, known
        if _is_too_large(row):
            return Outcome.TOO_LARGE, 0
        if _id(row) in self._refused or self._happens(0.01):
            return Outcome.REFUSED, 0
        self._store(row)
        return Outcome.STORED, self._length

    def _store(self, row: OutboxRow) -> None:
        self._length += 1
        self._ends[row.subject] = self._places[_id(row)] = self._length
        self.stored.append(_id(row))

    def _others(self, count: int) -> None:
        self._length += count
        self._ends[ANOTHER_SITES] = self._length

    def _happens(self, share: float) -> bool:
        return self._draw.random() < share


def _is_too_large(row: OutboxRow) -> bool:
    """Tell whether the stream takes no message of that size."""
    size = len(row.payload)
    return size == NEVER_TAKEN or (size == TAKEN_SHORTENED and REASON_HEADER in row.headers)


def _id(row: OutboxRow) -> str:
    return row.headers[MESSAGE_ID_HEADER]


def drawn_copies(draw: random.Random, count: int) -> Iterator[OutboxRow]:
    """Draw copies of one or two blocks, on one or more subjects, in the order of their ids: small, large, too large."""
    too_large = draw.choice((0.0, 0.02, 0.2))
    blocks, subjects = draw.choice((("all",), ("all", "nodes"))), draw.choice((1, 3))
    block = blocks[0]
    for number in range(1, count + 1):
        block = draw.choice(blocks) if draw.random() < 0.2 else block
        yield OutboxRow(
            lane=Lane.COPIES,
            block=block,
            subject=f"fleet.eu-west.dub1.{block}.copy.s{draw.randrange(subjects)}",
            headers={MESSAGE_ID_HEADER: str(number), REASON_HEADER: "copy"},
            payload=bytes(draw.choice((NEVER_TAKEN, TAKEN_SHORTENED) if draw.random() < too_large else (10, 3_000))),
            row_id=number,
        )

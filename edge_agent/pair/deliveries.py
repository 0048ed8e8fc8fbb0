"""Mapping of outbox rows to entries of the pair's log, and the deliveries of the pair.

The leader finds from the region's acknowledgements up to which entry everything has arrived, and writes that into the
log; the other member then deletes the rows that it made of the same entries. Each counts by its own rows: their content
is the same in both stores, their numbers are not.
"""

from collections import deque
from collections.abc import Mapping

import msgspec

from edge_agent.core.records import Lane
from edge_agent.pair.log import Delivered

LANES = (Lane.ADVISORIES, Lane.REGISTRATIONS)


class _DeliveryMark(msgspec.Struct, frozen=True):
    """How far the rows up to ``row_id`` reach, in entries by block.

    All rows of the entries up to ``held`` are among them; rows of entries up to ``begun`` may be, since the blocks
    commit side by side.
    """

    row_id: int
    held: dict[str, int]
    begun: dict[str, int]


class Deliveries:
    """The rows of advisories and of registrations that wait, in order: a pair copies nothing.

    ``reached`` names for every block the last entry that its rows in the store may be of, ``last_row_ids`` the last
    rows of the lanes: what is there when the agent starts.
    """

    def __init__(self, reached: Mapping[str, int], last_row_ids: Mapping[Lane, int]) -> None:
        self.delivered: Delivered = {}
        self._begun, self._done = dict(reached), dict(reached)
        self._marks = {lane: deque([_DeliveryMark(last_row_ids[lane], dict(reached), dict(reached))]) for lane in LANES}

    def knows(self, block: str) -> bool:
        """Return True if the store holds an entry of a block."""
        return block in self._begun

    def begin(self, block: str, sequence: int) -> None:
        """Note that a commit of an entry's rows is under way."""
        self._begun[block] = sequence

    def committed(self, block: str, last_row_ids: Mapping[Lane, int]) -> None:
        """Note how far the rows reach now that a block's commit has ended."""
        self._done[block] = self._begun[block]
        for lane, marks in self._marks.items():
            if not marks or last_row_ids[lane] > marks[-1].row_id:
                marks.append(_DeliveryMark(last_row_ids[lane], dict(self._done), dict(self._begun)))

    def acknowledged(self, through: Mapping[Lane, int]) -> None:
        """Note the region's acknowledgements to us: by lane, the row up to which none waits any more."""
        for lane, marks in self._marks.items():
            while marks and marks[0].row_id <= through[lane]:
                self._learn(lane, marks.popleft().held)
            if not marks:
                # Entries without rows count as delivered.
                self._learn(lane, self._done)

    def row_ids_of(self, delivered: Delivered) -> dict[Lane, int]:
        """Note the leader's deliveries; return by lane the row up to which ours may be deleted."""
        gone = {}
        for block, lanes in delivered.items():
            for name, sequence in lanes.items():
                self._learn(Lane[name.upper()], {block: sequence})
        for lane, marks in self._marks.items():
            while marks and all(self._delivered(block, lane) >= needed for block, needed in marks[0].begun.items()):
                gone[lane] = marks.popleft().row_id
        return gone

    def _delivered(self, block: str, lane: Lane) -> int:
        return self.delivered.get(block, {}).get(lane.name.lower(), 0)

    def _learn(self, lane: Lane, entries: Mapping[str, int]) -> None:
        for block, sequence in entries.items():
            if sequence > self._delivered(block, lane):
                self.delivered.setdefault(block, {})[lane.name.lower()] = sequence

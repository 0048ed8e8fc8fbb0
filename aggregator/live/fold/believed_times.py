"""Believed instants of records in the live fold: the rules are those of ``archive/reach.py``."""

from aggregator.archive.judgement import AdvisoryBody
from aggregator.archive.reach import believed_earlier
from shared.identifiers import Incarnation, InvalidIdentifier
from shared.wire import Watermark

_MOST_CREATIONS = 10_000


class BelievedTimes:
    """The believed instants, with a cache of the creation times of streams by incarnation."""

    def __init__(self) -> None:
        self._created: dict[str, int] = {}

    def last_seen(self, said: AdvisoryBody, at: int, lead: int) -> int:
        """Return the believed last sighting of an advisory that is believed to be of ``at``."""
        return believed_earlier(said.last_seen_us, at, lead, self._created_at(said.incarnation or "", said.at_us))

    def since(self, said: Watermark, through: int, lead: int) -> int:
        """Return the believed start of the span of a watermark that is believed to be of ``through``."""
        created_at = self._created_at(said.incarnation, said.observed_through_us)
        return believed_earlier(said.observed_since_us, through, lead, created_at)

    def _created_at(self, incarnation: str, claimed_at: int) -> int:
        """Return the creation of an incarnation's stream; 0 where that is after ``claimed_at`` or not known."""
        created = self._created.get(incarnation)
        if created is None:
            try:
                created = Incarnation.parse(incarnation).created_at
            except InvalidIdentifier:
                created = 0
            if len(self._created) < _MOST_CREATIONS:
                self._created[incarnation] = created
        return created if created <= claimed_at else 0

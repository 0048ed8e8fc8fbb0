"""Take copies to the region that were not stored before: in order, and only while nothing goes wrong.

What is refused here closes the passage. Its rows are stored then, and the lane of stored copies asks again, tells why,
and waits; or goes on, where a row was too large.
"""

from collections.abc import Callable

from edge_agent.core.flight_limit import FlightLimit
from edge_agent.core.records import OutboxRow
from edge_agent.delivery.copy_lane import CopyLane
from edge_agent.delivery.fast_path import Passage
from edge_agent.delivery.shipment import Answer, Shipment, SizeLimit
from edge_agent.region_terms import Terms
from edge_agent.runtime.tally import Tally


class PassLane(CopyLane):
    """The lane whose rows are in the passage, for as long as that is open."""

    def __init__(
        self, passage: Passage, terms: Terms, flight_limit: FlightLimit, publishes: Tally, wake: Callable[[], None]
    ) -> None:
        super().__init__(passage, terms, flight_limit, publishes, wake)
        self._passage = passage
        self._closed_count = passage.closed_count

    def next_shipment(self, _appends: int) -> Shipment | None:
        """Give what may leave now; what was read of a passage that has closed since no longer may."""
        if self._closed_count != self._passage.closed_count:
            self._closed_count = self._passage.closed_count
            self.rewind()
        return super().next_shipment(self._passage.handed_count)

    def _leave_behind(self, _row: OutboxRow, _limit: SizeLimit) -> None:
        self._passage.close()

    def _refuse(self, _row: OutboxRow, _answer: Answer) -> None:
        self._passage.close()

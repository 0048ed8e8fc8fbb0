"""Ask a lane by hand what leaves next."""

from edge_agent.core.records import Lane
from edge_agent.delivery.copy_lane import CopyScheduler
from edge_agent.delivery.flow_control import FlightLimit
from edge_agent.delivery.lane import LaneFlight, ParallelScheduler, UploadLane
from edge_agent.delivery.shipment import Shipment, Terms
from edge_agent.runtime.tally import Tally
from edge_agent.store.port import LaneRows
from tests.support.waiting import until


def parallel_lane(lane: Lane, store: LaneRows, limit: FlightLimit | None = None) -> UploadLane:
    """Build a lane of advisories or registrations."""
    flight = LaneFlight(lane, store, Terms(), limit or FlightLimit(), Tally(), _woken)
    return UploadLane(flight, ParallelScheduler(flight))


def copies_lane(store: LaneRows, terms: Terms | None = None) -> UploadLane:
    """Build a lane of copies."""
    flight = LaneFlight(Lane.COPIES, store, terms or Terms(), FlightLimit(), Tally(), _woken)
    return UploadLane(flight, CopyScheduler(flight))


async def next_of(lane: UploadLane) -> Shipment | None:
    """Give what may leave now, what has to be read from the file for that included."""
    while (shipment := lane.next_shipment()) is None and lane.flight.reader.is_reading:
        await until(lambda: not lane.flight.reader.is_reading, "the lane has read its rows")
    return shipment


def _woken() -> None:
    """Do what a lane's uploader does not need to do where somebody asks by hand: nothing."""

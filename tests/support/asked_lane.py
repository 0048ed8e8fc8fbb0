"""Ask a lane by hand what leaves next."""

from edge_agent.delivery.lane import UploadLane
from edge_agent.delivery.shipment import Shipment
from tests.support.waiting import until


async def next_of(lane: UploadLane, appends: int = 1) -> Shipment | None:
    """Give what may leave now, what has to be read from the file for that included."""
    while (shipment := lane.next_shipment(appends)) is None and lane.is_reading:
        await until(lambda: not lane.is_reading, "the lane has read its rows")
    return shipment


def woken() -> None:
    """Do what a lane's uploader does not need to do where somebody asks by hand: nothing."""

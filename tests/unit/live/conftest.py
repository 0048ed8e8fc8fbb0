import pytest

from shared.instants import MINUTE, SECOND
from tests.support.lakehouse.hub import Block
from tests.support.live.told import START, Told


@pytest.fixture
def told() -> Told:
    """Tell of one site that is well but for one stale sender, known until START + 20 minutes."""
    told, block = Told(), Block("eu-west", "dub1")
    told.at(START, block.new("web1", START), block.new("web2", START))
    through = START + 20 * MINUTE
    told.at(through, block.stale("web1", START + SECOND), block.watermark(START, through))
    return told

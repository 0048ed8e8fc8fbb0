"""A real hub whose clock is set back: the live service and the tables say the same, and both are right again."""

import asyncio
import random
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest

from aggregator.fleet.agreement import Agreement, compare
from aggregator.lakehouse.derive.coverage import believed_times
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.rollup import RollupRequest
from aggregator.lakehouse.tables.schemas import ADVISORIES, DERIVED, WATERMARKS
from aggregator.live.fold import fleet as fold
from aggregator.live.fold.changes import Archived
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.nats.connection import connect
from tests.lakehouse.conftest import Lakehouse, say
from tests.support.lakehouse.hub import DEADLINE
from tests.support.lakehouse.random_fleet import draw_block
from tests.support.live.archived_history import archived
from tests.support.nats.stepped_clock import CANNOT_STEP, SteppedClock

pytestmark = pytest.mark.skipif(bool(CANNOT_STEP), reason=CANNOT_STEP)


@pytest.fixture
def clock(lakehouse: Lakehouse) -> Iterator[SteppedClock]:
    with SteppedClock(lakehouse.hub.server) as clock:
        yield clock


def drawn(draw: random.Random, blocks: int) -> list[Archived]:
    """Draw a fleet of the last days, and when the hub, whose clock is set back at least once, stored its messages."""
    end = time.time_ns() // 1_000 - HOUR
    while True:
        histories = [draw_block(draw, f"site{number}", "nodes", end - 4 * DAY, end) for number in range(blocks)]
        messages = archived(draw, histories, steps=True)
        stamps = [each.archived_at for each in messages]
        # A short step between two messages that are far apart shows in no stamp.
        if any(later < earlier - MINUTE for earlier, later in pairwise(stamps)):
            return messages


def stored(lakehouse: Lakehouse, clock: SteppedClock, messages: Sequence[Archived]) -> int:
    """Have the hub store each message at its own instant; return the last sequence."""

    async def storing() -> None:
        async with await connect(lakehouse.hub.connection, name="test", deadline=DEADLINE) as client:
            for each in messages:
                clock.set((each.archived_at - time.time_ns() // 1_000) // SECOND * SECOND)
                await client.request(each.subject.decode(), each.payload, timeout=DEADLINE)

    asyncio.run(storing())
    return lakehouse.hub.mirrored()


def compared(lakehouse: Lakehouse) -> Agreement:
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        return asyncio.run(compare(lakehouse.settings, tables, say))


def derived(lakehouse: Lakehouse) -> dict[str, list[tuple[object, ...]]]:
    return {
        table.name: sorted(lakehouse.rows_in_spark(f"SELECT * FROM {table.identifier}"), key=repr) for table in DERIVED
    }


@pytest.mark.parametrize("seed", [random.randrange(1 << 30)], ids=["drawn"])
def test_live_and_tables_agree_whenever_the_hubs_clock_is_set_and_a_full_run_changes_nothing(
    lakehouse: Lakehouse, clock: SteppedClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    print(f"seed {seed}")
    for module in (fold, believed_times):
        # Drawn clocks are off by hours, as steps are.
        monkeypatch.setattr(module, "SKEW", 8 * HOUR)
    draw = random.Random(seed)
    messages = drawn(draw, 8)
    parts = [draw.randrange(1, len(messages))]
    for begin, end in pairwise([0, *parts, len(messages)]):
        stored(lakehouse, clock, messages[begin:end])
        lakehouse.roll_up()
        found = compared(lakehouse)
        assert found.differences == []
        assert (found.contradict, found.only_live, found.only_tables) == (0, 0, 0), str(found)
    before = derived(lakehouse)
    lakehouse.roll_up(RollupRequest(full=True))
    assert derived(lakehouse) == before
    records = " UNION ALL ".join(
        f"FROM {table.name} SELECT hub_sequence, archived_at" for table in (ADVISORIES, WATERMARKS)
    )
    archived_at = lakehouse.rows(f"SELECT archived_at FROM ({records}) ORDER BY hub_sequence")
    assert archived_at == sorted(archived_at)
    assert lakehouse.rows("FROM clock_steps SELECT 1 WHERE stepped_at > fell_to")

"""Which watermarks a new one makes superfluous, and which keep their place."""

import pytest

from edge_agent.core.records import Lane, OutboxRow
from edge_agent.store.outbox_index import LastWatermark, merge_watermarks

NOTHING_SENT = 0


def watermark(row_id: int, block: str = "nodes", since: int = 1) -> OutboxRow:
    return OutboxRow(Lane.ADVISORIES, block, "watermark", {}, b"w" * row_id, watermark_since=since, row_id=row_id)


def advisory(row_id: int, block: str = "nodes") -> OutboxRow:
    return OutboxRow(Lane.ADVISORIES, block, "advisory", {}, b"a", row_id=row_id)


class Waiting:
    """The lane as it stands after each batch: the rows that wait, and those that a later batch made superfluous."""

    def __init__(self) -> None:
        self.row_ids: list[int] = []
        self.last_watermarks: dict[str, LastWatermark] = {}
        self.sizes_removed: dict[int, int] = {}

    def append(self, *rows: OutboxRow, end: int = 0, unsent_after: int = NOTHING_SENT) -> list[int]:
        """Append a batch behind row ``end``; give what waits now."""
        kept, superfluous = merge_watermarks(list(rows), self.last_watermarks, end, unsent_after)
        assert superfluous.keys() <= set(self.row_ids), "what was never put into the lane cannot be deleted there"
        self.sizes_removed |= superfluous
        self.row_ids = [each for each in self.row_ids if each not in superfluous] + [row.row_id for row in kept]
        return self.row_ids


def test_of_one_batch_the_newest_remains_and_nothing_is_deleted() -> None:
    lane = Waiting()
    assert lane.append(watermark(1), watermark(2), watermark(3)) == [3]
    assert lane.sizes_removed == {}


def test_one_of_an_earlier_batch_is_superfluous_with_the_size_it_had() -> None:
    lane = Waiting()
    lane.append(watermark(7))
    assert lane.append(watermark(8), end=7) == [8]
    assert lane.sizes_removed == {7: watermark(7).size}


@pytest.mark.parametrize(
    "between",
    [
        pytest.param(advisory(2), id="an advisory between"),
        pytest.param(watermark(2, since=2), id="another coverage"),
    ],
)
def test_what_lies_between_of_its_block_keeps_both(between: OutboxRow) -> None:
    assert Waiting().append(watermark(1), between, watermark(3)) == [1, 2, 3]


@pytest.mark.parametrize("unsent_after", [1, 2])
def test_one_that_may_be_in_flight_stays(unsent_after: int) -> None:
    lane = Waiting()
    lane.append(watermark(1))
    assert lane.append(watermark(2), end=1, unsent_after=unsent_after) == [1, 2]


def test_among_others_records_the_first_keeps_its_place_and_the_newest_replaces_all_behind_it() -> None:
    lane = Waiting()
    lane.append(watermark(1), advisory(2, "others"))
    assert lane.append(watermark(3), advisory(4, "others"), end=2) == [1, 2, 3, 4]
    assert lane.append(watermark(5), advisory(6, "others"), end=4) == [1, 2, 4, 5, 6]
    assert lane.append(watermark(7), end=6) == [1, 2, 4, 6, 7]


def test_the_next_keeps_a_place_of_its_own_once_the_first_may_be_in_flight() -> None:
    lane = Waiting()
    lane.append(watermark(1), advisory(2, "others"), watermark(3), advisory(4, "others"))
    assert lane.append(watermark(5), advisory(6, "others"), end=4, unsent_after=1) == [1, 2, 3, 4, 5, 6]
    assert lane.append(watermark(7), end=6, unsent_after=1) == [1, 2, 3, 4, 6, 7]


def test_last_watermarks_follow_the_rows_of_each_block() -> None:
    lane = Waiting()
    lane.append(watermark(1), watermark(2, "others"), watermark(3), advisory(4, "others"))
    assert lane.last_watermarks == {"nodes": LastWatermark(3, 1, watermark(3).size, behind=1)}


def test_rows_of_which_none_is_superfluous_are_given_back_as_they_came() -> None:
    rows = [advisory(1), watermark(2), advisory(3)]
    kept, superfluous = merge_watermarks(rows, {}, 0, NOTHING_SENT)
    assert kept is rows
    assert superfluous == {}

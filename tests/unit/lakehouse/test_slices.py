"""What is read at once is cut by what it weighs, for as many cores as there are."""

import pytest

from aggregator.lakehouse.archive.reading_plan import Span
from aggregator.lakehouse.archive.slices import cut
from aggregator.lakehouse.bronze.chunks import slice_count


@pytest.mark.parametrize(
    ("messages", "size", "cores", "count"),
    [
        (0, 600, 2, 1),
        (13, 600, 2, 1),
        (40_000, 600, 2, 2),
        (1_000_000, 100, 2, 10),
        # Registrations of 13 kB: 40,000 of them are a chunk.
        (40_000, 13_000, 2, 8),
        (40_000, 13_000, 32, 32),
        (1_000, 13_000, 32, 2),
    ],
)
def test_slices_are_cut_by_messages_bytes_and_cores(messages: int, size: int, cores: int, count: int) -> None:
    assert slice_count(Span(1, messages), size, cores) == count


def test_slices_are_of_like_length_and_leave_nothing_out() -> None:
    assert cut(1, 10, 3) == [(1, 4), (5, 7), (8, 10)]
    # No more of them than there are messages.
    assert cut(5, 6, 8) == [(5, 5), (6, 6)]

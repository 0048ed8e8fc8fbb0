"""Of all that is read of a mirror few messages are compared with the archive: those that would tell of another past."""

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator.archive.consumer import Messages
from aggregator.lakehouse.archive.mirror import GAPS, Witnesses
from shared.instants import MINUTE, SECOND


def messages(sequences: list[int], times: list[int]) -> Messages:
    nothing = [b""] * len(sequences)
    return Messages(np.array(sequences), nothing, np.array(times), nothing, nothing)


def seen(times: dict[int, int], batch: int) -> dict[int, int]:
    witnesses, sequences = Witnesses(), list(times)
    for begin in range(0, len(sequences), batch):
        part = sequences[begin : begin + batch]
        witnesses.see(messages(part, [times[sequence] for sequence in part]))
    return witnesses.chosen()


@given(st.integers(2, 400), st.integers(1, 50), st.data())
def test_the_messages_before_the_longest_gaps_are_compared_and_both_ends(
    count: int, batch: int, data: st.DataObject
) -> None:
    """However reading is cut into batches: before one of these gaps the archive was away, and grew again."""
    after_gaps = data.draw(st.sets(st.integers(2, count), max_size=GAPS))
    sequences = range(1, count + 1)
    steps = [MINUTE if at in after_gaps else SECOND for at in sequences]
    times = dict(zip(sequences, accumulate(steps), strict=True))
    chosen = seen(times, batch)
    assert chosen.items() <= times.items()
    assert chosen.keys() >= {1, count, *(at - 1 for at in after_gaps)}
    assert len(chosen) <= GAPS + 2


@pytest.mark.parametrize(("times", "chosen"), [({}, {}), ({7: 1}, {7: 1}), ({7: 1, 9: 3}, {7: 1, 9: 3})])
def test_few_messages_are_all_compared(times: dict[int, int], chosen: dict[int, int]) -> None:
    assert seen(times, 2) == chosen

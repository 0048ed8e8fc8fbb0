"""Who contradicts whom in a block's last watermarks, as ``check`` sees it."""

import pytest

from aggregator.topology.report.contradictions import WatermarkClaim, rivals


def voice(agent: str, incarnation: str, through: int, ordinal: int = 3, boot: str = "1") -> WatermarkClaim:
    return WatermarkClaim(agent, boot, incarnation, through, ordinal)


A, B = "dub1-a", "dub1-b"


@pytest.mark.parametrize(
    "voices",
    [
        pytest.param([], id="nobody"),
        pytest.param([voice(A, "1-1", 10), voice(A, "1-2", 20, 0), voice(A, "1-2", 30, 1)], id="another past"),
        pytest.param([voice(A, "1-1", 10), voice(B, "1-1", 20), voice(A, "1-1", 30, 4)], id="a pair takes turns"),
        pytest.param([voice(A, "1-1", 20, 4), voice(B, "1-1", 10), voice(B, "1-1", 30, 4)], id="the rest of a pair"),
        pytest.param(
            [voice(B, "1-2", 90), voice(A, "1-1", 10), voice(B, "1-2", 100), voice(A, "1-1", 20), voice(B, "1-2", 80)],
            id="FLEET is taken again",
        ),
        pytest.param(
            [voice(A, "1-1", 40), voice(A, "1-2", 20, 1), voice(A, "1-2", 50, 1)], id="the agent saw its copy"
        ),
    ],
)
def test_who_follows_contradicts_nobody(voices: list[WatermarkClaim]) -> None:
    assert rivals(voices) is None


def test_two_agents_that_are_no_pair_are_both_named() -> None:
    found = rivals([voice(A, "1-1", 10), voice(B, "1-2", 15, 0), voice(A, "1-1", 20), voice(B, "1-2", 25, 0)])
    assert found is not None
    assert ({str(found.one), str(found.other)}, found.is_copy) == ({"dub1-a (boot 1)", "dub1-b (boot 1)"}, False)


def test_an_older_copy_of_a_store_counts_fewer_advisories_at_a_later_time() -> None:
    found = rivals([voice(A, "1-1", 10, 5), voice(A, "1-1", 20, 4, boot="2")])
    assert found is not None
    assert (str(found.one), str(found.other), found.is_copy) == ("dub1-a (boot 1)", "dub1-a (boot 2)", True)

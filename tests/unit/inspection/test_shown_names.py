"""Names that anybody may choose are shown as they are, and never obeyed by the terminal that shows them."""

import pytest

from edge_agent.inspection.decisions import Decided, as_line
from shared.tables import WIDEST, Column, format_table, visible

HOSTILE = {
    "\x1b[2Jweb1": r"\x1b[2Jweb1",
    "web1\n2026-11-22T00:00:00Z  stale": r"web1\n2026-11-22T00:00:00Z  stale",
    "\u202e1bew": r"\u202e1bew",
    "\x9b31mweb1": r"\x9b31mweb1",
}
COLUMNS = [Column[str]("name", lambda name: name), Column[str]("state", lambda _name: "heard")]


@pytest.mark.parametrize(("name", "shown"), HOSTILE.items())
def test_a_name_that_holds_orders_for_a_terminal_is_written_out(name: str, shown: str) -> None:
    assert visible(name) == shown
    assert format_table(COLUMNS, [name]).splitlines()[1].startswith(f"{shown}  ")
    decided = Decided(1, "nodes", name, "stale", 720_000_000, 0, 5, "acknowledged")
    assert as_line(decided).endswith(f"  {shown}")


def test_a_name_of_any_script_is_shown_as_it_is() -> None:
    assert visible("wéb-1 東京") == "wéb-1 東京"


def test_a_name_that_is_very_long_widens_its_own_line_alone() -> None:
    _, first, second = format_table(COLUMNS, ["x" * 300, "web1"]).splitlines()
    assert first == "x" * 300 + "  heard"
    assert second == "web1".ljust(WIDEST) + "  heard"

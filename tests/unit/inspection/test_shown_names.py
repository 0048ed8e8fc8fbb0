"""Names that anybody may choose are shown in the list of decisions, and never obeyed by the terminal that shows it."""

from edge_agent.inspection.decisions import LoggedDecision, as_line


def line(name: str, width: int = 1_000) -> str:
    return as_line(LoggedDecision(1, "nodes", name, "stale", 720_000_000, 0, 5, "acknowledged"), width)


def test_a_name_that_holds_orders_for_a_terminal_is_written_out() -> None:
    assert line("\x1b[2Jweb1\n\u202e").endswith(r"  \x1b[2Jweb1\n\u202e")


def test_a_name_that_is_too_long_for_the_terminal_is_cut() -> None:
    assert line("w" * 100, 80) == line("", 80) + "w" * 22 + "…"
    assert len(line("w" * 100, 80)) == 80

"""Tables fit where they are read: no word is broken, and nothing that somebody else wrote is obeyed."""

import json
from collections.abc import Callable
from typing import NamedTuple

import pytest

from aggregator.terminal import format_table as format_with_rich
from shared.command_line.tables import UNWRAPPED, WIDEST, TableColumn, format_table, stack, visible
from shared.command_line.terminal import json_text

HOSTILE = {
    "\x1b[2Jweb1": r"\x1b[2Jweb1",
    "\x1b]52;c;cm0gLXJmIC8=\x07": r"\x1b]52;c;cm0gLXJmIC8=\x07",
    "web1\n2026-11-22T00:00:00Z  stale": r"web1\n2026-11-22T00:00:00Z  stale",
    "\u202e1bew": r"\u202e1bew",
    "a\u2066b\u2069\u200f": r"a\u2066b\u2069\u200f",
    "\x9b31mweb1": r"\x9b31mweb1",
    "web\u200b1": r"web\u200b1",
    "\ud800": r"\ud800",
}


class Node(NamedTuple):
    name: str
    remark: str
    seen: int = 3


COLUMNS = [
    TableColumn[Node]("name", lambda node: node.name),
    TableColumn[Node]("remark", lambda node: node.remark, wraps=True),
    TableColumn[Node]("seen", lambda node: str(node.seen), right=True, spare=1),
    TableColumn[Node]("lag", lambda node: str(node.seen), right=True, spare=2),
]
BOTH = pytest.mark.parametrize("layout", [format_table, format_with_rich], ids=["plain", "rich"])
Layout = Callable[..., str]


@BOTH
@pytest.mark.parametrize(("name", "shown"), HOSTILE.items())
def test_what_a_terminal_would_obey_is_written_out(name: str, shown: str, layout: Layout) -> None:
    assert visible(name) == shown
    assert layout(COLUMNS[:1], [Node(name, "")]).splitlines()[1] == shown


@BOTH
def test_a_name_of_blanks_is_seen(layout: Layout) -> None:
    assert layout(COLUMNS[:1], [Node("\u2003 ", "")]).splitlines()[1] == "\\u2003\\u0020"


@BOTH
def test_names_of_any_script_are_shown_as_they_are(layout: Layout) -> None:
    for name in ("wéb-1 東京", "non\u00a0breaking", "[bold]web1[/bold]", ":warning: web1"):
        assert layout(COLUMNS[:1], [Node(name, "")]).splitlines()[1] == name


def test_json_escapes_what_a_terminal_would_obey_and_loses_nothing() -> None:
    for name in HOSTILE.keys() - {"\ud800"}:
        text = json_text({"sender": name, "emoji": "\U0001f600\U000e0001"})
        assert text.replace("\n", "").replace("\U0001f600", "").isprintable()
        assert json.loads(text)["sender"] == name


@BOTH
def test_a_pipe_has_every_column_whole(layout: Layout) -> None:
    lines = layout(COLUMNS, [Node("web1", "a long remark " * 4)]).splitlines()
    assert lines[0].split() == ["NAME", "REMARK", "SEEN", "LAG"]
    assert lines[1].startswith(f"web1  {'a long remark ' * 4}".rstrip())
    assert len(lines) == 2


@BOTH
def test_a_narrow_terminal_gets_no_line_that_is_too_long_and_no_broken_word(layout: Layout) -> None:
    rows = [Node("web1.example.net", "not taken yet"), Node("a", "b " * 20)]
    words = {word for node in rows for word in (node.name, *node.remark.split())}
    for width in range(30, 100):
        lines = layout(COLUMNS, rows, width).splitlines()
        said = [line for line in lines if not line.startswith("(a wider")]
        assert max(map(len, said)) <= width
        assert {word for line in said for word in line.split()} >= words


@BOTH
def test_what_can_be_spared_is_left_out_first_and_said(layout: Layout) -> None:
    node = Node("web1.example.net", "new")
    assert layout(COLUMNS, [node], 33).splitlines() == [
        "NAME              REMARK  SEEN",
        "web1.example.net  new        3",
        "(a wider terminal also shows LAG)",
    ]
    assert layout(COLUMNS, [node], 22).splitlines() == [
        "NAME    web1.example.…",
        "REMARK  new",
        "SEEN    3",
        "LAG     3",
    ]


def test_rows_that_fit_into_no_table_are_stacked() -> None:
    assert list(stack(["NAME", "SAYS"], [["web1", "a b c d e f"], ["web2", ""]], 14)) == [
        *("NAME  web1", "SAYS  a b c d", "      e f"),
        *("", "NAME  web2", "SAYS"),
    ]


@BOTH
def test_columns_without_a_cell_are_left_out(layout: Layout) -> None:
    assert layout(COLUMNS[:2], [Node("web1", "")]).splitlines() == ["NAME", "web1"]


def test_a_name_that_is_very_long_widens_its_own_line_alone_in_a_pipe() -> None:
    _, first, second = format_table(COLUMNS[:1] + COLUMNS[2:3], [Node("x" * 300, ""), Node("web1", "")]).splitlines()
    assert first == "x" * 300 + "     3"
    assert second == "web1".ljust(WIDEST) + "     3"
    assert UNWRAPPED > 300

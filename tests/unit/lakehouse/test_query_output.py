"""An answer's rows as text lose no column and no value."""

import csv
import json
from io import StringIO
from math import inf, nan

import pytest

from aggregator.lakehouse.query.output import csv_lines, json_lines, stacked_lines, table_lines


@pytest.mark.parametrize(
    ("names", "keys"),
    [
        (("site", "up_us"), ["site", "up_us"]),
        (("site", "up_us", "site"), ["site", "up_us", "site_1"]),
        (("n", "n", "n_1", "n"), ["n", "n_1", "n_1_1", "n_2"]),
    ],
)
def test_json_has_every_column_also_of_those_of_one_name(names: tuple[str, ...], keys: list[str]) -> None:
    row = tuple(range(len(names)))
    assert json.loads("".join(json_lines(names, [row]))) == [dict(zip(keys, row, strict=True))]


def test_csv_tells_no_number_from_no_value_and_json_has_a_word_for_neither() -> None:
    names, row = ("a", "b", "c", "d", "e"), (nan, inf, -inf, None, 0.5)
    assert list(csv_lines(names, [row])) == ["a,b,c,d,e", "nan,inf,-inf,,0.5"]
    assert json.loads("".join(json_lines(names, [row]))) == [{"a": None, "b": None, "c": None, "d": None, "e": 0.5}]


HOSTILE = "\x1b]52;c;cm0=\x07\x9b31m\u202e"
WRITTEN_OUT = r"\x1b]52;c;cm0=\x07\x9b31m\u202e"


def test_what_a_terminal_would_obey_is_written_out_in_every_form() -> None:
    assert list(table_lines(["n"], [(HOSTILE,)]))[-1] == WRITTEN_OUT
    assert list(stacked_lines(["n"], [(HOSTILE,)], 80)) == [f"n  {WRITTEN_OUT}"]
    assert list(csv_lines([HOSTILE], [(HOSTILE,)])) == [WRITTEN_OUT] * 2
    (line,) = json_lines(["n"], [(HOSTILE,)])
    assert line.isprintable()
    assert json.loads(line) == [{"n": HOSTILE}]


def test_csv_keeps_line_ends_for_programs_and_none_for_a_terminal() -> None:
    assert list(csv_lines(["n"], [("a\tb\r\n",)], keep="\t\r\n"))[1] == '"a\tb\r\n"'
    assert list(csv_lines(["n"], [("a\tb\r\n",)]))[1] == r"a\tb\r\n"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1"])
def test_safe_csv_holds_nothing_that_a_spreadsheet_computes(text: str) -> None:
    for value in (text, text.encode()):
        (_, line) = csv_lines(["n"], [(value,)], is_safe=True, keep="\t\r\n")
        assert next(csv.reader(StringIO(line, newline=""))) == [f"'{text}"]
    assert list(csv_lines(["n"], [(-1,), (-0.5,), (None,), ("a=1",)], is_safe=True))[1:] == ["-1", "-0.5", '""', "a=1"]


def test_a_row_that_is_too_wide_is_stacked_with_each_value_in_its_line() -> None:
    lines = list(stacked_lines(["site", "sender_id"], [("dub1", "web1"), ("lon1", None)], 40))
    assert lines == ["site       dub1", "sender_id  web1", "", "site       lon1", "sender_id  -"]

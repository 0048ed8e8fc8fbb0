"""An answer's rows as text lose no column and no value."""

import json
from math import inf, nan

import pytest

from aggregator.lakehouse.query.output import csv_lines, json_lines


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

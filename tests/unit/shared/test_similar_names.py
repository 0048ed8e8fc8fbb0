"""Who mistypes a name at three in the morning is told the right one."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from shared.command_line.similar_names import distance, similar_names

NAMES = [f"dub1-r{rack}-n{number}.example.net" for rack in range(1, 4) for number in range(1, 21)] + [
    "100%.example.net"
]
KNOWN = "SELECT sender AS name FROM known"


@pytest.fixture
def database() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE known (sender TEXT)")
        connection.executemany("INSERT INTO known VALUES (?)", zip(NAMES))
        yield connection


@pytest.mark.parametrize(
    "asked",
    [
        "dub1-r2-n14.exmple.net",
        "dub1-r2-n14.exmaple.net",
        "dub1-r2-n14.examplee.net",
        "dbu1-r2-n14.example.net",
        "ub1-r2-n14.example.net",
        "DUB1-R2-N14.EXAMPLE.NET",
        "r2-n14",
    ],
)
def test_name_that_differs_in_one_place_or_is_a_part_finds_the_sender(database: sqlite3.Connection, asked: str) -> None:
    assert similar_names(database, KNOWN, asked)[0] == "dub1-r2-n14.example.net"


def test_few_names_are_suggested_and_the_likeliest_first(database: sqlite3.Connection) -> None:
    assert similar_names(database, KNOWN, "dub1-r2-n1") == [
        "dub1-r2-n1.example.net",
        "dub1-r2-n10.example.net",
        "dub1-r2-n11.example.net",
        "dub1-r2-n12.example.net",
    ]


def test_nothing_is_suggested_for_what_is_like_nothing(database: sqlite3.Connection) -> None:
    assert similar_names(database, KNOWN, "somebody.else") == []
    assert similar_names(database, KNOWN, "n" * 100_000) == []
    assert similar_names(database, KNOWN, "\0dub1") == []


def test_signs_with_a_meaning_in_sql_stand_for_themselves(database: sqlite3.Connection) -> None:
    assert similar_names(database, KNOWN, "%") == ["100%.example.net"]
    assert similar_names(database, KNOWN, "r_-n1") == []


def test_distance_counts_what_stands_between_a_common_start_and_end() -> None:
    assert [distance("web1", other) for other in ("web1", "wbe1", "web", "web11", "xeb1", "")] == [0, 2, 1, 1, 1, 4]

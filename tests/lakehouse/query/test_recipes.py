"""Every recipe of the manual gives the right answer, of a fleet whose history is known."""

from collections.abc import Iterator
from datetime import UTC, date, datetime

import pytest

from aggregator.lakehouse.query.engine import Tables, open_tables
from aggregator.lakehouse.tables.schemas import REGISTRATIONS, WATERMARKS
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.documents.documents import recipes
from tests.support.lakehouse.histories import lives, observed
from tests.support.lakehouse.small_lakehouse import SmallLakehouse
from tests.support.lakehouse.small_rollup import BLOCK, START, Interval


def instant(day: int, hour: int = 0, minute: int = 0) -> int:
    """Give an instant of March 2026 in microseconds; days go on behind its end."""
    return START + (day - 2) * DAY + hour * HOUR + minute * MINUTE


END = instant(41)
INTERVALS = [
    *lives("dub1", "web1", START, [(instant(3, 10), instant(3, 11)), (instant(3, 11, 30), instant(3, 12))]),
    *lives("dub1", "web2", START, [(instant(7, 10), instant(7, 16))]),
    *lives("dub1", "db1", START, [(instant(3, 10, 30), instant(3, 14, 30))]),
    *lives("dub1", "db2", START, [(instant(40), None)]),
    *(
        each
        for number in range(5)
        for each in lives(
            "nyc1", f"app{number}", START, [(instant(12, 2) + number * SECOND, instant(12, 3) + number * SECOND)]
        )
    ),
    Interval("nyc1", "brief", "up", instant(10), instant(10, 0, 10), "stale"),
    Interval("nyc1", "brief", "down", instant(10, 0, 10), instant(10, 0, 30), "retired"),
]
COVERAGE = [
    *observed("dub1", END, [(instant(20), instant(20, 12), "unobserved")]),
    *observed("nyc1", END, [(instant(21), instant(21, 3), "advisories_missing")]),
]


def moment(day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime.fromtimestamp((instant(day, hour, minute) + second * SECOND) // SECOND, UTC)


Answer = list[tuple[object, ...]]
RACK = [(f"app{number}", moment(12, 2, 0, number), moment(12, 3, 0, number)) for number in range(5)]
ANSWERS: dict[str, list[Answer]] = {
    "What was down at an instant?": [
        [
            ("dub1", "web1", moment(3, 10), moment(3, 11)),
            ("dub1", "db1", moment(3, 10, 30), moment(3, 14, 30)),
        ]
    ],
    "What was one sender at an instant?": [[("dub1", BLOCK, "down", moment(3, 10), moment(3, 11))]],
    "What is the whole story of a sender?": [
        [
            (moment(2), "said to be new", None),
            (moment(2), "up", moment(3, 10)),
            (moment(3, 10), "down", moment(3, 11)),
            (moment(3, 10, 12), "said to be stale", None),
            (moment(3, 11), "said to be recovered", None),
            (moment(3, 11), "up", moment(3, 11, 30)),
            (moment(3, 11, 30), "down", moment(3, 12)),
            (moment(3, 11, 42), "said to be stale", None),
            (moment(3, 12), "said to be recovered", None),
            (moment(3, 12), "up", None),
            (moment(20), "nobody watched: unobserved", moment(20, 12)),
        ]
    ],
    # Of 30 days, dub1 was not watched for 12 hours and nyc1 for three.
    "Which senders broke their objective, and by how much?": [
        [
            ("dub1", "web2", 42.5, 360.0, -317.5),
            ("dub1", "db1", 42.5, 240.0, -197.5),
            ("dub1", "web1", 42.5, 90.0, -47.5),
            *(("nyc1", name, 43.0, 60.0, -17.0) for name, *_ in RACK),
        ]
    ],
    # Not ``brief``, which was down for two thirds of its half hour.
    "Which senders were worst, of those that lived and were watched?": [
        [("dub1", "web2", 99.15, 98.3), ("dub1", "db1", 99.44, 98.3), ("dub1", "web1", 99.79, 98.3)]
    ],
    "How was each week?": [
        [
            # 11.5 of 9 x 168 sender-hours; 5.33 of as many and a half; 4 x 12 and 5 x 3 not watched; 24 of 9 x 96.
            (date(2026, 3, 2), 99.24, 100.0),
            (date(2026, 3, 9), 99.65, 100.0),
            (date(2026, 3, 16), 100.0, 95.83),
            (date(2026, 3, 23), 100.0, 100.0),
            (date(2026, 3, 30), 100.0, 100.0),
            (date(2026, 4, 6), 97.22, 100.0),
        ]
    ],
    # 22 days of eight hours, less three in the gap, of four senders: of 692 hours 5.5 were down.
    "How was it in business hours?": [[("dub1", 99.21, 98.3), ("nyc1", 100.0, 100.0)]],
    "How do months compare?": [[("dub1", 99.59, 97.22), ("nyc1", 99.85, 100.0)]],
    "How often does a region's sender fail, and how long until it is back?": [
        [("eu-west", 4, 705.1, 172.5), ("us-east", 6, 596.7, 53.3)]
    ],
    "How long do outages last?": [[(10, 60.0, 252.0, 360.0)]],
    "Which senders flapped in a week?": [[("dub1", "web1", 1)]],
    "How many were down at once?": [[(moment(12, 2, 0, 4), 5), (moment(12, 2, 0, 3), 4), (moment(12, 3, 0, 0), 4)]],
    "Who never came back?": [
        [("dub1", "db2", moment(40), "still down"), ("nyc1", "brief", moment(10, 0, 10), "retired")]
    ],
    "Which incidents were largest?": [[("nyc1", moment(12, 2), 5, 100.0, 5.0)]],
    "Which senders were part of an incident?": [[(*each, "recovered") for each in RACK]],
    "What is unknown, and why?": [[("dub1", "unobserved", 12.0), ("nyc1", "advisories_missing", 3.0)]],
    "At which sites is most unknown?": [[("dub1", 48.0, 1.67), ("nyc1", 15.0, 0.42)]],
    "Which versions do agents run?": [[("0.1.0", 1, moment(41, 1)), ("0.2.0", 1, moment(41, 2))]],
    # Of March 708 of 720 hours of each of dub1 are known, 717 of each of nyc1 but ``brief``: 20 of its 30 minutes down.
    "How available was each operating system, class or team?": [
        [("data", 0.99435, 0.983333), ("web", 0.994703, 0.983333), (None, 0.998758, 0.993751)]
    ],
    "What maintenance was declared, and which outages lie in it?": [[], []],
}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    lakehouse = SmallLakehouse(tmp_path_factory.mktemp("recipes"))
    lakehouse.append(
        WATERMARKS,
        (
            {"region": region, "site": site, "block": BLOCK, "agent": f"{site}-a", "boot_id": version,
             "version": version, "observed_through": END + hour * HOUR}
            for region, site, version, hour in (
                ("eu-west", "dub1", "0.1.0", 1), ("eu-west", "dub1", "0.2.0", 2), ("us-east", "nyc1", "0.1.0", 1)
            )
        ),
    )  # fmt: skip
    lakehouse.append(
        REGISTRATIONS,
        (
            {"region": "eu-west", "site": "dub1", "block": BLOCK, "incarnation": "1-1", "sender_id": sender,
             "sequence": sequence, "stored_at": instant(4), "payload": f'{{"facts": {{"team": "{team}"}}}}'}
            for sequence, (sender, team) in enumerate((("web1", "web"), ("web2", "web"), ("db1", "data")))
        ),
    )  # fmt: skip
    lakehouse.roll_up(INTERVALS, COVERAGE, END)
    with open_tables(lakehouse.warehouse) as tables:
        yield tables


def test_every_recipe_has_an_answer() -> None:
    assert {title: len(queries) for title, queries in recipes().items()} == {
        title: len(answers) for title, answers in ANSWERS.items()
    }
    assert len(ANSWERS) >= 20


@pytest.mark.parametrize("title", ANSWERS)
def test_a_recipe_gives_the_right_answer(tables: Tables, title: str) -> None:
    for query, answer in zip(recipes()[title], ANSWERS[title], strict=True):
        names, found = tables.answer(query)
        assert [tuple(map(rounded, row)) for row in found] == answer, names


def rounded(value: object) -> object:
    return round(value, 6) if isinstance(value, float) else value

"""What the outbox is asked costs what the answer holds, however much waits: every statement goes by a key."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from edge_agent.core.records import Lane, SizeLimit, TooLarge
from edge_agent.store import decision_log, schema
from edge_agent.store.files import prepare
from tests.support.store.store_batches import advisory, batch, copy, opened, registration, sender, watermark

ADVISORIES, REGISTRATIONS, COPIES = "advisory_outbox", "registration_outbox", "copy_outbox"
BEHIND = "SEARCH {} USING INTEGER PRIMARY KEY (rowid>?)"
THROUGH = "SEARCH {} USING INTEGER PRIMARY KEY (rowid<?)"
ONE = "SEARCH {} USING INTEGER PRIMARY KEY (rowid=?)"
BETWEEN = "SEARCH {} USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"
OF_SENDER = "SEARCH {} USING INDEX registration_outbox_sender (sender_id=? AND block=? AND rowid>?)"

ANY_SCAN = re.compile(r"SCAN (?!json_each VIRTUAL TABLE|(\d+ )?CONSTANT ROW)")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    path = tmp_path / "agent.db"
    prepare(path)
    with closing(sqlite3.connect(path)) as database:
        yield database


def plan_of(database: sqlite3.Connection, statement: str) -> list[str]:
    parameters = [None] * statement.count("?")
    steps = database.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
    # Before 3.36 every table is called one.
    return [re.sub(r"^(SEARCH|SCAN) TABLE ", r"\1 ", detail) for *_, detail in steps]


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (schema.PENDING_ROWS[Lane.ADVISORIES], BETWEEN.format(ADVISORIES)),
        (schema.PENDING_ROWS[Lane.REGISTRATIONS], BETWEEN.format(REGISTRATIONS)),
        (schema.PENDING_ROWS[Lane.COPIES], BETWEEN.format(COPIES)),
        (schema.FIRST_CHUNK_BEHIND[Lane.ADVISORIES], BEHIND.format("advisory_chunk")),
        (schema.CHUNK_BODY[Lane.REGISTRATIONS], ONE.format("registration_chunk")),
        (schema.DELETE_CHUNK[Lane.REGISTRATIONS], ONE.format("registration_chunk")),
        (schema.CHUNKS_THROUGH[Lane.ADVISORIES], THROUGH.format("advisory_chunk")),
        (schema.DELETE_CHUNKS_THROUGH[Lane.ADVISORIES], THROUGH.format("advisory_chunk")),
        (schema.UNSENT_CHUNKS, BEHIND.format("registration_chunk")),
        (decision_log.DELETE_LOG_CHUNKS[decision_log.FORWARD_LOG], THROUGH.format("forward_log_chunk")),
        (schema.DELETE_THROUGH[Lane.ADVISORIES], THROUGH.format(ADVISORIES)),
        (schema.DELETE_THROUGH[Lane.REGISTRATIONS], THROUGH.format(REGISTRATIONS)),
        (schema.DELETE_THROUGH[Lane.COPIES], THROUGH.format(COPIES)),
        (schema.ROWS_THROUGH[Lane.ADVISORIES], THROUGH.format(ADVISORIES)),
        (schema.ROWS_THROUGH[Lane.REGISTRATIONS], THROUGH.format(REGISTRATIONS)),
        (schema.ROWS_THROUGH[Lane.COPIES], THROUGH.format(COPIES)),
        (schema.OLDEST_REGISTRATIONS, BETWEEN.format(REGISTRATIONS)),
        (schema.DELETE_ROW[Lane.REGISTRATIONS], ONE.format(REGISTRATIONS)),
        (schema.DELETE_ROW[Lane.ADVISORIES], ONE.format(ADVISORIES)),
        (schema.SENDERS_OF_BLOCK, BETWEEN.format("sender")),
        (schema.DELETE_SENDER, ONE.format("sender")),
    ],
)
def test_a_statement_goes_by_its_key_alone(database: sqlite3.Connection, statement: str, expected: str) -> None:
    assert plan_of(database, statement) == [expected]


def test_replaced_registrations_are_found_by_their_senders(database: sqlite3.Connection) -> None:
    plan = plan_of(database, schema.REPLACED_REGISTRATIONS)
    assert OF_SENDER.format(REGISTRATIONS) in plan
    assert not [step for step in plan if ANY_SCAN.match(step)]


async def test_nothing_that_a_store_does_reads_a_whole_table(tmp_path: Path) -> None:
    path = tmp_path / "agent.db"
    done: list[str] = []
    async with opened(path, max_outbox=20_000) as store:
        await store._database.set_trace_callback(done.append)
        for number in range(1, 4):
            rows = [
                advisory("a"),
                watermark("w"),
                watermark("v"),
                copy("c"),
                *(registration(f"{part}", "r", size=3_000) for part in range(6)),
            ]
            await store.commit(batch(number, rows, heard=[sender(number)], retired=[sender(number - 1)]))
        (row, *_) = await store.pending(Lane.ADVISORIES, 0, 2)
        store.delete_through(Lane.ADVISORIES, row.row_id)
        row, another = await store.pending(Lane.REGISTRATIONS, 0, 2)
        store.delete_through(Lane.REGISTRATIONS, row.row_id)
        await store.set_apart([(another, TooLarge(SizeLimit.MAX_PAYLOAD, 1_000))])
        (row,) = await store.pending(Lane.COPIES, 0, 1)
        store.delete_through(Lane.COPIES, row.row_id)
        await store.write_status({"agent": 1})

    statements = [text for text in done if text.startswith(("SELECT", "INSERT", "UPDATE", "DELETE"))]
    for verb, table in product(("SELECT", "DELETE"), (ADVISORIES, REGISTRATIONS, COPIES)):
        assert any(text.startswith(verb) and table in text for text in statements), f"no {verb} of {table} was seen"
    with closing(sqlite3.connect(path)) as database:
        scans = {text: [step for step in plan_of(database, text) if ANY_SCAN.match(step)] for text in statements}
    assert {text: steps for text, steps in scans.items() if steps} == {}

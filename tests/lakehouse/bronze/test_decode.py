"""Decoding in Spark: each message goes to the table, or to the quarantine, that the judge says."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from aggregator.archive.consumer import Messages
from aggregator.lakehouse.bronze import advisories, decode
from aggregator.lakehouse.bronze.decode import rows_of as rows_in
from aggregator.lakehouse.bronze.spark_source import SCHEMA, rows_of, rows_of_others
from aggregator.lakehouse.tables.schemas import ADVISORIES as ADVISORIES_TABLE
from aggregator.lakehouse.tables.schemas import POLICY, WATERMARKS
from aggregator.records.judge import CHORIA_BLOCK
from aggregator.records.judge import QuarantineReason as Reason
from shared.instants import HOUR, MINUTE, parse_instant
from tests.support.lakehouse.hub import Message
from tests.support.lakehouse.judged_messages import ARCHIVED_AT, AT, CASES, CHORIA, DUB1


def batch_of(messages: Sequence[Message]) -> Messages:
    """Number messages from 1, as the archive would."""
    count = len(messages)
    return Messages(
        np.arange(1, count + 1),
        [message.subject.encode() for message in messages],
        np.full(count, ARCHIVED_AT),
        [headers_of(message) for message in messages],
        [message.body for message in messages],
    )


def headers_of(message: Message) -> bytes:
    lines = "".join(f"{name}: {value}\r\n" for name, value in (message.headers or {}).items())
    return f"NATS/1.0\r\n{lines}\r\n".encode() if lines else b""


def decoded_by_spark(spark: SparkSession, messages: Sequence[Message], choria_region: str = "") -> DataFrame:
    rows = pa.Table.from_batches([rows_of(batch_of(messages), choria_region)])
    return decode.decode(spark.createDataFrame(rows, SCHEMA))


@pytest.fixture(scope="module")
def decoded(spark: SparkSession) -> DataFrame:
    return decoded_by_spark(spark, [case.message for case in CASES], "eu-west").persist()


def test_spark_follows_the_judge_of_every_message(decoded: DataFrame) -> None:
    became = {row.hub_sequence: row.table_name or row.reason for row in decoded.collect()}
    wanted = {number: str(case.becomes) for number, case in enumerate(CASES, start=1)}
    names = {number: case.name for number, case in enumerate(CASES, start=1)}
    assert {names[number]: what for number, what in became.items()} == {
        names[number]: what for number, what in wanted.items()
    }
    assert decode.quarantined(decoded, 1).count() == sum(isinstance(case.becomes, Reason) for case in CASES)


def test_advisories_are_the_same_rows_whether_they_go_through_spark_or_not(decoded: DataFrame) -> None:
    batch = batch_of([case.message for case in CASES])
    found = advisories.decode(batch, choria_region="eu-west")
    rows = found.rows.to_pylist()
    for row in rows:
        row |= {name: at.replace(tzinfo=None) for name, at in row.items() if isinstance(at, datetime)}
    assert rows == [row.asDict() for row in rows_in(decoded, ADVISORIES_TABLE).orderBy("hub_sequence").collect()]
    assert [place + 1 for place in found.places] == [row["hub_sequence"] for row in rows]
    others = rows_of_others(batch, found)
    assert others is not None
    assert others.num_rows + len(rows) == len(CASES)
    assert not {row["hub_sequence"] for row in rows} & {*others["hub_sequence"].to_pylist()}
    # Each of them read alone, so that none is read otherwise for what comes with it.
    alone = [advisories.decode(batch.at([place]), choria_region="eu-west").rows for place in range(len(CASES))]
    assert [part for part in alone if part.num_rows] == [found.rows.slice(row, 1) for row in range(len(rows))]


def test_a_body_that_is_not_one_whole_advisory_is_quarantined() -> None:
    whole = DUB1.stale("zürich", AT)
    assert advisories.decode(batch_of([whole])).places == [0]
    for form, other, reason in (
        (b"}", b"}}", Reason.NOT_DECODABLE), (b"{", b'{{"a":1}', Reason.NOT_DECODABLE),
        (b"}", b"", Reason.NOT_DECODABLE), (b"}", b',"a":NaN}', Reason.NOT_DECODABLE),
        (b"z", b"\n", Reason.NOT_DECODABLE), (b"{", b"\xef\xbb\xbf{", Reason.NOT_DECODABLE),
        ("ü".encode(), b"\xff", Reason.NOT_TEXT),
        (b"}", b',"a":"\xff"}', Reason.NOT_TEXT), (b'"value":"z\xc3\xbcrich"', b'"value":1', Reason.NOT_DECODABLE),
        (b'"value":"z\xc3\xbcrich",', b"", Reason.NOT_DECODABLE),
        (b'"sequence":', b'"sequence":9999999999999999999', Reason.NOT_DECODABLE),
        (b"}", b',"unheard_until_us":9999999999999999999}', Reason.IMPLAUSIBLE_INSTANT),
        (b"}", b',"site":"ams1"}', Reason.CONTRADICTS_SUBJECT),
    ):  # fmt: skip
        assert form in whole.body
        found = advisories.decode(batch_of([whole._replace(body=whole.body.replace(form, other, 1))]))
        assert found.reasons == {0: reason}
        assert found.rows.num_rows == 0


def test_how_an_advisory_is_written_does_not_change_its_row() -> None:
    whole = DUB1.stale("n1", AT)
    fields = json.loads(whole.body)
    bodies = [
        whole.body, json.dumps(fields, indent=1).encode(), json.dumps(dict(sorted(fields.items()))).encode(),
        whole.body.replace(b'"n1"', b'"n\\u0031"'), whole.body[:-1] + b',"site":"dub1"}', whole.body + b" ",
    ]  # fmt: skip
    found = advisories.decode(batch_of([whole._replace(body=body) for body in bodies]))
    rows = [{**row, "hub_sequence": 0} for row in found.rows.to_pylist()]
    assert rows == [rows[0]] * len(bodies)


def test_a_plain_advisory_becomes_a_row_that_nothing_vouches_for(decoded: DataFrame) -> None:
    rows = rows_in(decoded, ADVISORIES_TABLE).where("assumed AND site = 'dub1'").orderBy("hub_sequence").collect()
    assert [row.block for row in rows] == ["nodes", CHORIA_BLOCK]
    seconds = AT // 10**6 * 10**6
    for row in rows:
        assert instants(row, "occurred_at", "last_seen_at") == (seconds, seconds - 754 * 10**6)
        assert (row.region, row.site, row.sender_id, row.kind, row.event_id, row.ordinal, row.rebuilt) == (
            "eu-west", "dub1", "n1", "stale", "f3c9a2", None, False,
        )  # fmt: skip


def test_what_chorias_replicator_really_says_becomes_rows(spark: SparkSession) -> None:
    """Recorded from a stream-replicator built from source, of one sender: warn_duration 8s, inspect_duration 40s.

    It registered, was silent for 22 s, registered, and fell silent. The bodies are as they were stored.
    """
    bodies = (Path(__file__).parent / "choria_advisories.jsonl").read_bytes().splitlines()
    messages = [Message("choria.stream.input.registration_advisories", body) for body in bodies]
    rows = rows_in(decoded_by_spark(spark, messages, "eu-west"), ADVISORIES_TABLE)
    became = rows.orderBy("hub_sequence").collect()
    assert [row.kind for row in became] == ["new", "stale", "recovered", "stale", "retired"]
    assert {(row.region, row.site, row.block, row.sender_id, row.assumed) for row in became} == {
        ("eu-west", "ber1", CHORIA_BLOCK, "db1.example.net", True)
    }
    said = [json.loads(body) for body in bodies]
    assert [instants(row, "occurred_at", "last_seen_at") for row in became] == [
        (each["timestamp"] * 10**6, each["seen"] * 10**6) for each in said
    ]


def test_a_revision_tells_whom_it_is_for(decoded: DataFrame) -> None:
    rows = rows_in(decoded, POLICY).orderBy("revision").collect()
    assert [(row.revision, row.region, row.site, row.block, row.kind, row.sender_ids) for row in rows] == [
        (1, "eu-west", "dub1", None, "maintenance", ["n1"]),
        (2, "eu-west", None, None, "thresholds", None),
        (3, "eu-west", "dub1", "nodes", "retire", ["n1"]),
        (4, "eu-west", "dub1", None, "cancel", None),
    ]
    assert instants(rows[0], "given_at", "started_at", "ended_at") == (AT, AT, AT + HOUR)
    assert (rows[0].reason, rows[0].author, rows[3].cancelled_revision) == ("new switch", "ann@ops1", 1)


def test_without_a_region_for_them_foreign_subjects_are_unknown(spark: SparkSession) -> None:
    plain = Message("choria.advisories", json.dumps(CHORIA).encode())
    assert decoded_by_spark(spark, [plain]).collect()[0].reason == Reason.UNKNOWN_SUBJECT


def test_times_are_kept_to_the_microsecond(decoded: DataFrame) -> None:
    row = rows_in(decoded, ADVISORIES_TABLE).where("hub_sequence = 1").collect()[0]
    assert instants(row, "occurred_at", "last_seen_at") == (AT + 12 * MINUTE, AT)
    mark = rows_in(decoded, WATERMARKS).orderBy("hub_sequence").collect()[0]
    assert instants(mark, "observed_since", "observed_through") == (AT - HOUR, AT)
    assert mark.counters == {"rejected": {"no_sender": 2}}


def instants(row: Row, *names: str) -> tuple[int, ...]:
    return tuple(parse_instant(row[name].isoformat() + "+00:00") for name in names)


def test_a_subject_that_is_no_text_is_read_as_what_its_bytes_are() -> None:
    for subject in (b"fleet.eu-west.\xff.nodes.advisory.new", b"fleet.eu-west.dub1.nodes.copy.\xff"):
        hostile = Messages(np.array([1]), [subject], np.array([ARCHIVED_AT]), [b""], [DUB1.new("n1", AT).body])
        found = advisories.decode(hostile)
        assert (found.places, found.reasons) == ([], {})
        assert "\\xff" in rows_of(hostile).column("subject")[0].as_py()

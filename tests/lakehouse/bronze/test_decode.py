"""What each message is: a record of a table, or quarantined for its reason. The subject outranks the body."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

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
from shared.instants import DAY, HOUR, MINUTE, parse_instant
from shared.policy import CancelMaintenance, DeclareMaintenance, RetireSender, Scope, SetThresholds
from shared.thresholds import Thresholds
from tests.support.lakehouse.hub import Block, Message, said

AT = parse_instant("2026-02-03T04:05:06.000007Z")
DUB1 = Block("eu-west", "dub1")
ARCHIVED_AT = parse_instant("2026-02-03T05:00:00Z")
CHORIA = {
    "protocol": "io.choria.sr.v2.age_advisory",
    "event_id": "f3c9a2",
    "inspect_field": "sender",
    "value": "n1",
    "age": 754.25,
    "seen": AT // 10**6 - 754,
    "replicator": "dub1",
    "timestamp": AT // 10**6,
    "event": "timeout",
}


class Case(NamedTuple):
    """One message, and what is to become of it: the name of a table, or a reason."""

    name: str
    message: Message
    becomes: str


def changed(message: Message, **fields: Any) -> Message:
    """Change fields of a body; None takes one away."""
    body = {**json.loads(message.body), **fields}
    return message._replace(
        body=json.dumps({name: value for name, value in body.items() if value is not None}).encode()
    )


def cases() -> Iterator[Case]:
    stale = DUB1.stale("n1", AT)
    yield Case("advisory", stale, "advisories")
    yield Case("advisory with fields to come", changed(stale, colour="blue"), "advisories")
    yield Case("advisory without what has a default", changed(stale, rebuilt=None), "advisories")
    yield Case("advisory of another site", changed(stale, site="ams1"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory of another kind", changed(stale, kind="new", event="new"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory with two minds", changed(stale, event="recover"), Reason.CONTRADICTS_SUBJECT)
    yield Case("advisory without ordinal", changed(stale, ordinal=None), Reason.NOT_DECODABLE)
    yield Case("advisory of no incarnation", changed(stale, incarnation="1-" + "1" * 63), Reason.NOT_DECODABLE)
    yield Case("advisory about nobody", changed(stale, value=""), Reason.NOT_DECODABLE)
    yield Case("advisory of a text for a time", changed(stale, at_us="soon"), Reason.NOT_DECODABLE)
    yield Case(
        "advisory of six years ago",
        changed(stale, at_us=AT - 6 * 365 * DAY, last_seen_us=1),
        Reason.IMPLAUSIBLE_INSTANT,
    )
    yield Case("advisory that looks back for ever", changed(stale, last_seen_us=1), "advisories")
    unheard = DUB1.retired_unheard("n1", AT, AT + DAY)
    yield Case("retirement of an unheard sender", unheard, "advisories")
    yield Case("unheard beyond all time", changed(unheard, unheard_until_us=2**62), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("unheard before all time", changed(unheard, unheard_until_us=-(2**63)), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory seen after it was stale", changed(stale, last_seen_us=AT + DAY), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory of 1970", changed(stale, at_us=DAY, last_seen_us=0), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("advisory beyond all time", changed(stale, at_us=2**62), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("no JSON", stale._replace(body=b"\x00stale"), Reason.NOT_DECODABLE)
    yield Case("no text", stale._replace(body=b"\xff\xfe{}"), Reason.NOT_TEXT)
    yield Case("nothing", stale._replace(body=b""), Reason.NOT_DECODABLE)
    yield Case("a list", stale._replace(body=b"[1, 2]"), Reason.NOT_DECODABLE)

    plain = Message(stale.subject, json.dumps(CHORIA).encode())
    yield Case("plain advisory on a site's subject", plain, "advisories")
    yield Case("plain advisory of another site", changed(plain, replicator="ams1"), Reason.CONTRADICTS_SUBJECT)
    yield Case("plain advisory of another event", changed(plain, event="new"), Reason.CONTRADICTS_SUBJECT)
    yield Case("plain advisory with half of ours", changed(plain, at_us=AT), Reason.NOT_DECODABLE)
    yield Case("plain advisory beyond all time", changed(plain, timestamp=2**60), Reason.IMPLAUSIBLE_INSTANT)
    yield Case("plain advisory on Choria's subject", plain._replace(subject="choria.advisories"), "advisories")
    strange = changed(plain, replicator="a.b")._replace(subject="choria.advisories")
    yield Case("plain advisory of no site's name", strange, Reason.NOT_DECODABLE)
    for number in (0, -1, 2**53, 2**63 - 1):
        yield Case(f"advisory of ordinal {number}", changed(stale, ordinal=number), Reason.NOT_DECODABLE)
    yield Case("advisory of the last ordinal", changed(stale, ordinal=2**53 - 1), "advisories")
    yield Case("advisory of an age", changed(stale, age=-2), Reason.NOT_DECODABLE)
    yield Case("advisory about a long name", changed(stale, value="n" * 1_024), "advisories")
    yield Case("advisory about a longer name", changed(stale, value="n" * 1_025), Reason.NOT_DECODABLE)
    yield Case("advisory of a long event", changed(stale, event_id="e" * 1_025), Reason.NOT_DECODABLE)
    for token in ("b" * 65, "b c", "b\u00fc"):
        unfit = stale._replace(subject=f"fleet.eu-west.dub1.{token}.advisory.stale")
        yield Case(f"advisory of block {token}", changed(unfit, block=token), Reason.UNKNOWN_SUBJECT)
    yield from cases_of_watermarks_and_registrations()
    yield from cases_of_policy()
    for subject in ("fleet", "fleet.a.b.c", "fleet.a.b.c.d", "fleet.a.b.c.advisory", "fleet.a.b.c.advisory.old",
                    "fleet.a.b.c.advisory.new.er", "fleet.a.b.c.copy", "fleet.a..c.watermark"):  # fmt: skip
        yield Case(f"subject {subject}", Message(subject, b"{}"), Reason.UNKNOWN_SUBJECT)


def cases_of_watermarks_and_registrations() -> Iterator[Case]:
    mark = DUB1.watermark(AT - HOUR, AT)
    yield Case("watermark", mark, "watermarks")
    yield Case("watermark of an older agent", changed(mark, rebuilt_at_us=None), "watermarks")
    yield Case("watermark of another block", changed(mark, block="others"), Reason.CONTRADICTS_SUBJECT)
    yield Case(
        "watermark that ends before it begins", changed(mark, observed_since_us=AT + 1), Reason.IMPLAUSIBLE_INSTANT
    )
    yield Case("watermark of a later protocol", changed(mark, protocol="muster:watermark:2"), Reason.NOT_DECODABLE)
    yield Case("watermark without counters", changed(mark, counters=None), Reason.NOT_DECODABLE)
    yield Case("watermark of too many senders", changed(mark, senders={"up": 2**63}), Reason.NOT_DECODABLE)
    yield Case("watermark of no incarnation", changed(mark, incarnation="1-" + "1" * 63), Reason.NOT_DECODABLE)
    yield Case("watermark of a store beyond all time", changed(mark, rebuilt_at_us=2**62), Reason.IMPLAUSIBLE_INSTANT)

    for name in ("sequence", "advisory_ordinal", "stale_after", "retire_after", "blind_after", "policy_revision"):
        for number in (-1, 2**53, 2**63 - 1):
            yield Case(f"watermark of {name} {number}", changed(mark, **{name: number}), Reason.NOT_DECODABLE)
        yield Case(f"watermark of the last {name}", changed(mark, **{name: 2**53 - 1}), "watermarks")
    yield Case("watermark of counts below 0", changed(mark, counters={"a": {"b": -1}}), Reason.NOT_DECODABLE)
    yield Case(
        "watermark of counts without end", changed(mark, outbox={str(each): 1 for each in range(1_001)}),
        Reason.NOT_DECODABLE,
    )  # fmt: skip
    yield Case("watermark rebuilt before all time", changed(mark, rebuilt_at_us=-1), Reason.IMPLAUSIBLE_INSTANT)

    sighting = DUB1.registration(b'{"sender": "n1"}', 7, AT)
    yield Case("registration", sighting, "registrations")
    yield Case("registration that is not JSON", sighting._replace(body=b"<n1/>"), "registrations")
    yield Case("copy", sighting._replace(subject="fleet.eu-west.dub1.nodes.copy.a.b"), "registrations")
    yield Case("registration without origin", sighting._replace(headers=None), Reason.NO_ORIGIN)
    other = Block("eu-west", "ams1").registration(b"{}", 7, AT)
    yield Case("registration of another site", sighting._replace(headers=other.headers), Reason.CONTRADICTS_SUBJECT)
    strange = DUB1.registration(b"{}", 7, AT)
    strange.headers["Muster-Origin"] = "eu-west.dub1.nodes.1-1.many"  # type: ignore[index]
    yield Case("registration of no number", strange, Reason.NO_ORIGIN)
    yield Case("registration of the last number", DUB1.registration(b"{}", 2**53 - 1, AT), "registrations")
    yield Case("registration of a larger number", DUB1.registration(b"{}", 2**53, AT), Reason.NO_ORIGIN)
    for length, becomes in ((1_024, "registrations"), (1_025, Reason.NOT_DECODABLE)):
        named = DUB1.registration(b"{}", 7, AT)
        named.headers["Muster-Sender"] = "n" * length  # type: ignore[index]
        yield Case(f"registration of a name of {length}", named, becomes)


def cases_of_policy() -> Iterator[Case]:
    site = Scope("eu-west", "dub1")
    window = said(site, 1, AT, DeclareMaintenance(AT, AT + HOUR, "new switch", ("n1",)))
    yield Case("maintenance of a sender", window, "policy")
    yield Case("thresholds of a region", said(Scope("eu-west"), 2, AT, SetThresholds(Thresholds())), "policy")
    yield Case("retirement", said(Scope("eu-west", "dub1", "nodes"), 3, AT, RetireSender("n1")), "policy")
    yield Case("cancellation", said(site, 4, AT, CancelMaintenance(1)), "policy")
    yield Case("maintenance backwards", said(site, 5, AT, DeclareMaintenance(AT, AT, "why")), Reason.NOT_DECODABLE)
    yield Case(
        "maintenance for ever", said(site, 6, AT, DeclareMaintenance(AT, 2**62, "why")), Reason.IMPLAUSIBLE_INSTANT
    )
    yield Case("policy of a later protocol", changed(window, protocol="muster:policy:2"), Reason.NOT_DECODABLE)
    yield Case("policy of another shape", changed(window, order={"kind": "sing"}), Reason.NOT_DECODABLE)
    for number in (0, -1, 2**53):
        unfit = said(site, 7, AT, CancelMaintenance(1))
        yield Case(f"cancellation of {number}", changed(unfit, order={"kind": "cancel", "revision": number}),
                   Reason.NOT_DECODABLE)  # fmt: skip
        unfit = said(site, 8, AT, SetThresholds(Thresholds()))
        order = {"kind": "thresholds", "thresholds": {"stale_after": number}}
        yield Case(f"thresholds of {number}", changed(unfit, order=order), Reason.NOT_DECODABLE)
    yield Case("retirement of a longer name", said(site, 9, AT, RetireSender("n" * 1_025)), Reason.NOT_DECODABLE)
    yield Case("policy for nobody", window._replace(subject="muster.policy.eu-west"), Reason.NOT_DECODABLE)


CASES = tuple(cases())


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


def test_every_message_becomes_what_it_is_or_is_quarantined_for_its_reason(decoded: DataFrame) -> None:
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

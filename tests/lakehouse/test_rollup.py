"""From published records to tables: whole values, computed by hand."""

import time
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from pyspark.sql import SparkSession

from aggregator.lakehouse import rollup
from aggregator.lakehouse.page.grouping import Choice
from aggregator.lakehouse.page.reader import read_figures
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.schemas import DERIVED
from aggregator.lakehouse.warehouse.errors import TablesUnreadable
from edge_agent.core.block_state import BlockState
from edge_agent.core.decisions import Decision, Forward
from edge_agent.core.intake import Intake, SenderByHeader, SenderByPath, SenderBySubject, SenderRule
from edge_agent.core.observation import Observation, SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, WatermarkContext
from shared.identifiers import AdvisoryKind, SourcePosition
from shared.instants import DAY, HOUR, MINUTE, SECOND
from shared.wire import ForwardReason
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.stories import Played, Story, Telling, each_of
from tests.support.lakehouse.hub import STALE_AFTER, Block, Hub, Message

TODAY = int(time.time()) * SECOND // DAY * DAY
FIRST = TODAY - 2 * DAY
"""Midnight of the first of two whole days; the day that runs comes after them."""


def day(at: int) -> date:
    return datetime.fromtimestamp(at // SECOND, tz=UTC).date()


def instant(at: int) -> datetime:
    return datetime.fromtimestamp(at // SECOND, tz=UTC).replace(microsecond=at % SECOND)


def test_one_site_from_messages_to_every_table(lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    dub1 = Block("eu-west", "dub1")
    lakehouse.hub.publish(
        [
            dub1.new("n1", FIRST + 6 * HOUR),
            dub1.new("n2", FIRST + 6 * HOUR),
            dub1.watermark(FIRST + 5 * HOUR, FIRST + 8 * HOUR),
            dub1.stale("n1", FIRST + 9 * HOUR + 30 * MINUTE),
            dub1.recovered("n1", FIRST + 11 * HOUR),
            dub1.watermark(FIRST + 5 * HOUR, FIRST + DAY),
            # The agent was blind for two hours of the second day, and a sender ended for good.
            dub1.watermark(FIRST + DAY + 2 * HOUR, FIRST + DAY + 12 * HOUR),
            dub1.stale("n2", FIRST + DAY + 13 * HOUR),
            dub1.retired("n2", FIRST + DAY + 20 * HOUR, FIRST + DAY + 13 * HOUR),
            dub1.watermark(FIRST + DAY + 2 * HOUR, TODAY),
            dub1.registration(b'{"sender": "n1", "a": {"b": 1}}', 1, FIRST + 6 * HOUR, "new"),
        ]
    )
    with monkeypatch.context() as older:
        # A version whose derived tables are others.
        older.setattr("aggregator.lakehouse.derive.checkpoint.DERIVED_FROM_IMPORTS", ())
        result = lakehouse.roll_up()
    assert (result.counts.read, result.counts.written, result.counts.duplicates, result.counts.quarantined) == (
        11, 11, 0, 0,
    )  # fmt: skip
    known_through = result.position.known_through

    intervals = lakehouse.rows(
        "SELECT sender_id, state, started_at, ended_at, ended_by, first_whole_day, last_whole_day"
        " FROM muster.sender_intervals ORDER BY 1, 3"
    )
    assert intervals == [
        ("n1", "up", instant(FIRST + 6 * HOUR), instant(FIRST + 9 * HOUR + 30 * MINUTE), "stale", None, None),
        ("n1", "down", instant(FIRST + 9 * HOUR + 30 * MINUTE), instant(FIRST + 11 * HOUR), "recovered", None, None),
        ("n1", "up", instant(FIRST + 11 * HOUR), None, None, day(FIRST + DAY), day(known_through)),
        ("n2", "up", instant(FIRST + 6 * HOUR), instant(FIRST + DAY + 13 * HOUR), "stale", None, None),
        ("n2", "down", instant(FIRST + DAY + 13 * HOUR), instant(FIRST + DAY + 20 * HOUR), "retired", None, None),
    ]
    assert lakehouse.rows("SELECT started_at, ended_at, known, cause FROM muster.site_coverage ORDER BY 1") == [
        (instant(FIRST + 5 * HOUR), instant(FIRST + DAY), True, "observed"),
        (instant(FIRST + DAY), instant(FIRST + DAY + 2 * HOUR), False, "unobserved"),
        (instant(FIRST + DAY + 2 * HOUR), instant(TODAY), True, "observed"),
        (instant(TODAY), instant(known_through), False, "unobserved"),
    ]
    # The days from today on, of which midnight may have made two meanwhile: nobody has seen anything of them.
    unseen = [(at, min(DAY, known_through - at), at + DAY <= known_through) for at in range(TODAY, known_through, DAY)]
    query = (
        "SELECT day, sender_id, window_us, up_us, down_us, unknown_us, maintenance_us, absent_us, outage_count,"
        " complete, availability_known, coverage, error_bound_us FROM muster.sender_availability_daily ORDER BY 1, 2"
    )
    down = 90 * MINUTE
    daily = [
        (day(FIRST), "n1", DAY, 18 * HOUR - down, down, 0, 0, 6 * HOUR, 1, True, 16.5 / 18, 1.0, 10 * MINUTE),
        (day(FIRST), "n2", DAY, 18 * HOUR, 0, 0, 0, 6 * HOUR, 0, True, 1.0, 1.0, 0),
        (day(FIRST + DAY), "n1", DAY, 22 * HOUR, 0, 2 * HOUR, 0, 0, 0, True, 1.0, 22 / 24, 0),
        (day(FIRST + DAY), "n2", DAY, 11 * HOUR, 7 * HOUR, 2 * HOUR, 0, 4 * HOUR, 1, True, 11 / 18, 0.9, 10 * MINUTE),
        *((day(at), "n1", window, 0, 0, window, 0, 0, 0, whole, None, 0.0, 0) for at, window, whole in unseen),
    ]
    assert lakehouse.rows(query) == daily
    assert lakehouse.rows_in_spark(query) == daily
    fleet = lakehouse.rows(
        "SELECT day, sender_count, window_us, up_us, down_us, unknown_us, absent_us, outage_count, complete,"
        " error_bound_us FROM muster.fleet_availability_daily ORDER BY day"
    )
    assert fleet == [
        (day(FIRST), 2, DAY, Decimal(36 * HOUR - down), Decimal(down), 0, Decimal(12 * HOUR), 1, True, 10 * MINUTE),
        (day(FIRST + DAY), 2, DAY, Decimal(33 * HOUR), 7 * HOUR, 4 * HOUR, 4 * HOUR, 1, True, 10 * MINUTE),
        *((day(at), 1, window, 0, 0, window, 0, 0, whole, 0) for at, window, whole in unseen),
    ]
    hours = lakehouse.rows(
        "SELECT hour, sender_count, up_us, down_us, unknown_us, absent_us, outage_count"
        f" FROM muster.site_availability_hourly WHERE hour < '{instant(FIRST + 12 * HOUR)}' ORDER BY hour"
    )
    assert hours == [
        (instant(FIRST + 6 * HOUR), 2, 2 * HOUR, 0, 0, 0, 0),
        (instant(FIRST + 7 * HOUR), 2, 2 * HOUR, 0, 0, 0, 0),
        (instant(FIRST + 8 * HOUR), 2, 2 * HOUR, 0, 0, 0, 0),
        (instant(FIRST + 9 * HOUR), 2, 90 * MINUTE, 30 * MINUTE, 0, 0, 1),
        (instant(FIRST + 10 * HOUR), 2, HOUR, HOUR, 0, 0, 1),
        (instant(FIRST + 11 * HOUR), 2, 2 * HOUR, 0, 0, 0, 0),
    ]
    assert lakehouse.rows(
        "SELECT sender_id, started_at, ended_at, ended_by, noticed_at, duration_us FROM muster.outages ORDER BY 2"
    ) == [
        ("n1", instant(FIRST + 9 * HOUR + 30 * MINUTE), instant(FIRST + 11 * HOUR), "recovered",
         instant(FIRST + 9 * HOUR + 30 * MINUTE + STALE_AFTER), down),
        ("n2", instant(FIRST + DAY + 13 * HOUR), instant(FIRST + DAY + 20 * HOUR), "retired",
         instant(FIRST + DAY + 13 * HOUR + STALE_AFTER), 7 * HOUR),
    ]  # fmt: skip
    assert lakehouse.rows(
        "SELECT region, site, block, sender_id, incarnation, sequence, stored_at, stream, reason, payload_bytes,"
        " payload FROM muster.registrations"
    ) == [
        ("eu-west", "dub1", "nodes", "n1", "1-1", 1, instant(FIRST + 6 * HOUR), "REGISTRATION", "new", 31,
         '{"sender": "n1", "a": {"b": 1}}'),
    ]  # fmt: skip

    # Tables of a version that had fewer columns get them, and what is derived is as if they had always been there.
    before = {table.name: lakehouse.rows(f"SELECT * FROM {table.name}") for table in DERIVED}
    spark = rollup.start_session(lakehouse.settings, say)
    for table, column in (
        ("advisories", "by_operator"), ("site_coverage_daily", "maintenance_us"), ("sender_intervals", "advisory_kind"),
    ):  # fmt: skip
        spark.sql(f"ALTER TABLE muster.{table} DROP COLUMN {column}")
    spark.sql("ALTER TABLE muster.positions UNSET TBLPROPERTIES ('muster.tables')")
    for name, said in (("sender_intervals", "column"), ("sender_availability_daily", "run muster-aggregator rollup")):
        with pytest.raises(TablesUnreadable, match=said):
            lakehouse.rows(f"SELECT advisory_kind FROM {name}")
    assert lakehouse.roll_up().counts.read == 0
    after = {table.name: lakehouse.rows(f"SELECT * FROM {table.name}") for table in DERIVED}
    assert {name: sorted(rows, key=repr) for name, rows in after.items()} == {
        name: sorted(rows, key=repr) for name, rows in before.items()
    }


def silence_noticed_later(tables: Lakehouse) -> Story:
    """An hour that was complete and known turns down if a silence is noticed after it."""
    ams1, hour = Block("eu-west", "ams1"), FIRST + 11 * HOUR
    figures = (
        "SELECT up_us, down_us, unknown_us, complete FROM muster.site_availability_hourly"
        f" WHERE site = 'ams1' AND hour = '{instant(hour)}'"
    )
    yield [ams1.new("n1", FIRST), ams1.new("n2", FIRST), ams1.watermark(FIRST, hour + 65 * MINUTE)]
    assert tables.rows(figures) == [(2 * HOUR, 0, 0, True)]
    yield [ams1.stale("n1", hour + 55 * MINUTE), ams1.watermark(FIRST, hour + 70 * MINUTE)]
    assert tables.rows(figures) == [(115 * MINUTE, 5 * MINUTE, 0, True)]


def incident_after_a_blind_span(tables: Lakehouse) -> Story:
    """A blind span hides no incident in either engine."""
    ber1, blind_since = Block("eu-west", "ber1"), FIRST + 6 * HOUR
    watched_again, failed = blind_since + 12 * HOUR, FIRST + DAY
    rack = [(f"r{number}", failed + number * MINUTE) for number in range(6)]
    yield [
        *(ber1.new(sender, FIRST) for sender in ("silent", *(sender for sender, _ in rack))),
        ber1.watermark(FIRST, blind_since),
        # It had fallen silent a minute before nobody watched, and had the full time to be heard afterwards.
        ber1.advisory(AdvisoryKind.STALE, "silent", watched_again + STALE_AFTER, blind_since - MINUTE),
        ber1.recovered("silent", watched_again + HOUR),
        *(ber1.stale(sender, at) for sender, at in rack),
        *(ber1.recovered(sender, at + HOUR) for sender, at in rack),
        ber1.watermark(watched_again, TODAY),
    ]
    incidents = (
        "SELECT {0}(started_at), {0}(ended_at), {0}(noticed_at), sender_count FROM muster.incidents WHERE site = 'ber1'"
    )
    expected = [(failed, failed + HOUR + 5 * MINUTE, failed + STALE_AFTER, 6)]
    assert tables.rows(incidents.format("epoch_us")) == expected
    assert tables.rows_in_spark(incidents.format("unix_micros")) == expected


FACTS = b'"facts": {"os": "el9", "load": 1.5}'
PATH, HEADER = SenderByPath("sender"), SenderByHeader("X-Node")
HEARD: tuple[tuple[SenderRule, str, dict[str, str], bytes], ...] = (
    # The rule, the sender that an agent finds by it, headers in addition to X-Node, and the bytes before FACTS.
    (PATH, "plain", {}, b'{"sender": "plain", '),
    (PATH, "last", {}, b'{"sender": "first", "sender": "last", '),
    (SenderByPath("host.name"), "büro 7%\n", {}, b'{"sender": "x", "host": {"name": "b\xc3\xbcro 7%\\n"}, '),
    (HEADER, "by header", {}, b"{"),
    (HEADER, "honest", {"muster-sender": "x", "Muster-Sender": "x"}, b'{"sender": "x", '),
    (HEADER, "latin", {}, b'{"town": "Orl\xe9ans", '),
    (HEADER, "nan", {}, b'{"load": NaN, '),
    (HEADER, "half", {}, b'{"half": "\\udce9", '),
    (HEADER, "bom", {}, b"\xef\xbb\xbf{"),
    (SenderBySubject(), "registration.dub1", {}, b'{"path": "C:\\W\t",, '),
)


def wild_registrations(tables: Lakehouse) -> Story:
    """A registration belongs to the sender that its agent identified, and one wrong byte costs no facts."""
    lon1, at = Block("eu-west", "lon1"), FIRST + 6 * HOUR
    emitter = Emitter(lon1.id, "lon1-a", "boot", "1", "sender", b"key")
    state = BlockState(SourcePosition("REGISTRATION", lon1.incarnation, 100), Policy(HOUR, HOUR, DAY, MINUTE))
    decisions: list[Decision] = []
    for sequence, (rule, sender, headers, begin) in enumerate(HEARD, 1):
        message = SourceMessage(
            "registration.dub1", begin + FACTS + b"}", {"X-Node": sender.strip(), **headers}, sequence, at
        )
        taken = Intake(rule).read(message)
        assert isinstance(taken, Observation)
        assert taken.sender_id == sender
        decisions.append(Forward(sender, message, ForwardReason.NEW))
    # The tables do not guess a sender that the agent could not identify.
    unheard = SourceMessage("registration.dub1", b'{"sender": "unheard"}', None, 60, at)
    decisions.append(Forward("", unheard, ForwardReason.COPY))
    rows = emitter.rows(decisions, state, WatermarkContext({}, {}, {}))
    *records, nobodys = [Message(row.subject, row.payload, dict(row.headers)) for row in rows]
    of_old_agents = [
        lon1.registration(b'{"sender": "old", ' + FACTS + b"}", 50, at),
        # The tables do not believe a header that the node itself wrote into a copy.
        Message(
            "fleet.eu-west.lon1.nodes.copy.x",
            b'{"sender": "copied", ' + FACTS + b"}",
            {**(lon1.registration(b"", 51, at).headers or {}), "Muster-Sender": "forged"},
        ),
        lon1.registration(b"{}", 52, at),
        nobodys,
    ]
    everybody = [*(sender for _, sender, _, _ in HEARD), "old", "copied"]
    heard = [lon1.new(sender, at) for sender in everybody]
    result = yield [*heard, *records, *of_old_agents, lon1.watermark(at, at + HOUR)]
    assert result.counts.quarantined == 0
    query = (
        "SELECT i.sender_id, {0}(facts, '$.os'), {0}(facts, '$.load') FROM muster.inventory i JOIN"
        " muster.sender_intervals s ON (s.site, s.block, s.sender_id) = (i.site, i.block, i.sender_id)"
        " WHERE i.site = 'lon1'"
    )
    expected = sorted((sender, "el9", "1.5") for sender in everybody)
    assert sorted(tables.rows(query.format("json_extract_string"))) == expected
    assert sorted(tables.rows_in_spark(query.format("get_json_object"))) == expected
    kept = tables.rows(
        "SELECT sender_id, payload, original, payload_bytes, repaired IS NOT NULL FROM registrations"
        " WHERE site = 'lon1' ORDER BY sequence"
    )
    assert [bytes(original or str(payload).encode()) for _, payload, original, _, _ in kept] == [  # type: ignore[call-overload]
        record.body for record in (*records, *of_old_agents)
    ]
    assert [size for _, _, _, size, _ in kept] == [len(record.body) for record in (*records, *of_old_agents)]
    assert {sender for sender, _, _, _, is_repaired in kept if is_repaired} == {*everybody[5:10]}
    assert [sender for sender, _, original, _, _ in kept if original] == ["latin"]
    assert [sender for sender, *_ in kept[-2:]] == [None, None]


def senders_that_a_stream_ceased_to_accept(tables: Lakehouse) -> Story:
    """A sender that its stream no longer accepts is unknown for a time, and then absent."""
    nyc1, begin, until = Block("us-east", "nyc1"), FIRST + 2 * HOUR, FIRST + 20 * HOUR
    nobody_knew, far = FIRST + 6 * HOUR, TODAY + 30 * DAY
    names = ("again", "apart", "down", "gone", "later", "operator", "stale")
    yield [
        *(nyc1.new(name, begin) for name in names),
        *(nyc1.retired_unheard(name, nobody_knew, until) for name in ("again", "gone", "later", "operator")),
        nyc1.retired_unheard("apart", nobody_knew, far),
        # It was down before the stream ceased to listen to it, and may have come back unheard.
        nyc1.stale("down", nobody_knew - 2 * HOUR),
        nyc1.retired_unheard("down", nobody_knew, until),
        # Its silence was noticed while the stream listened to it.
        nyc1.stale("stale", nobody_knew),
        nyc1.watermark(begin, FIRST + DAY),
    ]
    days = (
        "SELECT sender_id, up_us, down_us, unknown_us, absent_us, outage_count FROM muster.sender_availability_daily"
        f" WHERE site = 'nyc1' AND day = '{day(FIRST)}' ORDER BY sender_id"
    )
    unheard = (4 * HOUR, 0, 14 * HOUR, 6 * HOUR, 0)
    apart = ("apart", 4 * HOUR, 0, 18 * HOUR, 2 * HOUR, 0)
    stale = ("stale", 4 * HOUR, 18 * HOUR, 0, 2 * HOUR, 1)
    down = ("down", 2 * HOUR, 2 * HOUR + 12 * MINUTE, 13 * HOUR + 48 * MINUTE, 6 * HOUR, 1)
    assert tables.rows(days) == [
        ("again", *unheard), apart, down, ("gone", *unheard), ("later", *unheard), ("operator", *unheard), stale,
    ]  # fmt: skip

    second = nyc1.new("again", FIRST + 10 * HOUR), nyc1.new("later", FIRST + 22 * HOUR)
    by_operator = nyc1.retired_by_operator("operator", FIRST + 11 * HOUR, nobody_knew)
    yield [*second, by_operator, second[0], nyc1.watermark(begin, TODAY)]
    assert tables.rows(days) == [
        ("again", 18 * HOUR, 0, 4 * HOUR, 2 * HOUR, 0),
        apart,
        down,
        ("gone", *unheard),
        ("later", 6 * HOUR, 0, 14 * HOUR, 4 * HOUR, 0),
        ("operator", 4 * HOUR, 0, 0, 20 * HOUR, 0),
        stale,
    ]
    intervals = (
        "SELECT sender_id, state, epoch_us(started_at), epoch_us(ended_at), ended_by, advisory_kind,"
        " epoch_us(episode_started_at) FROM sender_intervals WHERE site = 'nyc1' AND sender_id IN ('again', 'apart')"
        " ORDER BY 1, 3"
    )
    assert tables.rows(intervals) == [
        ("again", "up", begin, nobody_knew, "unheard", "new", begin),
        ("again", "unknown", nobody_knew, FIRST + 10 * HOUR, "new", "retired", begin),
        ("again", "up", FIRST + 10 * HOUR, None, None, "new", FIRST + 10 * HOUR),
        ("apart", "up", begin, nobody_knew, "unheard", "new", begin),
        ("apart", "unknown", nobody_knew, far, "retired", "retired", begin),
    ]
    with open_tables(tables.warehouse) as opened:
        choice = Choice(since=str(day(FIRST)), until=str(day(FIRST + DAY)), sites=("nyc1",))
        figures = read_figures(opened, choice, registration_interval=300 * SECOND)
    assert figures.unknown_by_cause == {"unheard": 4 * HOUR + 18 * HOUR + 2 * 14 * HOUR + 13 * HOUR + 48 * MINUTE}
    assert tables.rows("SELECT DISTINCT epoch_us(unheard_until) FROM advisories WHERE site = 'nyc1' ORDER BY 1") == [
        (until,), (far,), (None,),
    ]  # fmt: skip


STORIES: tuple[Telling, ...] = (
    silence_noticed_later,
    incident_after_a_blind_span,
    wild_registrations,
    senders_that_a_stream_ceased_to_accept,
)


@pytest.fixture(scope="module")
def played(spark: SparkSession, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(Lakehouse(hub, tmp_path_factory.mktemp("stories") / "lake"), STORIES)


@each_of(STORIES)
def test_tables_agree_with_each_story(played: Played, story: Telling) -> None:
    played.check(story)


def test_a_full_run_changes_nothing(played: Played) -> None:
    played.check_full_run()

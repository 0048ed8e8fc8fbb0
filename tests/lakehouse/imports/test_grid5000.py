"""A real fleet's history gives the figures published for it, and Muster would have seen it as it was.

The Grid'5000 availability trace (Failure Trace Archive, g5k06) is not part of this repository; where it is not beside
it either, these tests are skipped. docs/explanation/exactness.md says what is compared.
"""

import asyncio
import lzma
import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from aggregator.demo.comparison import Figures, Interval, Rules, judge
from aggregator.demo.spans import total
from aggregator.fleet.agreement import compare
from aggregator.lakehouse.derive.availability.imported_availability import (
    import_availability,
    import_sender_availability,
)
from aggregator.lakehouse.imports.mapping import Mapping
from aggregator.lakehouse.imports.rows import ImportedSpan as ImportedInterval
from aggregator.lakehouse.imports.rows import RowReader
from aggregator.lakehouse.imports.source_file import SourceFile
from aggregator.lakehouse.imports.staging import stage
from aggregator.lakehouse.imports.writer import staged_intervals
from aggregator.lakehouse.query.engine import open_tables
from edge_agent.core.policy import Policy
from edge_agent.core.records import Emitter, OutboxRow
from edge_agent.simulator.bodies import RegistrationBodies, SizeRange
from edge_agent.simulator.fleet import Fleet, FleetSettings
from edge_agent.simulator.history import HistorySettings, SiteHistory
from edge_agent.simulator.intervals_file import lifetimes
from shared.identifiers import AdvisoryKind, BlockId
from shared.instants import DAY, HOUR, MINUTE, SECOND, parse_instant
from shared.subjects import RecordType
from shared.truth import Truth, TruthHeader, UpInterval
from shared.wire import Advisory, decode_advisory
from tests.lakehouse.conftest import Lakehouse, say
from tests.lakehouse.test_agreement import caught_up
from tests.support.documents.documents import EXACTNESS
from tests.support.lakehouse.hub import Message

DIRECTORY = Path(os.environ.get("MUSTER_GRID5000", Path(__file__).parents[4] / "shared" / "data" / "grid5000"))
TRACE = DIRECTORY / "event_trace.tab.xz"
MAPPING = Mapping(
    source="grid5000",
    sender=("node_name",),
    start="event_start_time",
    stop="event_stop_time",
    state="event_type",
    up=("1",),
    down=("0",),
    shape="{region}/{site}/{cluster}/{}",
)
READ_AT = parse_instant("2026-01-01T00:00:00Z")
MONTH = parse_instant("2006-06-01T00:00:00Z"), 30 * DAY
REPLAYED = ("site2", "site5", "site6", "site7")
"""Sites of a month that are played: some of them, for these tests are to be quick."""
AGREED = REPLAYED[:1]
INTERVAL, STALE_AFTER = 5 * MINUTE, 12 * MINUTE

pytestmark = pytest.mark.skipif(
    not TRACE.exists(), reason="the Grid'5000 trace is not there: set MUSTER_GRID5000 to the directory that holds it"
)


class Node(NamedTuple):
    """All that the trace says of one node: when it was up, and when it was down, in order; seconds."""

    site: str
    cluster: str
    up: list[tuple[int, int]]
    down: list[tuple[int, int]]

    @property
    def first_down(self) -> int:
        """Give how long it was down before it was up for the first time."""
        began = min((begin for begin, end in self.up if end > begin), default=None)
        return sum(end - begin for begin, end in self.down if began is None or begin < began)


class Reference(NamedTuple):
    """What is said of some nodes, worked out without a line of the importer's or of Spark's."""

    sender_count: int
    zero_length_count: int
    observed: float
    sender_mean: float
    after_first_up: float
    whole_period: float
    up_mean_hours: float
    down_mean_hours: float


@pytest.fixture(scope="module")
def trace() -> dict[str, Node]:
    """Read the trace as anybody would: a line is an interval, its fields parted by white space."""
    nodes: dict[str, Node] = {}
    with lzma.open(TRACE, "rt", encoding="ascii") as lines:
        next(lines)
        for line in lines:
            _, _, _, _, name, state, begin, end, _ = line.split()
            if (node := nodes.get(name)) is None:
                _, site, cluster, _ = name.split("/")
                node = nodes[name] = Node(site, cluster, [], [])
            (node.up if state == "1" else node.down).append((int(begin), int(end)))
    return nodes


def lengths(spans: list[tuple[int, int]]) -> list[int]:
    return [end - begin for begin, end in spans]


def reference(nodes: Iterable[Node], whole: int) -> Reference:
    chosen = list(nodes)
    ups = [length for node in chosen for length in lengths(node.up)]
    downs = [length for node in chosen for length in lengths(node.down)]
    up, down = sum(ups), sum(downs)
    own = [(sum(lengths(node.up)), sum(lengths(node.down))) for node in chosen]
    return Reference(
        sender_count=len(chosen),
        zero_length_count=ups.count(0) + downs.count(0),
        observed=up / (up + down),
        sender_mean=sum(of_up / (of_up + of_down) for of_up, of_down in own) / len(own),
        after_first_up=up / (up + down - sum(node.first_down for node in chosen)),
        whole_period=up / (len(chosen) * whole),
        up_mean_hours=up / len(ups) / 3600,
        down_mean_hours=down / len(downs) / 3600,
    )


def of_table(row: Row) -> Reference:
    return Reference(
        sender_count=row.sender_count,
        zero_length_count=row.zero_length_count,
        observed=row.availability_observed,
        sender_mean=row.availability_sender_mean,
        after_first_up=row.availability_after_first_up,
        whole_period=row.availability_whole_period,
        up_mean_hours=row.up_mean_hours,
        down_mean_hours=row.down_mean_hours,
    )


def documented() -> dict[str, list[str]]:
    """Give the rows of the document's table by their first cell: a site, or all."""
    rows = re.findall(r"^\| (all|site\d) \| (.*) \|$", EXACTNESS.read_text(), re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in rows}


def as_documented(figures: Reference) -> list[str]:
    shares = (figures.observed, figures.sender_mean, figures.after_first_up, figures.whole_period)
    hours = (figures.up_mean_hours, figures.down_mean_hours)
    rounded = (*(100 * share for share in shares), *hours)
    return [str(figures.sender_count), *(str(round(each, 2)) for each in rounded)]


def test_the_published_figures_come_out_to_the_printed_digits(
    spark: SparkSession, trace: dict[str, Node], tmp_path: Path
) -> None:
    imports = staged_intervals(spark, stage(TRACE, MAPPING, tmp_path / "staged", READ_AT, say), MAPPING).persist()
    senders = import_sender_availability(imports).persist()
    found = {(row.grouping, row.site, row.group_name): row for row in import_availability(imports, senders).collect()}
    instants = [at for node in trace.values() for span in (*node.up, *node.down) for at in span]
    whole = max(instants) - min(instants)
    expected: dict[tuple[str, str | None, str | None], Reference] = {
        ("all", None, None): reference(trace.values(), whole)
    }
    for site in {node.site for node in trace.values()}:
        here = [node for node in trace.values() if node.site == site]
        expected["site", site, None] = reference(here, whole)
        for cluster in {node.cluster for node in here}:
            expected["cluster", site, cluster] = reference((node for node in here if node.cluster == cluster), whole)
    assert {key for key in found if key[0] != "region"} == expected.keys()
    for key, figures in expected.items():
        assert of_table(found[key]) == pytest.approx(figures, rel=1e-9), key
    assert documented() == {
        site or "all": as_documented(of_table(row))
        for (grouping, site, _), row in found.items()
        if grouping in ("all", "site")
    }
    fleet = found["all", None, None]
    assert fleet.sender_count == 1_288
    assert fleet.up_interval_count + fleet.down_interval_count == 588_463
    assert fleet.zero_length_count == 25
    assert (round(fleet.up_mean_hours, 3), round(fleet.down_mean_hours, 3)) == (32.406, 7.414)
    assert (round(fleet.up_lognormal_mu, 2), round(fleet.up_lognormal_sigma, 2)) == (1.51, 2.42)
    assert (round(fleet.down_lognormal_mu, 2), round(fleet.down_lognormal_sigma, 2)) == (-2.00, 2.20)
    assert [
        f"{100 * share:.2f}"
        for share in (
            fleet.availability_observed,
            fleet.availability_sender_mean,
            fleet.availability_after_first_up,
            fleet.availability_whole_period,
        )
    ] == ["81.39", "79.34", "81.79", "56.29"]
    assert round(fleet.down_median_us / MINUTE, 1) == 2.9
    assert (fleet.down_interval_count, fleet.down_over_5m_count, fleet.down_over_15m_count) == (
        294_145, 103_276, 70_958,
    )  # fmt: skip
    # Nine sites, fifteen clusters, each the sum of what it holds.
    assert sum(1 for key in found if key[0] == "site") == 9
    assert sum(1 for key in found if key[0] == "cluster") == 15
    for grouping in ("site", "cluster"):
        parts = [row for key, row in found.items() if key[0] == grouping]
        assert sum(row.up_us for row in parts) == fleet.up_us
        assert sum(row.sender_count for row in parts) == fleet.sender_count
    unknown = senders.agg(f.sum("unknown_us")).first()
    assert unknown is not None
    assert unknown[0] == 0


def test_a_month_of_it_replayed_is_within_the_bound_of_the_truth_for_every_sender(trace: dict[str, Node]) -> None:
    started_at, duration = MONTH
    up_spans = read_up_spans()
    truth = truth_of(trace)
    verdicts = []
    for site in REPLAYED:
        fleet_settings = FleetSettings(site=site, sender_count=1, registration_interval=INTERVAL)
        fleet = Fleet(fleet_settings, lifetimes(up_spans[site], started_at, duration))
        assert {(site, sender) for sender in fleet.sender_ids} == {each for each in truth.senders if each[0] == site}
        intervals = replayed(fleet, site)
        rules = Rules(((started_at, started_at + duration),), STALE_AFTER, started_at + duration)
        for sender in fleet.sender_ids:
            own = tuple(intervals.get(sender, ()))
            up = total(each.span for each in own if each.state == "up")
            down = total(each.span for each in own if each.state == "down")
            verdicts.append(judge(truth, site, sender, Figures(own, up, down), rules))
    assert len(verdicts) > 200
    assert sum(verdict.noticed for verdict in verdicts) > 500
    assert [verdict for verdict in verdicts if verdict.beyond or verdict.accused or verdict.unmet] == []


def test_live_and_tables_agree_on_every_sender_of_a_month_of_it_that_is_played_now(lakehouse: Lakehouse) -> None:
    up_spans = read_up_spans()
    # As if it had just been: the hub takes nothing that is many years old.
    started_at = time.time_ns() // 1_000 - MONTH[1] - DAY
    rows: list[OutboxRow] = []
    for site in AGREED:
        settings = FleetSettings(site=site, sender_count=1, registration_interval=INTERVAL)
        rows += played(Fleet(settings, lifetimes(up_spans[site], *MONTH)), site, started_at)
    last = lakehouse.hub.publish(Message(row.subject, row.payload) for row in rows)
    bodies = (decode_advisory(row.payload) for row in rows if RecordType.ADVISORY in row.subject.split("."))
    told = {(body.replicator, body.value) for body in bodies}
    lakehouse.roll_up()
    asyncio.run(caught_up(lakehouse, last))
    with open_tables(lakehouse.warehouse, lakehouse.settings.lakehouse.catalog) as tables:
        found = asyncio.run(compare(lakehouse.settings, tables, say))
    assert str(found) == f"agree {len(told)}, contradict 0, only live 0, only tables 0", found.differences
    assert (found.service_sequence, found.is_service_same) == (last, True)


def read_up_spans() -> dict[str, dict[str, list[tuple[int, int]]]]:
    """Read who was up when in the month, by site, as the export of imported intervals would give it."""
    source = SourceFile(TRACE, MAPPING)
    reader = RowReader(MAPPING, source.columns, READ_AT)
    found: dict[str, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for row in source.rows():
        read = reader.read(row.fields or ())
        assert isinstance(read, ImportedInterval)
        if read.sender.site in REPLAYED and read.state == "up":
            begin, end = read.started_at, read.ended_at
            if begin < min(end, sum(MONTH)) and end > MONTH[0]:
                found[read.sender.site][read.sender.sender_id].append((begin, end))
    source.close()
    return found


def truth_of(trace: dict[str, Node]) -> Truth:
    """Say who was really up in the month: what the trace says, cut at its ends, and nothing of what is played."""
    begins, ends = MONTH[0], sum(MONTH)
    header = TruthHeader(
        seed=0, registration_interval=INTERVAL, jitter=0, started_at_us=begins, ended_at_us=None, script=""
    )
    up = (
        UpInterval(
            site=node.site,
            sender=name,
            up_from_us=max(up_from * SECOND, begins),
            up_to_us=up_to * SECOND if up_to * SECOND < ends else None,
        )
        for name, node in trace.items()
        for up_from, up_to in node.up
        if max(up_from * SECOND, begins) < min(up_to * SECOND, ends)
    )
    return Truth(header, ends, up)


def played(fleet: Fleet, site: str, started_at: int) -> Iterator[OutboxRow]:
    """Let an agent's tracker see the fleet for a month, and give the records of what it tells of it."""
    settings = HistorySettings(
        emitter=Emitter(BlockId("eu", site, "nodes"), "a", "boot", "0", "sender", bytes(32)),
        policy=Policy(sample_interval=90 * DAY, stale_after=STALE_AFTER, retire_after=DAY, blind_after=3 * MINUTE),
        stream="REGISTRATION",
        started_at=started_at,
        watermark_interval=HOUR,
    )
    history = SiteHistory(fleet, settings, RegistrationBodies(SizeRange(3_000, 3_000)), [])
    for end in range(HOUR, MONTH[1] + 1, HOUR):
        yield from (row for row in history.advance_to(end) if RecordType.REGISTRATION not in row.subject.split("."))


def replayed(fleet: Fleet, site: str) -> dict[str, list[Interval]]:
    """Play a fleet, and give each sender's intervals as its agent tells them."""
    started_at, duration = MONTH
    said: dict[str, list[Advisory]] = defaultdict(list)
    for row in played(fleet, site, started_at):
        if RecordType.ADVISORY in row.subject.split("."):
            advisory = decode_advisory(row.payload)
            assert isinstance(advisory, Advisory)
            said[advisory.value].append(advisory)
    return {sender: list(intervals_of(advisories, started_at + duration)) for sender, advisories in said.items()}


def intervals_of(advisories: list[Advisory], ended_at: int) -> Iterator[Interval]:
    changes = [(each.last_seen_us if each.kind is AdvisoryKind.STALE else each.at_us, each) for each in advisories]
    for (begin, each), end in zip(changes, [*(at for at, _ in changes[1:]), ended_at], strict=True):
        if each.kind is not AdvisoryKind.RETIRED:
            yield Interval("down" if each.kind is AdvisoryKind.STALE else "up", begin, end, each.at_us)

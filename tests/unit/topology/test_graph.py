"""What copies what can be drawn, each stream once, in its place, an arrow for each copying; and laid out in tables."""

import re

import msgspec

from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import ApiFailure, External, Replication, StreamState
from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.tables import ReplicationRow, StreamReport, StreamRow, report
from aggregator.topology.report.text import format_report
from tests.support.topology.topologies import EU, HUB_PLACE, US, as_applied, topology, with_state


def drawn() -> str:
    wanted = desired(topology())
    found = as_applied(wanted)
    with_state(found, EU, "FLEET", StreamState(messages=50, last_seq=50))
    taken = Replication("FLEET", External(EU.api), active=2_000_000_000, seq=47)
    lost = Replication("FLEET", External(US.api), error=ApiFailure('stream "FLEET" not found'))
    strange = Replication("OTHER", External("imported.API"), filter_subject="a.*", lag=3)
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=47, last_seq=47), taken, lost, strange)
    del found.streams[US, "FLEET"]
    return replication_graph(report(wanted, found))


def test_every_stream_is_a_node_in_the_box_of_its_place() -> None:
    boxes = re.findall(r"subgraph cluster_\d+ \{\n(.*?)\n  \}", drawn(), re.DOTALL)
    assert {
        re.findall(r'label="(.*?)";', box)[0]: re.findall(r'^    ("\S+") \[', box, re.MULTILINE) for box in boxes
    } == {
        "eu-west": ['"eu-west/FLEET"'],
        "us-east": ['"us-east/FLEET"'],
        "hub": ['"hub/ARCHIVE"', '"hub/REPORT"'],
        "imported.API": ['"imported.API/OTHER"'],
    }


def test_every_copying_is_an_arrow_and_a_dead_one_is_dashed() -> None:
    arrows = re.findall(r"^  (\"\S+\" -> \"\S+\") \[(.*)\];$", drawn(), re.MULTILINE)
    assert arrows == [
        ('"eu-west/FLEET" -> "hub/ARCHIVE"', r'label="durable source\nbehind 3"'),
        (
            '"us-east/FLEET" -> "hub/ARCHIVE"',
            r'label="durable source\nlag 0\nstream \"FLEET\" not found", style=dashed, color="red"',
        ),
        ('"imported.API/OTHER" -> "hub/ARCHIVE"', r'label="source\na.*\nlag 3", style=dashed, color="red"'),
    ]


def test_braces_and_quotes_are_balanced() -> None:
    text = re.sub(r"\\.", "", drawn())
    assert text.count('"') % 2 == 0
    bare = re.sub(r'"[^"]*"', "", text)
    assert bare.count("{") == bare.count("}") == bare.count("subgraph") + 1
    assert bare.count("[") == bare.count("]")


def test_the_tables_fit_a_terminal_and_lose_nothing_that_tells_rows_apart() -> None:
    stream = StreamRow(
        name="MUSTER_POLICY",
        place="eu-west",
        kind="sourced",
        storage="memory",
        replicas=3,
        messages=12_345_678,
        bytes=10 << 30,
        first_sequence=12_345_678,
        last_sequence=24_691_355,
        consumers=12,
        placement=("rg:2",),
        servers=("n1-rg2-az1", "n2-rg2-az2", "n3-rg2-az3"),
        leader="n2-rg2-az2",
    )
    copied = ReplicationRow(
        stream="MUSTER_POLICY",
        place="eu-west",
        kind="durable source",
        api="$JS.us-east.API",
        source="FLEET",
        source_place="us-east",
        silent_us=999_000,
        lag=1_234,
        taken=24_691_355,
        origin_last=24_691_358,
        behind=3,
        takes=("fleet.us-east.*.*.registration",),
        error="no such stream",
    )
    shown = format_report(StreamReport((stream,), (copied,), {}))
    assert "eu-west: MUSTER_POLICY takes only fleet.us-east.*.*.registration of FLEET" in shown
    assert "n1-rg2-az1, n2-rg2-az2*, n3-rg2-az3" in shown
    assert max(map(len, shown.splitlines())) <= 100
    another = msgspec.structs.replace(copied, takes=("fleet.us-east.*.*.watermark",))
    rows = format_report(StreamReport((stream,), (copied, another), {})).splitlines()[6:9]
    assert [row.split()[5] for row in rows] == ["TAKES", *copied.takes, *another.takes]

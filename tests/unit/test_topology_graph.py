"""What copies what can be drawn: each stream once, in its place, and an arrow for each copying."""

import re

from aggregator.topology.desired import desired
from aggregator.topology.found import ApiFailure, External, Replication, StreamState
from aggregator.topology.graph import replication_graph
from aggregator.topology.report import report
from tests.support.topologies import EU, HUB_PLACE, US, as_applied, topology, with_state


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

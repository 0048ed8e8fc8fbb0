"""Sources and mirrors, as documented: options, what copies keep, edge conditions, work queues and interest."""

from pathlib import Path
from typing import Any

from aggregator.scenarios.semantics import scenario
from tests.support.topology.scenarios import found_by

TEN = [str(number) for number in range(1, 11)]


async def test_sources_and_mirrors_do_as_documented_and_otherwise_where_noted(tmp_path: Path) -> None:
    found = await found_by(scenario.play, tmp_path)
    _sources(found)
    _mirrors(found)
    _retention(found)
    _durable_and_links(found)


def _sources(found: dict[str, Any]) -> None:
    assert found["FROM_SEQUENCE: start_sequence = 6"] == TEN[5:]
    assert found["FROM_TIME: start_time = that of the sixth, which counts"] == TEN[5:]
    assert found["FILTERED: filter_subject = o.a"] == TEN[::2]
    assert found["RENAMED: transforms of o.a and o.b, in the origin's order"] == TEN
    assert found["RENAMED: under the new names"] == ["new.a", "o.b"] * 5
    assert found["PARTLY: a transform of o.b alone filters"] == TEN[1::2]
    assert found["GATHERED: everything"] == TEN
    assert found["TAKEN_OUT: everything, and a retention of its own"] == TEN
    assert found["FROM_SEQUENCE: a replica that is only read listens on"] == []
    assert found["the origin shows consumers of its copies"] == []
    assert found["a client without the permission is denied"]
    assert found["GATHERED: nothing of the denied client, all else"] == 12
    assert found["for a time only: allowed again, it writes"]
    assert found["ORIGIN has nothing of what GATHERED took directly"] == [*TEN, "eleventh"]
    assert found["who has message 2, deleted in GATHERED, and 4, deleted in ORIGIN"] == {
        "ORIGIN": [True, False],
        "GATHERED": [False, True],
    }
    assert found["TAKEN_OUT, a work queue, gives its reader"] == TEN[:3]
    assert found["which leaves there"] == 4
    assert found["and in ORIGIN, which keeps all of it, still"]
    assert found["by start_time: what came before its own last message is skipped"] == ["before", "after"]
    assert found["by start_sequence: everything comes"] == [
        "before",
        *(number for number in TEN if number != "4"),
        "eleventh",
        "twelfth",
        "after",
    ]


def _mirrors(found: dict[str, Any]) -> None:
    assert found["MIRROR: subjects, sequences and times are the origin's"]
    assert found["MIRROR_FROM_SIX: start_sequence = 6"]
    assert found["MIRROR_FROM_TIME: start_time of the sixth"]
    assert found["MIRROR_OF_B: a filter, the origin's sequences"]
    assert found["SHORT: a retention and storage of its own"]
    assert not found["what clients write to MIRROR is stored"]
    assert found["of a source, a filter together with transforms"] == "error 10144"
    assert found["of a mirror, a filter together with transforms"] == "error 10150"
    assert found["who has message 3, deleted in the origin, and 5, deleted in the mirror"] == {
        "ORIGIN": [False, True],
        "MIRROR": [True, False],
    }
    assert found["a consumer with a filter gets"] == ["2", "6", "8", "10"]


def _retention(found: dict[str, Any]) -> None:
    assert found["the copy has the work"] == ["1", "2", "3"]
    assert found["the source removes it from the queue, which holds"] == 0
    assert found["a local consumer beside the source"] == "accepted"
    assert found["and the local consumer gets it too"] == ["4"]
    assert found["a source of a queue that has a local consumer already takes"] == ["1", "2"]
    assert found["while the link is up, the copy has the work"] == ["1", "2"]
    assert found["and the queue, which holds then"] == 0
    assert found["of a leaf's work queue, copies that plan refuses"] == 1
    assert found["messages kept of what comes while nobody reads"] == 0
    assert found["of an interest stream, copies that plan refuses"] == 1
    assert found["the copy has what came while it was there"] == ["after"]


def _durable_and_links(found: dict[str, Any]) -> None:
    assert found["SAFE: start_sequence = 2, filter_subject = safe.a"] == ["2", "4"]
    assert found["which has start and filter, and keeps the place"] == (2, ["safe.a"], "flow_control")
    assert found["with the source goes its consumer"] == []
    assert found["and nobody else may consume it meanwhile"] == "error 10099"

    assert found["through the domains' APIs; behind"] == {
        "EDGE_COPY reads $JS.edge.API": 0,
        "AT_EDGE reads $JS.hub.API": 0,
    }
    assert found["the edge's mirror answers direct gets for the hub's stream"] == "1"
    assert not found["the hub reaches the edge's JetStream now"]
    assert found["a worker at the edge takes from the work queue"] == ["3", "4"]
    assert found["the hub catches up, without what was deleted meanwhile"] == ["1", "2", "3", "4", "6"]
    assert found["the copy of the work queue has what the worker took, too"] == ["1", "2", "3", "4"]
    assert found["sequences and times are still the origin's"]

"""Sources and mirrors, as documented: options, what copies keep, edge conditions, work queues and interest."""

from pathlib import Path

from aggregator.scenarios import semantics
from tests.support.scenarios import found_by

TEN = [str(number) for number in range(1, 11)]


async def test_sources_and_mirrors_do_as_documented_and_otherwise_where_noted(tmp_path: Path) -> None:
    found = await found_by(semantics.play, tmp_path)

    assert found["FROM_SEQUENCE: start_sequence = 6"] == TEN[5:]
    assert found["FROM_TIME: start_time = that of the sixth, which counts"] == TEN[5:]
    assert found["FILTERED: filter_subject = o.a"] == TEN[::2]
    assert found["RENAMED: transforms of o.a and o.b, in the origin's order"] == TEN
    assert found["RENAMED: under the new names"] == ["new.a", "o.b"] * 5
    assert found["PARTLY: a transform of o.b alone filters"] == TEN[1::2]
    assert found["GATHERED: everything"] == TEN
    assert found["a filter together with transforms is refused (error)"] == 10144
    assert found["the origin shows consumers of its copies"] == []
    assert found["a client without the permission is denied"]
    assert found["GATHERED: nothing of the denied client"] == 12
    assert found["by start_time: what came before its own last message is skipped"] == ["before", "after"]
    assert found["by start_sequence: everything comes"] == ["before", *TEN, "eleventh", "after"]

    assert found["MIRROR: subjects, sequences and times are the origin's"]
    assert found["MIRROR_FROM_SIX: start_sequence = 6"]
    assert found["MIRROR_OF_B: a filter, the origin's sequences"]
    assert found["SHORT: a retention and storage of its own"]
    assert not found["clients cannot write to it"]
    assert found["who has message 3, deleted in the origin, and 5, deleted in the mirror"] == {
        "ORIGIN": [False, True],
        "MIRROR": [True, False],
    }
    assert found["a consumer with a filter gets"] == TEN[1::2]

    assert found["the copy has the work"] == ["1", "2", "3"]
    assert found["the source removes it from the queue"] == 0
    assert found["a local consumer beside the source is refused (error; 0: it is not)"] == 0
    assert found["and the local consumer gets it too"] == ["4"]
    assert found["a source of a queue that has a local consumer already takes"] == ["1", "2"]
    assert found["while the link is up, the copy has the work"] == ["1", "2"]
    assert found["what comes while nobody reads is kept"] == 0
    assert found["the copy has what came while it was there"] == ["after"]

    assert found["SAFE: start_sequence = 2, filter_subject = safe.a"] == ["2", "4"]
    assert found["which has start and filter, and keeps the place"] == (2, ["safe.a"], "flow_control")
    assert found["with the source goes its consumer"] == []
    assert found["and nobody else may consume it meanwhile (error)"] == 10099

    assert found["through the domains' APIs; behind"] == {
        "EDGE_COPY reads $JS.edge.API": 0,
        "AT_EDGE reads $JS.hub.API": 0,
    }
    assert found["the edge's mirror answers direct gets for the hub's stream"] == "1"
    assert not found["nothing reaches the edge"]
    assert found["the hub catches up"] == ["1", "2", "3", "4"]
    assert found["sequences and times are still the origin's"]

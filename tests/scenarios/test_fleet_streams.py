"""Choria fleet streams, as documented: two cities, their region, the centre; sampled on the way up, nobody accused."""

from pathlib import Path

from aggregator.scenarios.fleet import scenario
from aggregator.scenarios.fleet.plain import plain_advisories
from tests.support.topology.scenarios import found_by

CHORIA = "choria.stream.input"


async def test_a_tree_is_as_fresh_as_designed_and_counts_everybody_once(tmp_path: Path) -> None:
    found = await found_by(scenario.play, tmp_path)
    assert found["the centre knows everyone (nodes)"] == 16
    assert found["a name that stands in both cities is two nodes"]
    assert found["the centre hears of it all the same: sources carry advisories"] == ["new", "stale"]
    assert found["and that it is back"] == ["new", "stale", "recovered"]
    assert found["city 5 minutes, region 30, centre an hour"] == {"city": True, "region": True, "centre": True}
    assert found["ARCHIVE has them as they are"]
    assert found["each is an advisory without watermarks, of a kind that we know"] == [
        f"ber1 {kind}" for kind in ("new", "stale", "recovered", "stale", "retired")
    ]
    assert found["CHORIA_REGISTRATION_ADVISORIES has them beside ours"]
    levels = ["region", "centre"]
    assert found["CHORIA_REGISTRATION_ADVISORIES: every advisory of the cities, unsampled, in"] == levels
    assert found["under the subject that they read"] == [f"{CHORIA}.registration_advisories"]
    assert found["a consumer that knows Choria alone reads all of it, ours and plain, of"] == ["ber1", "dub1", "lon1"]
    assert found["CHORIA_REGISTRATION: every registration of"] == ["region", "centre"]
    assert found["one subject for each city"] == [f"{CHORIA}.registration.{city}" for city in ("dub1", "lon1")]
    assert set(found["how many came twice, a killed relay notwithstanding"].values()) == {0}
    assert set(found["and all that nodes sent was read (registrations, to the agents' last word)"]) == {"dub1", "lon1"}
    assert found["what the relay passed on is what it was, byte for byte"]
    assert found["of the node that was silent"] == ["new", "stale", "recovered"]
    assert found["of the node that never came back"] == ["new", "stale", "retired"]
    assert found["of all others"] == ["new"]
    assert found["nodes, as the advisories alone say"] == {"gone": 1, "there": 15}
    assert found["messages"] == {"dub1": 200, "lon1": 200}
    assert found["the region has all of them once, in their order"] == {"dub1": True, "lon1": True}
    assert found["sites that say so"] == ["dub1", "lon1"]
    assert found["their watermarks vouch for just these, none of eu-relay's"]


def test_what_a_plain_replicator_says_is_what_the_tables_are_tried_with() -> None:
    recorded = Path(__file__).parent.parent / "lakehouse" / "bronze" / "choria_advisories.jsonl"
    assert plain_advisories() == recorded.read_bytes().splitlines()

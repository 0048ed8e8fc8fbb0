"""Regional and cross-region streams, as documented: nine servers, placement by tags, a region that is down."""

from pathlib import Path

from aggregator.scenarios import regions
from tests.support.topology.scenarios import found_by


async def test_a_region_that_is_down_stops_its_own_streams_only(tmp_path: Path) -> None:
    found = await found_by(regions.play, tmp_path)
    servers = [f"rg{region}-az{zone}" for region in (1, 2, 3) for zone in (1, 2, 3)]
    assert found["servers"] == servers
    assert found["their tags"]["rg2-az3"] == ["az:3", "rg:2", "xr:132", "xr:231"]
    assert found["meta group: current and online"] == dict.fromkeys(servers, True)
    assert found["tags, and the servers that they come to"] == {
        "EVENTS": (("xr:123",), ("rg1-az1", "rg2-az2", "rg3-az3")),
        "ORDERS": (("rg:2",), ("rg2-az1", "rg2-az2", "rg2-az3")),
    }
    assert set(found["options that are not as documented, of 15"]) == {"EVENTS", "ORDERS"}
    assert not any(found["options that are not as documented, of 15"].values())
    combinations = found["each combination that was written down lies in as many regions, and zones"]
    assert combinations == dict.fromkeys(("xr:123", "xr:132", "xr:213", "xr:231", "xr:312", "xr:321"), (3, 3))
    assert found["and each region's"] == dict.fromkeys(("rg:1", "rg:2", "rg:3"), (1, 3))
    assert found["five replicas in three zones"] == "error 10005"
    assert found["three replicas, and a tag that names one zone"] == "accepted"
    assert found["servers left"] == servers[:3] + servers[6:]
    assert found["EVENTS takes writes"]
    assert not found["ORDERS takes writes"]
    assert found["current in the meta group"] == servers[:3] + servers[6:]
    assert found["a stream in region 3 can be made"] == "accepted"
    assert found["ORDERS takes writes again"]
    assert found["ORDERS still has what it had"] == "before"
    assert found["EVENTS has all its replicas again"] == ["rg1-az1", "rg2-az2", "rg3-az3"]
    assert found["EVENTS has what came before and meanwhile"] == ["before", "meanwhile"]

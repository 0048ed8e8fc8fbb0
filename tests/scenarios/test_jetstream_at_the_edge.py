"""JetStream at the edge, as documented: hub and spokes, domains, tokens pushed while servers run, several accounts."""

import re
from pathlib import Path

from aggregator.scenarios.edge import scenario
from aggregator.scenarios.edge.outages import is_off
from aggregator.scenarios.stage import JetStream
from shared.embedded.server import EmbeddedNats, ServerSettings
from tests.support.topology.regions import client_of
from tests.support.topology.scenarios import found_by

CLUSTERS = ("hub", "spoke-1", "spoke-2")


async def test_hub_and_spokes_hold_what_the_documentation_counts(tmp_path: Path) -> None:
    found = await found_by(scenario.play, tmp_path)
    assert found["the hub's system account sees"] == dict.fromkeys(CLUSTERS, 3)
    cnc = {"hub/cnc": 10, "spoke-1/recv-cnc": 10, "spoke-2/recv-cnc": 10}
    assert found["each spoke has what the hub was told before, in a stream of one name in two domains"] == cnc
    assert found["ten at the hub are stored in both"] == {"spoke-1/test": 10, "spoke-2/test": 10}
    assert found["ten at spoke-1 too"] == {"spoke-1/test": 20, "spoke-2/test": 20}
    assert found["so the aggregate has each twice"] == 40
    assert not found["whoever asks the hub gets an answer"]
    assert found["spoke-1 still stores"] == 40
    assert found["spoke-2's backup has what it had"] == 30
    assert found[
        "the backup has caught up, and so has the aggregate; spoke-2 never heard the last ten"
    ] == dict.fromkeys(cnc, 20) | {
        "spoke-1/test": 40,
        "spoke-2/test": 30,
        "hub/aggregate": 70,
        "spoke-2/backup-test-spoke-1": 40,
    }
    mirrors = ["spoke-1/recv-cnc", "spoke-2/recv-cnc", "spoke-2/backup-test-spoke-1"]
    assert found["copies have not heard from their origins for 3s"] == dict.fromkeys(mirrors, True)
    assert found["their lag, which is what they last heard"] == dict.fromkeys(mirrors, 0)
    assert found["spokes that the hub reaches"] == []
    assert found["ten more stay with the hub"] == {"hub": 20, "spoke-1": 10, "spoke-2": 10}
    assert found["and come to the spokes when they are back"] == dict.fromkeys(CLUSTERS, 20)
    assert found["servers that took the accounts' tokens, without a restart"] == {"TEST": 9, "IMPORTER": 9}
    assert found["crossacc has what aggregate has"] == 70
    assert found["IMPORTER reads by the API prefix from.test.API"] == 70
    assert found["left for it: pending, not acknowledged"] == [0, 0]
    assert found["the first of them"] == {
        "subject": "test",
        "body": "hello world",
        "taken from": "test",
        "tries": 1,
        "sequence of the consumer": 1,
        "sequence of the stream": 1,
        "pending": 69,
    }
    assert not found["it may ask about the consumer"]
    placed = found["HUBACC makes a stream test by each domain's name, in"]
    assert placed == {"leafacc.spoke-1": "spoke-1", "leafacc.spoke-2": "spoke-2"}
    isolated = {"LEAFACC-spoke-1/test": 10, "LEAFACC-spoke-2/test": 10}
    assert found["ten at each spoke stay there"] == isolated
    assert found["ten of LEAFACC at the hub reach neither"] == isolated
    assert found["HUBACC's aggregate has the spokes' twenty"] == isolated | {"HUBACC/aggregate": 20}
    assert found["all nine decide together, and the hub leads"] == {"hub": 9}
    assert found["when its leader steps down, the hub leads again"] == {"hub": 9}
    assert not found["a stream can be made there"]

    text = (tmp_path / "replication.dot").read_text()
    assert set(re.findall(r'label="([\w-]+)";', text)) == {
        *CLUSTERS,
        "IMPORTER",
        "HUBACC",
        "LEAFACC-spoke-1",
        "LEAFACC-spoke-2",
    }
    assert r'[label="source\n$JS.leafacc.spoke-1.API\nbehind 0"' in text
    assert r'[label="mirror\nJS.test@hub.API\nbehind 0"' in text
    arrows = re.findall(r'^  "([\w-]+/[\w-]+)" -> "([\w-]+/[\w-]+)"', text, re.MULTILINE)
    assert sorted(arrows) == sorted(
        [
            ("hub/cnc", "spoke-1/recv-cnc"),
            ("hub/cnc", "spoke-2/recv-cnc"),
            ("spoke-1/test", "hub/aggregate"),
            ("spoke-2/test", "hub/aggregate"),
            ("spoke-1/test", "spoke-2/backup-test-spoke-1"),
            ("hub/aggregate", "IMPORTER/crossacc"),
            ("LEAFACC-spoke-1/test", "HUBACC/aggregate"),
            ("LEAFACC-spoke-2/test", "HUBACC/aggregate"),
        ]
    )

    accounts = (tmp_path / "accounts.dot").read_text()
    assert set(re.findall(r'^  "(\w+)" \[shape=box', accounts, re.MULTILINE)) == {
        "SYS",
        "TEST",
        "IMPORTER",
        "EXCACC",
        "HUBACC",
        "LEAFACC",
    }
    assert r'"EXCACC" [shape=box, label="EXCACC\nno JetStream\n' in accounts
    assert r'"EXCACC" -> "HUBACC" [label="service $JS.leafacc.>\nstream deliver.leafacc.>"];' in accounts
    assert r'"spoke-2" -> "hub" [dir=both, style=dashed, label="leaf nodes join\nSYS\nTEST\nEXCACC"];' in accounts


async def test_a_domain_that_gives_no_answer_in_time_is_not_taken_for_one_that_is_off(tmp_path: Path) -> None:
    async with (
        EmbeddedNats(ServerSettings(name="hub", store_dir=tmp_path / "hub", domain="hub")) as server,
        await client_of(server) as client,
    ):
        await client.subscribe("$JS.busy.API.INFO")
        assert [domain for domain in ("hub", "busy", "gone") if await is_off(JetStream(client, []), domain)] == ["gone"]

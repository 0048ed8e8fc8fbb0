"""Data replication, as documented: ORDERS and RETURNS gathered in ARCHIVE, mirrored to REPORT, on three servers."""

import json
import re
from pathlib import Path

from aggregator.scenarios import replication
from tests.support.topology.scenarios import found_by


async def test_orders_and_returns_reach_archive_and_report_and_the_map_shows_it(tmp_path: Path) -> None:
    found = await found_by(replication.play, tmp_path)
    assert found["doing it again changes"] == 0
    assert found["each has its kind, storage and servers"] == {
        "ORDERS": ("origin", "memory", 3),
        "RETURNS": ("origin", "memory", 3),
        "ARCHIVE": ("sourced", "file", 3),
        "REPORT": ("mirror", "file", 1),
    }
    assert found["each keeps its messages for"] == {"ORDERS": "1h", "RETURNS": "1h", "ARCHIVE": "ever", "REPORT": "30d"}
    assert found["each listens on"] == {
        "ORDERS": ["ORDERS.*"],
        "RETURNS": ["RETURNS.*"],
        "ARCHIVE": ["ARCHIVE"],
        "REPORT": [],
    }
    active = dict.fromkeys(("ARCHIVE of ORDERS", "ARCHIVE of RETURNS", "REPORT of ARCHIVE"), True)
    assert found["each copy has heard from its origin within 15s, before any message"] == active
    assert found["and all are active"] == active
    assert found["they are replicated"] == {"ORDERS": 100, "RETURNS": 100, "ARCHIVE": 200, "REPORT": 200}
    assert found["the replication report: kind, API, lag, behind, error"] == {
        "ARCHIVE of ORDERS": ("durable source", "$JS.API", 0, 0, ""),
        "ARCHIVE of RETURNS": ("durable source", "$JS.API", 0, 0, ""),
        "REPORT of ARCHIVE": ("mirror", "$JS.API", 0, 0, ""),
    }
    assert found["ARCHIVE has ORDERS whole and in order"]
    assert found["ARCHIVE has RETURNS whole and in order"]
    assert found["REPORT is ARCHIVE, with sequences and times"]
    assert (found["ARCHIVE holds"], found["and REPORT, which has it from there"]) == (201, 201)
    assert not found["what is published to REPORT is stored"]
    assert found["a mirror that listens, too"] == "error 10034"
    assert found["a mirror that has a source, too"] == "error 10031"
    gone = {"ORDERS": 0, "RETURNS": 0, "ARCHIVE": 201, "REPORT": 201}
    assert found["what they held is gone, and its copies are not"] == gone
    assert found["copies go on behind it"] == {"ORDERS": 1, "RETURNS": 0, "ARCHIVE": 202, "REPORT": 202}
    assert found["ORDERS takes writes"]
    assert found["and it comes through"] == ["ORDERS", "ARCHIVE", "REPORT"]

    told = json.loads((tmp_path / "replication.json").read_text())
    assert {row["name"]: (row["storage"], row["replicas"], row["messages"]) for row in told["streams"]} == {
        "ORDERS": ("memory", 3, 100),
        "RETURNS": ("memory", 3, 100),
        "ARCHIVE": ("file", 3, 200),
        "REPORT": ("file", 1, 200),
    }
    assert [(row["kind"], row["api"], row["source"], row["behind"], row["error"]) for row in told["replication"]] == [
        ("durable source", "$JS.API", "ORDERS", 0, ""),
        ("durable source", "$JS.API", "RETURNS", 0, ""),
        ("mirror", "$JS.API", "ARCHIVE", 0, ""),
    ]
    assert all(row["silent_us"] >= 0 and row["lag"] == 0 for row in told["replication"])

    text = (tmp_path / "replication.dot").read_text()
    assert text.startswith("digraph replication {")
    assert re.findall(r'^    "hub/(\w+)" \[shape=(\w+),', text, re.MULTILINE) == [
        ("ORDERS", "box"),
        ("RETURNS", "box"),
        ("ARCHIVE", "box3d"),
        ("REPORT", "folder"),
    ]
    arrows = re.findall(r'^  "hub/(\w+)" -> "hub/(\w+)" \[label="([\w ]+)\\nbehind 0"\];$', text, re.MULTILINE)
    assert arrows == [
        ("ORDERS", "ARCHIVE", "durable source"),
        ("RETURNS", "ARCHIVE", "durable source"),
        ("ARCHIVE", "REPORT", "mirror"),
    ]

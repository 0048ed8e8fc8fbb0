"""Data replication, as documented: ORDERS and RETURNS gathered in ARCHIVE, mirrored to REPORT, on three servers."""

import json
import re
from pathlib import Path

from aggregator.scenarios import replication
from tests.support.scenarios import found_by


async def test_orders_and_returns_reach_archive_and_report_and_the_map_shows_it(tmp_path: Path) -> None:
    found = await found_by(replication.play, tmp_path)
    assert found["doing it again changes"] == 0
    assert found["each has its kind, storage and servers"] == {
        "ORDERS": ("origin", "memory", 3),
        "RETURNS": ("origin", "memory", 3),
        "ARCHIVE": ("sourced", "file", 3),
        "REPORT": ("mirror", "file", 1),
    }
    assert found["they are replicated"] == {"ORDERS": 100, "RETURNS": 100, "ARCHIVE": 200, "REPORT": 200}
    assert found["the replication report: kind, API, lag, behind, error"] == {
        "ARCHIVE of ORDERS": ("durable source", "$JS.API", 0, 0, ""),
        "ARCHIVE of RETURNS": ("durable source", "$JS.API", 0, 0, ""),
        "REPORT of ARCHIVE": ("mirror", "$JS.API", 0, 0, ""),
    }
    assert found["ARCHIVE has ORDERS whole and in order"]
    assert found["ARCHIVE has RETURNS whole and in order"]
    assert found["REPORT is ARCHIVE, with sequences and times"]
    assert (found["ARCHIVE takes them"], found["and REPORT has them from it"]) == (201, 201)
    assert not found["REPORT takes none of its own"]
    assert found["REPORT keeps for days"] == 30
    assert (found["ORDERS holds"], found["ARCHIVE goes on behind it"], found["REPORT holds"]) == (1, 202, 202)

    told = json.loads((tmp_path / "replication.json").read_text())
    assert {row["name"]: (row["storage"], row["replicas"], row["messages"]) for row in told["streams"]} == {
        "ORDERS": ("memory", 3, 1),
        "RETURNS": ("memory", 3, 0),
        "ARCHIVE": ("file", 3, 202),
        "REPORT": ("file", 1, 202),
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

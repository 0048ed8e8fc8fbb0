"""An import is listed once, under the identifier that removes it. No Spark here."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from aggregator.lakehouse.imports.listing import Imported, chosen, imports_in
from aggregator.lakehouse.imports.mapping import ImportRefused
from aggregator.lakehouse.query.engine import open_tables
from aggregator.lakehouse.tables.imports import IMPORT_QUARANTINE, IMPORTS
from shared.instants import HOUR, parse_instant
from tests.support.lakehouse.small_lakehouse import SmallLakehouse

STARTED = datetime(2026, 3, 2, tzinfo=UTC)
START = parse_instant("2026-03-02T00:00:00Z")


def row(import_id: str, file: str, hour: int) -> dict[str, Any]:
    began = STARTED + timedelta(hours=hour)
    return {
        "block": "import:nagios",
        "site": "dub1",
        "sender_id": "a",
        "started_at": began,
        "ended_at": began + timedelta(hours=1),
        "import_id": import_id,
        "file": file,
        "line": hour,
    }


def test_a_file_that_came_under_two_names_is_one_import_and_can_be_chosen(tmp_path: Path) -> None:
    lakehouse = SmallLakehouse(tmp_path)
    lakehouse.append(IMPORTS, [row("ab12", "b.csv", 2), row("ab12", "a.csv", 1), row("ab34", "c.csv", 5)])
    refused = {"block": "import:nagios", "import_id": "ab12", "line": 9}
    lakehouse.append(IMPORT_QUARANTINE, [{"file": "b.csv", **refused}, {"file": "d.csv", **refused}])
    with open_tables(tmp_path) as tables:
        listed = imports_in(tables)
    twice = Imported("ab12", "import:nagios", "a.csv, b.csv, d.csv", 2, 2, 1, START + HOUR, START + 3 * HOUR)
    assert listed == [
        twice,
        Imported("ab34", "import:nagios", "c.csv", 1, 0, 1, START + 5 * HOUR, START + 6 * HOUR),
    ]
    assert chosen(listed, ["ab1"]) == [twice]
    with pytest.raises(ImportRefused, match="2 imports begin with 'ab'"):
        chosen(listed, ["ab"])

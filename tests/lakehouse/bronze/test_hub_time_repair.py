"""Records that an older release wrote under a step of the hub's clock get the hub's time, once."""

from pathlib import Path

from msgspec.structs import replace

from aggregator.archive.hub_clock import ClockStep
from aggregator.lakehouse.bronze import hub_time_repair
from aggregator.lakehouse.derive.coverage import clock_steps
from aggregator.lakehouse.tables.schemas import ADVISORIES, WATERMARKS
from shared.instants import MINUTE, SECOND
from tests.lakehouse.conftest import say
from tests.lakehouse.scripted_archive import START, Archive

STEP = 10 * MINUTE


def row(sequence: int, stamp: int) -> dict[str, object]:
    common = {"region": "eu", "site": "dub1", "block": "nodes", "hub_sequence": sequence, "archived_at": stamp}
    return common | {"occurred_at": START + sequence, "observed_through": START + sequence, "agent": "a"}


def test_what_was_stored_while_the_clock_was_behind_is_dated_anew_and_only_once(tmp_path: Path) -> None:
    stamps = [START + second * SECOND for second in (0, 10, 20)]
    stamps += [stamps[-1] - STEP + second * SECOND for second in (1, 2, 3)]
    stamps += [stamps[2] + second * SECOND for second in (5, 6)]
    records = [((ADVISORIES, WATERMARKS)[place % 2], row(place + 1, stamp)) for place, stamp in enumerate(stamps)]
    archive = Archive(tmp_path / "lake", records)
    archive.take(len(records), stamps[-1])
    assert hub_time_repair.repair(archive.spark, archive.position, say)
    found = [
        (each.hub_sequence, each.archived_at.timestamp() * SECOND)
        for table in (ADVISORIES, WATERMARKS)
        for each in archive.spark.table(table.identifier).select("hub_sequence", "archived_at").collect()
    ]
    assert [at for _, at in sorted(found)] == [*stamps[:3], *[stamps[2]] * 3, *stamps[6:]]
    step = ClockStep(4, stamps[2], stamps[3], 7, stamps[6])
    assert clock_steps.read(archive.spark, archive.position) == [step]
    assert clock_steps.read(archive.spark, replace(archive.position, sequence=5)) == [step.before_its_end]
    assert not hub_time_repair.repair(archive.spark, archive.position, say)

"""Whatever a site's key can write, a rollup ends, counts every message, and refuses what the live fleet refuses."""

from collections import Counter

import pytest

from aggregator.lakehouse import rollup
from aggregator.live.fold.changes import Archived
from aggregator.live.fold.fleet import Fleet
from shared.instants import MINUTE
from shared.subjects import BLOCKS_PER_SITE
from tests.lakehouse.conftest import Lakehouse
from tests.support.lakehouse.hostile import START, honest, hostile
from tests.support.lakehouse.hub import Block

MOST = (1 << 53) - 1
LIVES = 1_100
EXCESS = 6


@pytest.mark.parametrize("is_staged", [True, False], ids=["staged", "read by Spark"])
def test_hostile_records_end_no_rollup_and_are_refused_as_the_live_fleet_refuses_them(
    lakehouse: Lakehouse, monkeypatch: pytest.MonkeyPatch, *, is_staged: bool
) -> None:
    if not is_staged:
        # As for tables in a store that is no file system.
        monkeypatch.setattr(rollup, "place_of", lambda *_: None)
    messages = [each for kind, _ in honest() for each in hostile(kind)]
    good = Block("eu-west", "ams1")
    messages += [good.new("web1", START), good.watermark(START, START + MINUTE)]
    for epoch in range(LIVES):
        # As many times the largest count as do not fit into 64 bits.
        life = Block("eu-west", "dub1", "nodes", epoch=2 + epoch, ordinal=MOST)
        messages.append(life.watermark(START, START + (2 + epoch) * MINUTE))
    for number in range(BLOCKS_PER_SITE + EXCESS):
        block = Block("eu-west", "par1", f"b{number}")
        messages += [block.new("web1", START), block.watermark(START, START + MINUTE)]
    lakehouse.hub.publish(messages)
    result = lakehouse.roll_up()
    counts = result.counts
    assert counts.read == len(messages)
    assert counts.read == counts.written + counts.duplicates + counts.quarantined
    rows = lakehouse.rows("SELECT reason, epoch_us(archived_at) FROM quarantine")
    refused, archived_at = Counter(reason for reason, _ in rows), max(int(str(at)) for _, at in rows)
    fleet = Fleet()
    fleet.fold(
        Archived(sequence, each.subject.encode(), archived_at, each.body)
        for sequence, each in enumerate(messages, start=1)
    )
    assert refused == Counter(fleet.refused)
    assert refused["too_many_blocks"] == 2 * EXCESS
    blocks = lakehouse.rows("SELECT count(DISTINCT block) FROM sender_intervals WHERE site = 'par1'")
    assert blocks == [(BLOCKS_PER_SITE,)]
    assert lakehouse.rows("SELECT state, sender_id FROM sender_intervals WHERE site = 'ams1'") == [("up", "web1")]

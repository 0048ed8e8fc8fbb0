"""What the book makes of a fleet whose sites have several blocks, and whom it has told of what."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from aggregator.live.alerts.incident_book import IncidentBook
from aggregator.live.alerts.incidents import Incident, IncidentCause, IncidentOutcome, IncidentRules
from aggregator.live.fold.view import Source
from shared.instants import LATEST, MINUTE, SECOND
from shared.policy import CancelMaintenance, DeclareMaintenance, Order, Scope
from tests.support.lakehouse.hub import Block, Message, said
from tests.support.live.told import START, Told, in_conditions

SENDERS = [f"web{number}" for number in range(100)]


class Minutes(Told):
    """A fleet that is told of, and looked at, minute by minute."""

    def __init__(self, book: IncidentBook) -> None:
        super().__init__()
        self.book = book
        self.changed: list[Incident] = []

    def tell(self, minute: int, *messages: Message, watched: tuple[Block, ...] = ()) -> None:
        at = START + minute * MINUTE
        self.at(at, *messages, *(block.watermark(START, at) for block in watched))
        self.changed += self.book.look(self.view(at))

    def until(self, minutes: range, *watched: Block) -> None:
        for minute in minutes:
            self.tell(minute, watched=watched)

    def order(self, minute: int, revision: int, order: Order, scope: Scope) -> None:
        at = START + minute * MINUTE
        self.at(at, said(scope, revision, at, order))

    def incident(self, cause: IncidentCause, site: str = "dub1") -> Incident | None:
        """Give the one that is open."""
        found = [each for each in self.book.open.values() if (each.cause, each.site) == (cause, site)]
        return found[0] if found else None


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Minutes]:
    book = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    book.introduce("ops")
    minutes = Minutes(book)
    yield minutes
    minutes.book.close()


@pytest.fixture
def main(fleet: Minutes) -> Block:
    block = Block("eu-west", "dub1", "main")
    fleet.tell(0, *(block.new(name, START) for name in SENDERS))
    return block


@pytest.fixture
def rack9(fleet: Minutes) -> Block:
    block = Block("eu-west", "dub1", "rack9")
    fleet.tell(0, block.new("pdu1", START))
    return block


def test_a_silent_block_hides_no_outage_of_the_sites_other_blocks(fleet: Minutes, main: Block, rack9: Block) -> None:
    fleet.until(range(3), main, rack9)
    fleet.until(range(3, 60), main)
    unknown = fleet.incident(IncidentCause.UNKNOWN)
    assert unknown is not None
    assert (unknown.started_at_us, unknown.node_count, unknown.expected_count) == (START + 2 * MINUTE, 1, 101)
    fleet.tell(60, *(main.stale(name, START + 48 * MINUTE) for name in SENDERS), watched=(main,))
    fleet.until(range(61, 70), main)
    stale = fleet.incident(IncidentCause.STALE)
    assert stale is not None
    assert (stale.started_at_us, stale.node_count, stale.expected_count) == (START + 48 * MINUTE, 100, 100)
    fleet.tell(70, *(main.recovered(name, START + 70 * MINUTE) for name in SENDERS), watched=(main,))
    fleet.until(range(71, 75), main)
    over = [each for each in fleet.changed if each.ended_at_us is not None]
    assert [(each.incident_id, each.outcome) for each in over] == [(stale.incident_id, IncidentOutcome.RECOVERED)]


@pytest.mark.parametrize("said_last", ["stale", "recovered"])
def test_who_is_stale_in_a_block_that_is_unknown_has_not_recovered(
    fleet: Minutes, main: Block, rack9: Block, said_last: str
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS), watched=(main, rack9))
    fleet.until(range(2, 4), main, rack9)
    if said_last == "recovered":
        fleet.tell(4, *(main.recovered(name, START + 4 * MINUTE) for name in SENDERS), watched=(main, rack9))
    fleet.until(range(5, 30), rack9)
    stale = fleet.incident(IncidentCause.STALE)
    assert stale is not None
    assert fleet.incident(IncidentCause.UNKNOWN) is not None
    if said_last == "stale":
        fleet.tell(30, *(main.recovered(name, START + 30 * MINUTE) for name in SENDERS), watched=(main, rack9))
    fleet.until(range(31, 36), main, rack9)
    over = [
        each.incident_id for each in fleet.changed if each.ended_at_us is not None and each.cause is IncidentCause.STALE
    ]
    assert over == [stale.incident_id]


def test_a_block_of_the_same_hosts_that_is_silent_for_good_keeps_no_incident_of_another_open(
    fleet: Minutes, main: Block
) -> None:
    inventory = Block("eu-west", "dub1", "inventory")
    fleet.tell(1, *(inventory.new(name, START) for name in SENDERS), watched=(main, inventory))
    fleet.tell(2, *(main.stale(name, START + MINUTE) for name in SENDERS), watched=(main, inventory))
    fleet.until(range(3, 6), main, inventory)
    stale = fleet.incident(IncidentCause.STALE)
    assert stale is not None
    assert stale.blocks == ("main",)
    fleet.until(range(6, 10), main)
    fleet.tell(10, *(main.recovered(name, START + 10 * MINUTE) for name in SENDERS), watched=(main,))
    fleet.until(range(11, 15), main)
    over = [
        each.incident_id for each in fleet.changed if each.ended_at_us is not None and each.cause is IncidentCause.STALE
    ]
    assert over == [stale.incident_id]


def test_the_hosts_of_an_incident_that_are_stale_in_another_block_of_a_site_that_grew_have_recovered(
    fleet: Minutes, main: Block, rack9: Block
) -> None:
    fleet.tell(1, main.new("pdu1", START), main.stale("pdu1", START), watched=(main, rack9))
    fleet.until(range(2, 9), rack9)
    fleet.tell(9, rack9.stale("pdu1", START + 8 * MINUTE), watched=(rack9,))
    fleet.until(range(10, 12), rack9)
    fleet.tell(12, rack9.recovered("pdu1", START + 12 * MINUTE), watched=(main, rack9))
    fleet.until(range(13, 18), main, rack9)
    assert fleet.incident(IncidentCause.STALE) is None
    assert [each.outcome for each in fleet.changed if each.cause is IncidentCause.STALE][
        -1
    ] is IncidentOutcome.RECOVERED


@pytest.mark.parametrize("is_seen", [True, False])
def test_an_incident_that_was_written_without_its_blocks_ends_where_those_with_stale_senders_are_known(
    fleet: Minutes, main: Block, rack9: Block, tmp_path: Path, is_seen: bool
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS), watched=(main, rack9))
    fleet.until(range(2, 4), main, rack9)
    with closing(sqlite3.connect(tmp_path / "incidents.db")) as file, file:
        file.execute("UPDATE incidents SET body = CAST(json_remove(CAST(body AS TEXT), '$.blocks') AS BLOB)")
    fleet.book.close()
    fleet.book = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    assert [each.blocks for each in fleet.book.open.values()] == [()]
    if is_seen:
        fleet.tell(4, *(main.recovered(name, START + 4 * MINUTE) for name in SENDERS), watched=(main,))
    fleet.until(range(5, 12), *([main] if is_seen else [rack9]))
    assert (fleet.incident(IncidentCause.STALE) is None) == is_seen


def test_a_block_that_is_known_again_adds_nobody_to_the_incident_of_another(
    fleet: Minutes, main: Block, rack9: Block
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS[:4]), rack9.new("pdu2", START), watched=(main, rack9))
    fleet.until(range(2, 9), rack9)
    fleet.tell(9, rack9.stale("pdu1", START + 8 * MINUTE), watched=(rack9,))
    fleet.until(range(10, 12), rack9)
    stale = fleet.incident(IncidentCause.STALE)
    assert stale is not None
    assert (stale.node_count, stale.expected_count, stale.nodes) == (1, 2, ("pdu1",))
    fleet.tell(12, *(main.recovered(name, START + 12 * MINUTE) for name in SENDERS[2:4]), watched=(main, rack9))
    fleet.until(range(13, 20), main, rack9)
    assert fleet.incident(IncidentCause.STALE) is not None
    fleet.tell(20, rack9.recovered("pdu1", START + 20 * MINUTE), watched=(main, rack9))
    fleet.until(range(21, 25), main, rack9)
    over = [each for each in fleet.changed if each.ended_at_us is not None and each.cause is IncidentCause.STALE]
    assert [(each.incident_id, each.outcome, each.most_count) for each in over] == [
        (stale.incident_id, IncidentOutcome.RECOVERED, 1)
    ]


def test_a_region_is_lost_by_sites_of_which_no_block_is_known(fleet: Minutes, main: Block, rack9: Block) -> None:
    others = Block("eu-west", "ber1", "main"), Block("eu-west", "ber1", "rack9")
    fleet.tell(1, *(block.new("db1", START) for block in others), watched=(main, rack9, *others))
    fleet.until(range(2, 20), main, others[0])
    assert fleet.incident(IncidentCause.UNKNOWN, "") is None
    assert fleet.incident(IncidentCause.UNKNOWN, "ber1") is not None
    fleet.until(range(20, 40), main)
    assert fleet.incident(IncidentCause.UNKNOWN, "") is None
    fleet.until(range(40, 50))
    region = fleet.incident(IncidentCause.UNKNOWN, "")
    assert region is not None
    # Since its second site is known no more: since the last word of that one's last block.
    assert (region.started_at_us, region.node_count) == (START + 39 * MINUTE, 2)


def test_a_block_that_is_silent_in_maintenance_is_no_incident_of_its_site(
    fleet: Minutes, main: Block, rack9: Block
) -> None:
    fleet.tell(1, watched=(main, rack9))
    window = DeclareMaintenance(START + MINUTE, START + 20 * MINUTE, "new switch")
    fleet.order(2, 1, window, Scope("eu-west", "dub1", "rack9"))
    fleet.until(range(2, 20), main)
    assert fleet.book.open == {}
    fleet.until(range(20, 22), main)
    assert fleet.incident(IncidentCause.UNKNOWN) is not None


def test_a_block_that_is_lost_and_found_again_and_again_hides_no_outage_of_the_others(
    fleet: Minutes, main: Block, rack9: Block
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS), watched=(main,))
    for seconds in range(0, 180, 20):
        # What went before was seen by nobody.
        at = START + MINUTE + seconds * SECOND
        fleet.at(at, main.watermark(START, at), rack9.watermark(at - SECOND, at))
        fleet.book.look(fleet.view(at))
    assert fleet.incident(IncidentCause.STALE) is not None


def told(book: IncidentBook) -> list[tuple[str, str]]:
    """Take what a receiver is told: of which incident, and what happened."""
    news = book.pending("ops")
    book.acknowledge("ops", news)
    return [(each.incident.incident_id, each.event) for each in news]


@pytest.mark.parametrize("scope", [Scope("eu-west"), Scope("eu-west", "dub1")], ids=["region", "site"])
def test_what_is_opened_again_and_is_still_unknown_is_told_anew(fleet: Minutes, main: Block, scope: Scope) -> None:
    other = Block("eu-west", "ber1", "main")
    fleet.tell(1, other.new("db1", START), watched=(main, other))
    # The region is lost with its second site.
    watched = (other,) if scope.site else ()
    fleet.until(range(2, 9), *watched)
    ((first, _),) = told(fleet.book)
    fleet.order(9, 1, DeclareMaintenance(START + 9 * MINUTE, LATEST, "torn down"), scope)
    fleet.until(range(9, 15), *watched)
    assert told(fleet.book) == [(first, "ended")]
    fleet.order(15, 2, CancelMaintenance(1), scope)
    fleet.until(range(15, 20), *watched)
    ((second, event),) = told(fleet.book)
    assert (second != first, event) == (True, "began")
    (incident,) = fleet.book.open.values()
    assert incident.started_at_us == START + 15 * MINUTE


def test_an_incident_that_goes_on_under_its_old_id_is_told_anew_and_once_across_a_restart(
    fleet: Minutes, main: Block, tmp_path: Path
) -> None:
    fleet.until(range(2), main)
    fleet.until(range(2, 9))
    ((first, _),) = told(fleet.book)
    (incident,) = fleet.book.open.values()
    over = msgspec.structs.replace(incident, ended_at_us=START + 9 * MINUTE, outcome=IncidentOutcome.RETIRED)
    fleet.book.save([over])
    assert told(fleet.book) == [(first, "ended")]
    fleet.book.save([incident])
    assert told(fleet.book) == [(first, "began")]
    again = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    again.save([msgspec.structs.replace(incident, node_count=99)])
    assert told(again) == []
    again.save([over])
    assert told(again) == [(first, "ended")]
    again.close()


def test_who_was_told_of_an_end_that_was_taken_back_meanwhile_is_told_of_the_next(fleet: Minutes, main: Block) -> None:
    fleet.until(range(2), main)
    fleet.until(range(2, 9))
    ((first, _),) = told(fleet.book)
    (incident,) = fleet.book.open.values()
    ends = [
        msgspec.structs.replace(incident, ended_at_us=START + minute * MINUTE, outcome=IncidentOutcome.RECOVERED)
        for minute in (9, 12, 15)
    ]
    fleet.book.save(ends[:1])
    for end in ends[1:]:
        news = fleet.book.pending("ops")
        assert [each.event for each in news] == ["ended"]
        # While that is told, the incident goes on after all, the second time to end anew.
        fleet.book.save([incident])
        if end is ends[-1]:
            fleet.book.save([end])
        fleet.book.acknowledge("ops", news)
        expected = [(first, "began"), (first, "ended")] if end is ends[-1] else [(first, "began")]
        assert told(fleet.book) == expected
        fleet.book.save([end])
    assert told(fleet.book) == []


def test_a_site_whose_blocks_are_late_one_by_one_is_a_matter_of_its_region_that_is_cut(
    fleet: Minutes, main: Block, rack9: Block
) -> None:
    fleet.until(range(6), main, rack9)
    fleet.tell(6, watched=(rack9,))
    for seconds in range(0, 300, 10):
        at = START + 6 * MINUTE + seconds * SECOND
        fleet.changed += fleet.book.look(fleet.view(at, eu_west=Source(error="no such stream")))
    assert {(each.cause, each.site, each.reason) for each in fleet.changed} == {
        (IncidentCause.UNKNOWN, "", "region_behind")
    }


def test_who_was_told_of_fewer_is_told_of_growth_once_and_of_the_end_alone_when_it_is_over(
    fleet: Minutes, main: Block, tmp_path: Path
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS[:10]), watched=(main,))
    fleet.until(range(2, 4), main)
    (began,) = fleet.book.pending("ops")
    fleet.tell(4, *(main.stale(name, START + 3 * MINUTE) for name in SENDERS[10:30]), watched=(main,))
    fleet.until(range(5, 8), main)
    # It grew while that was on its way.
    fleet.book.acknowledge("ops", [began])
    (grew,) = fleet.book.pending("ops")
    assert (grew.event, grew.incident.incident_id) == ("grew", began.incident.incident_id)
    assert (grew.incident.node_count, grew.incident.growth_count) == (30, 1)
    fleet.book.acknowledge("ops", [grew])
    fleet.book.close()
    fleet.book = IncidentBook(tmp_path / "incidents.db", IncidentRules())
    # Who comes new is told how large it is by now.
    fleet.book.introduce("late")
    (first,) = fleet.book.pending("late")
    assert (first.event, first.incident.node_count) == ("began", 30)
    fleet.book.acknowledge("late", [first])
    assert fleet.book.pending("late") == fleet.book.pending("ops") == []
    fleet.tell(8, *(main.stale(name, START + 7 * MINUTE) for name in SENDERS[30:]), watched=(main,))
    fleet.until(range(9, 12), main)
    assert [(each.event, each.incident.node_count) for each in fleet.book.pending("ops")] == [("grew", 100)]
    wider = msgspec.structs.replace(fleet.book.pending("ops")[0].incident, within="2")
    fleet.book.save([wider])
    assert fleet.book.pending("ops") == []
    fleet.book.save([msgspec.structs.replace(wider, within="")])
    fleet.tell(12, *(main.recovered(name, START + 12 * MINUTE) for name in SENDERS), watched=(main,))
    fleet.until(range(13, 17), main)
    assert told(fleet.book) == [(began.incident.incident_id, "ended")]


def test_a_receiver_that_is_told_late_of_a_beginning_is_not_told_that_it_grew_to_that(
    fleet: Minutes, main: Block
) -> None:
    fleet.tell(1, *(main.stale(name, START) for name in SENDERS[:10]), watched=(main,))
    fleet.until(range(2, 4), main)
    fleet.tell(4, *(main.stale(name, START + 3 * MINUTE) for name in SENDERS[10:30]), watched=(main,))
    (began,) = fleet.book.pending("ops")
    assert (began.event, began.incident.node_count) == ("began", 30)
    fleet.book.acknowledge("ops", [began])
    fleet.until(range(5, 9), main)
    incident = fleet.incident(IncidentCause.STALE)
    assert incident is not None
    assert (incident.growth_count, incident.told_count, fleet.book.pending("ops")) == (1, 30, [])
    fleet.tell(9, *(main.stale(name, START + 8 * MINUTE) for name in SENDERS[30:]), watched=(main,))
    fleet.until(range(10, 14), main)
    assert [(each.event, each.incident.node_count) for each in fleet.book.pending("ops")] == [("grew", 100)]


def test_notices_of_an_older_release_are_kept(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "incidents.db")) as database:
        database.execute(
            "CREATE TABLE notices (receiver TEXT NOT NULL, incident_id TEXT NOT NULL, ended INTEGER NOT NULL,"
            " PRIMARY KEY (receiver, incident_id, ended)) WITHOUT ROWID"
        )
        database.execute("INSERT INTO notices VALUES ('ops', '1', 0)")
        database.commit()
    IncidentBook(tmp_path / "incidents.db", IncidentRules()).close()
    with closing(sqlite3.connect(tmp_path / "incidents.db")) as database:
        assert database.execute("SELECT * FROM notices").fetchall() == [("ops", "1", 0, 0)]


def test_a_pair_of_which_one_is_alone_is_one_incident_however_many_blocks_say_so(fleet: Minutes) -> None:
    blocks = [Block("eu-west", "dub1", name, agent="dub1-b") for name in ("main", "rack9", "inventory")]
    fleet.tell(0, *(block.new("web1", START) for block in blocks), watched=tuple(blocks))
    # Each says so a little later than the one before, and sooner that it is over.
    for minute in range(1, 14):
        at = START + minute * MINUTE
        for number, block in enumerate(blocks):
            names = ("pair_alone",) if 1 + number <= minute < 9 - number else ()
            fleet.at(at + number, in_conditions(block.watermark(START, at), *names))
        fleet.changed += fleet.book.look(fleet.view(at + len(blocks)))
    news = fleet.book.pending("ops")
    assert [(each.event, each.incident.cause, each.incident.nodes) for each in news] == [
        ("began", IncidentCause.ALONE, ("dub1-b",)), ("ended", IncidentCause.ALONE, ("dub1-b",))
    ]  # fmt: skip
    assert {(each.incident_id, each.started_at_us) for each in fleet.changed} == {
        (news[0].incident.incident_id, START + MINUTE)
    }

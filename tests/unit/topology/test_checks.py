"""What is found is graded: errors, silence, backlog, retention that reaches it, replicas, watermarks, holes."""

import msgspec
import pytest

from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import (
    ApiFailure,
    External,
    Found,
    LostMessages,
    Replica,
    Replication,
    StreamCluster,
    StreamState,
)
from aggregator.topology.report.checks import Limits, check, summary
from aggregator.topology.report.evidence import BlockEvidence, HubFacts, Waiting
from aggregator.topology.report.findings import CheckStatus
from aggregator.topology.report.graph import replication_graph
from aggregator.topology.report.missing_advisories import looks_whole, missing_of_all, missing_ranges
from aggregator.topology.report.tables import report
from aggregator.topology.report.text import format_report
from shared.identifiers import BlockId
from shared.instants import DAY, HOUR, MINUTE, SECOND
from tests.support.topology.topologies import EU, HUB_PLACE, US, as_applied, topology, with_state

NOW = 1_800_000_000 * SECOND
WANTED = desired(topology())
COPY = ("hub", "ARCHIVE", EU.api, "FLEET", ())
HEALTHY = Waiting(age=SECOND, max_age=14 * DAY, first_sequence=1, share=0.01, fullness=0.1)


def found_well(*, silent: int = SECOND, error: str = "") -> Found:
    """Answer as servers do on which all is well but what is asked for."""
    found = as_applied(WANTED)
    with_state(found, EU, "FLEET", StreamState(messages=50, last_seq=50))
    active = silent * 1000 if silent >= 0 else -1
    failure = ApiFailure(error) if error else None
    sources = [
        Replication("FLEET", External(EU.api), active=active, seq=47, error=failure),
        Replication("FLEET", External(US.api), active=10**9),
    ]
    with_state(found, HUB_PLACE, "ARCHIVE", StreamState(messages=47, last_seq=47), *sources)
    mirror = found.streams[HUB_PLACE, "REPORT"]
    found.streams[HUB_PLACE, "REPORT"] = msgspec.structs.replace(
        mirror, state=StreamState(messages=47, last_seq=47), mirror=Replication("ARCHIVE", active=10**9)
    )
    return found


def judged(found: Found, evidence: HubFacts | None = None, extra: str = "") -> list[tuple[CheckStatus, str]]:
    evidence = evidence or HubFacts(now=NOW)
    return [(each.severity, each.text) for each in check(topology(extra), WANTED, found, evidence, Limits())]


def test_nothing_is_said_where_all_is_well() -> None:
    evidence = HubFacts(
        {COPY: HEALTHY}, (BlockEvidence("eu-west", "dub1", "nodes", NOW - 10 * SECOND),), NOW, archive_read=True
    )
    assert judged(found_well(), evidence) == []
    line = summary([], report(WANTED, found_well()), evidence)
    assert line == "OK - 4 streams, 3 copies, at most 3 messages behind, 1 block watched"


@pytest.mark.parametrize(
    ("silent", "severity"),
    [
        (15 * SECOND, None),
        (16 * SECOND, CheckStatus.WARNING),
        (61 * SECOND, CheckStatus.CRITICAL),
        (-1, CheckStatus.CRITICAL),
    ],
)
def test_silence_of_an_origin_is_graded(silent: int, severity: CheckStatus | None) -> None:
    assert [each for each, _ in judged(found_well(silent=silent))] == ([severity] if severity else [])


def test_an_error_is_critical_with_the_servers_words() -> None:
    assert judged(found_well(error="stream not found")) == [
        (CheckStatus.CRITICAL, "ARCHIVE cannot copy FLEET of eu-west: stream not found")
    ]


@pytest.mark.parametrize(
    ("waiting", "expected"),
    [
        ({"age": MINUTE}, []),
        (
            {"age": 2 * MINUTE},
            [(CheckStatus.WARNING, "ARCHIVE is 3 messages behind FLEET of eu-west, the oldest waits for 2m")],
        ),
        (
            {"age": 5 * HOUR, "max_age": 8 * HOUR},
            [
                (CheckStatus.CRITICAL, "ARCHIVE is 3 messages behind FLEET of eu-west, the oldest waits for 5h"),
                (CheckStatus.WARNING, "FLEET of eu-west lets go of what ARCHIVE lacks in 3h"),
            ],
        ),
        ({"first_sequence": 49}, [(CheckStatus.CRITICAL, "FLEET of eu-west has let go of up to 1 that ARCHIVE lacks")]),
        (
            {"share": 0.9, "fullness": 0.95},
            [(CheckStatus.CRITICAL, "FLEET of eu-west lets go of what ARCHIVE lacks, since it is full")],
        ),
        ({"share": 0.9, "fullness": 0.5}, []),
        ({"age": MINUTE, "max_age": 0}, []),
    ],
)
def test_what_a_copy_lacks_is_graded_by_how_long_it_waits_and_by_retention(
    waiting: dict[str, float], expected: list[tuple[CheckStatus, str]]
) -> None:
    evidence = HubFacts({COPY: msgspec.structs.replace(HEALTHY, **waiting)}, now=NOW)
    assert judged(found_well(), evidence) == expected


def test_streams_and_consumers_that_are_missing_and_places_that_are_away_are_critical() -> None:
    found = found_well()
    del found.streams[HUB_PLACE, "REPORT"]
    del found.consumers[EU, "FLEET", "muster-archive"]
    found.unreachable[US] = "nobody answers"
    assert judged(found) == [
        (CheckStatus.CRITICAL, "nobody answers"),
        (
            CheckStatus.CRITICAL,
            "FLEET lacks the consumer muster-archive, ARCHIVE of hub takes nothing from it: apply makes it again",
        ),
        (CheckStatus.CRITICAL, "REPORT is missing: apply creates it"),
    ]


def test_a_stream_that_is_not_available_is_critical_and_says_nothing_of_the_others_of_its_place() -> None:
    found = found_well()
    del found.streams[EU, "FLEET"], found.consumers[EU, "FLEET", "muster-archive"]
    found.silent[EU, "FLEET", ""] = "no answer within 5 s"
    assert judged(found) == [(CheckStatus.CRITICAL, "FLEET is not available: no answer within 5 s")]
    shown = report(WANTED, found)
    assert [(row.place, row.error.partition(":")[0]) for row in shown.streams] == [
        ("eu-west", "is not available"),
        ("us-east", ""),
        ("hub", ""),
        ("hub", ""),
    ]
    assert [row.behind for row in shown.replication] == [None, 0, 0]
    # Nobody knows that a consumer is missing where part of its stream's answers did not come.
    there = found_well()
    del there.consumers[EU, "FLEET", "muster-archive"]
    there.silent[EU, "FLEET", ""] = "no answer within 5 s"
    assert judged(there) == judged(found)


def test_a_consumer_that_is_not_available_is_told_as_itself() -> None:
    found = found_well()
    del found.consumers[EU, "FLEET", "muster-archive"]
    found.silent[EU, "FLEET", "muster-archive"] = "no answer within 5 s"
    said = "FLEET's consumer muster-archive is not available: no answer within 5 s"
    assert judged(found) == [(CheckStatus.CRITICAL, said)]
    shown = report(WANTED, found)
    assert not shown.complete
    assert format_report(shown).splitlines()[-1] == f"eu-west: {said}"
    assert not any(row.error for row in shown.streams)


def test_what_is_wrong_with_several_places_alike_is_said_once() -> None:
    found = found_well()
    for place in (EU, US):
        found.unreachable[place] = "cannot connect"
    line = summary(check(topology(), WANTED, found, HubFacts(now=NOW), Limits()), report(WANTED, found), HubFacts())
    assert line == "CRITICAL - eu-west, us-east: cannot connect"
    assert format_report(report(WANTED, found)).splitlines()[-1] == "eu-west, us-east: cannot connect"


@pytest.mark.parametrize(
    ("level", "state", "shown"),
    [
        (3, StreamState(messages=47, last_seq=47), (None, 2)),
        (3, StreamState(messages=0, first_seq=48, last_seq=47), (None, 2)),
        (3, StreamState(), (0, 50)),
        (5, StreamState(messages=47, last_seq=47), (0, 50)),
    ],
    ids=["2.14", "2.14, all of it expired", "2.14, nothing has come", "2.15"],
)
def test_of_a_server_that_does_not_say_how_far_a_plain_source_has_come_its_lag_is_shown(
    level: int, state: StreamState, shown: tuple[int | None, int]
) -> None:
    """Servers before 2.15 report no sequence: everything would seem to be lacking, for ever."""
    wanted = desired(topology('[archive]\nsourcing = "plain"\n'))
    found = as_applied(wanted)
    found.levels[HUB_PLACE] = level
    with_state(found, EU, "FLEET", StreamState(messages=50, last_seq=50))
    source = Replication("FLEET", External(EU.api), active=10**9, lag=2)
    with_state(found, HUB_PLACE, "ARCHIVE", state, source)
    row = report(wanted, found).replication[0]
    assert (row.taken, row.behind) == shown


def test_a_copy_that_is_set_aside_is_critical_and_nothing_is_said_of_how_far_it_has_come() -> None:
    """As an apply leaves it that was killed between setting a source aside and taking it up again."""
    found = found_well()
    for name, config in (("ARCHIVE", {"sources": []}), ("REPORT", {"mirror": None})):
        current = found.streams[HUB_PLACE, name]
        found.streams[HUB_PLACE, name] = msgspec.structs.replace(current, config=current.config | config, sources=[])
    found.streams[HUB_PLACE, "REPORT"] = msgspec.structs.replace(found.streams[HUB_PLACE, "REPORT"], mirror=None)
    said = [
        "ARCHIVE does not copy FLEET of eu-west: apply takes it up",
        "ARCHIVE does not copy FLEET of us-east: apply takes it up",
        "REPORT does not copy ARCHIVE of hub: apply takes it up",
    ]
    assert judged(found, HubFacts({COPY: HEALTHY}, now=NOW)) == [(CheckStatus.CRITICAL, text) for text in said]
    shown = report(WANTED, found)
    assert [(row.kind, row.missing, row.behind) for row in shown.replication] == [
        ("source", True, None),
        ("source", True, None),
        ("mirror", True, None),
    ]
    assert format_report(shown).splitlines()[-3:] == [f"hub: {text}" for text in said]
    assert not shown.complete
    assert replication_graph(shown).count('missing", style=dashed') == 3


def test_replicas_leaders_and_lost_messages_are_looked_at() -> None:
    found = found_well()
    away = StreamCluster(
        "c1", "", [Replica("n1", current=True), Replica("n2"), Replica("n3", current=True, offline=True)]
    )
    fleet = found.streams[EU, "FLEET"]
    state = msgspec.structs.replace(fleet.state, lost=LostMessages([3, 4]))
    found.streams[EU, "FLEET"] = msgspec.structs.replace(fleet, cluster=away, state=state)
    assert judged(found) == [
        (CheckStatus.CRITICAL, "FLEET has no leader: it takes no messages"),
        (CheckStatus.CRITICAL, "FLEET has lost 2 messages from its store"),
        (CheckStatus.WARNING, "FLEET has replicas behind or away: n2, n3"),
    ]


def test_where_sites_are_named_these_are_waited_for_and_no_others() -> None:
    blocks = (
        BlockEvidence("eu-west", "dub1", "nodes", NOW - 2 * MINUTE),
        BlockEvidence("eu-west", "closed", "nodes", NOW - 9 * DAY),
        BlockEvidence("us-east", "nyc1", "nodes", NOW - HOUR),
    )
    sites = '[[site]]\nname = "dub1"\nregion = "eu-west"\n[[site]]\nname = "dub2"\nregion = "eu-west"\n'
    assert judged(found_well(), HubFacts({}, blocks, NOW, archive_read=True), sites) == [
        (CheckStatus.CRITICAL, "no watermark of dub2 has ever come"),
        (CheckStatus.CRITICAL, "the last watermark of nyc1, block nodes vouches up to 1h ago"),
        (CheckStatus.WARNING, "the last watermark of dub1, block nodes vouches up to 2m ago"),
    ]


@pytest.mark.parametrize(("waits", "warned"), [(0, False), (MINUTE, False), (2 * MINUTE, True)])
def test_a_block_that_has_not_taken_the_policy_for_a_while_is_worth_a_warning(waits: int, warned: bool) -> None:
    block = BlockEvidence("eu-west", "dub1", "nodes", NOW, policy_waits_since=NOW - waits if waits else 0)
    text = "dub1, block nodes has not taken what the hub's policy said 2m ago: muster-aggregator policy show"
    expected = [(CheckStatus.WARNING, text)] if warned else []
    assert judged(found_well(), HubFacts(blocks=(block,), now=NOW, archive_read=True)) == expected


def test_records_that_do_not_count_are_named_by_their_block_and_site() -> None:
    evidence = HubFacts(
        blocks=(BlockEvidence("eu-west", "dub1", "nodes", NOW, refused_count=3),),
        now=NOW,
        archive_read=True,
        unreadable=(BlockId("eu-west", "dub1", "others"),),
        crowded={("eu-west", "dub1"): 1_000},
    )
    assert judged(found_well(), evidence) == [
        (CheckStatus.CRITICAL, "dub1 has 1,000 stream blocks, and 64 count"),
        (CheckStatus.WARNING, "the last watermark of dub1, block others, cannot be read, and is quarantined"),
        (CheckStatus.WARNING, "3 records of dub1, block nodes cannot be read, and are quarantined"),
    ]
    more = msgspec.structs.replace(topology(), blocks_per_site=999)
    first = check(more, WANTED, found_well(), evidence, Limits())[0]
    assert first.text == "dub1 has 1,000 stream blocks, and 999 count"


def test_missing_advisories_are_named_by_their_ordinals() -> None:
    missing = ((2, 2), (5, 9), (11, 11), (13, 13))
    block = BlockEvidence("eu-west", "dub1", "nodes", NOW, missing)
    ((severity, text),) = judged(found_well(), HubFacts({}, (block,), NOW, archive_read=True))
    assert severity is CheckStatus.CRITICAL
    assert text.startswith("the archive lacks 8 advisories of dub1, block nodes (2, 5..9, 11, ...)")


@pytest.mark.parametrize(
    ("seen", "first", "last", "missing"),
    [
        (set(), 1, 0, ()),
        (set(), 1, 3, ((1, 3),)),
        ({1, 2, 3}, 1, 3, ()),
        ({2, 5, 6}, 1, 8, ((1, 1), (3, 4), (7, 8))),
        ({1, 2, 3, 4}, 1, 2, ()),
    ],
)
def test_holes_are_ranges(seen: set[int], first: int, last: int, missing: tuple[tuple[int, int], ...]) -> None:
    assert missing_ranges(seen, first, last) == missing


def test_what_the_archive_let_go_of_itself_is_not_missing() -> None:
    archive = found_well().streams[HUB_PLACE, "ARCHIVE"]
    whole = msgspec.structs.replace(archive, state=StreamState(first_seq=1))
    shortened = msgspec.structs.replace(archive, state=StreamState(first_seq=100))
    assert missing_of_all({3, 5}, 6, whole) == ((1, 2), (4, 4), (6, 6))
    assert missing_of_all({3, 5}, 6, shortened) == ((4, 4), (6, 6))
    assert missing_of_all(set(), 6, shortened) == ()


@pytest.mark.parametrize(
    ("seen", "issued", "older", "oldest", "is_whole"),
    [
        ({4, 5, 6}, 6, 3, 1, True),
        ({4, 6}, 6, 3, 1, False),
        ({4, 5}, 6, 3, 1, False),
        ({9}, 9, 7, 1, False),
        (set(), 10, 9, 1, False),
        (set(), 10, 10, 1, True),
        ({150, 151}, 151, 100, 1, False),
        ({4, 5, 6}, 6, 5, 1, False),
        ({4, 5, 6}, 6, 1, 3, True),
        ({4, 5, 6}, 6, 1, 2, False),
        ({7}, 6, 6, 1, True),
    ],
)
def test_what_came_lately_is_whole_where_as_many_are_older_as_come_before_it(
    seen: set[int], issued: int, older: int, oldest: int, is_whole: bool
) -> None:
    assert looks_whole(seen, issued, older, oldest) is is_whole

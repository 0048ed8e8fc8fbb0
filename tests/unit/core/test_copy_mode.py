"""A copier copies everything that has a subject to go to, counts the rest, and keeps account of its stream's past."""

import msgspec
import pytest

from edge_agent.core.block_state import BlockState
from edge_agent.core.copy_mode import SUBJECT_LIMIT, Copier, CopyEmitter, CopyIntake, CopySubject
from edge_agent.core.decisions import BlindCause, EpochBegun
from edge_agent.core.observation import SourceMessage
from edge_agent.core.policy import Policy
from edge_agent.core.records import Lane, OutboxRow, WatermarkContext
from shared.identifiers import BlockId, Incarnation, SourcePosition, message_id
from shared.instants import DAY, MINUTE, SECOND

START = 1_700_000_000 * SECOND
PAST = Incarnation(START - DAY, 1_700_000_000_000)
LATER_PAST = Incarnation(START - DAY, 1_700_000_000_001)
POLICY = Policy(sample_interval=MINUTE, stale_after=MINUTE, retire_after=DAY, blind_after=10 * SECOND)
BLOCK = BlockId("eu-west", "dub1", "all")
IDENTITY = ("eu-west", "dub1", "all", "copy", PAST.created_at)
BELOW = "fleet.eu-west.dub1.all.copy"


def message(sequence: int, at: int, headers: dict[str, str] | None = None, subject: str = "a.b") -> SourceMessage:
    return SourceMessage(subject, b"body", headers, sequence, START + at * SECOND)


class CopySite:
    """A copier that commits after every message."""

    def __init__(self, target: CopySubject) -> None:
        self.copier = Copier(BlockState(SourcePosition("EVENTS", PAST, 0), POLICY, mode="copy"))
        self._intake = CopyIntake(target)

    @property
    def state(self) -> BlockState:
        return self.copier.state

    def reads(self, *messages: SourceMessage, too_old: bool = False) -> list[OutboxRow]:
        draft = self.copier.draft()
        for each in messages:
            assert self._intake.give(draft, each, too_old=too_old)
        rows = CopyEmitter(BLOCK, bytes(32)).rows(draft.decisions, draft.state(), WatermarkContext({}, {}, {}))
        self.copier.adopt(draft)
        return rows


@pytest.fixture
def site() -> CopySite:
    return CopySite(CopySubject(BELOW))


@pytest.mark.parametrize(
    ("prefix", "remove", "subject", "target"),
    [
        ("up", "", "a.b", "up.a.b"),
        ("FLEET_NODES", "NODE_DATA", "NODE_DATA.host.example.net", "FLEET_NODES.host.example.net"),
        ("up", "NODE_DATA.", "NODE_DATA.host", "up.host"),
        ("up", "b", "a.b.c.b.d", "up.a.c.d"),
        ("up", "b.c", "a.b.c.d", "up.a.d"),
        ("up.up", "up.", "up.a", "up.up.a"),
        ("up", "a.b", "a.b", None),
        ("up", "b", "a.b", None),
        ("up", "", "a" * (SUBJECT_LIMIT - 3), "up." + "a" * (SUBJECT_LIMIT - 3)),
        ("up", "", "a" * (SUBJECT_LIMIT - 2), None),
        ("up", "", "é" * (SUBJECT_LIMIT // 2 - 2), "up." + "é" * (SUBJECT_LIMIT // 2 - 2)),
        ("up", "", "é" * (SUBJECT_LIMIT // 2 - 1), None),
        ("up", "", "half.\ud83d", None),
    ],
)
def test_copy_goes_below_the_prefix_less_what_is_removed(
    prefix: str, remove: str, subject: str, target: str | None
) -> None:
    assert CopySubject(prefix, remove).of(subject) == target


def test_copy_is_the_message_and_where_it_comes_from(site: CopySite) -> None:
    headers = {"X-Own": "kept", "Nats-Msg-Id": "theirs", "Nats-Expected-Stream": "R", "Muster-Origin": "theirs"}
    assert site.reads(message(7, 1, headers)) == [
        OutboxRow(
            Lane.COPIES,
            "all",
            f"{BELOW}.a.b",
            {
                "X-Own": "kept",
                "Muster-Origin": f"eu-west.dub1.all.{PAST}.7",
                "Choria-SR-Source": f"EVENTS 7 dub1 all {(START + SECOND) // 1000}",
                "Muster-Reason": "copy",
                "Nats-Msg-Id": message_id(bytes(32), *IDENTITY, 7, START + SECOND),
            },
            b"body",
            headers_size=len("X-Own: kept\r\n") + len("Muster-Origin: theirs\r\n"),
        )
    ]


def test_one_batch_is_one_state(site: CopySite) -> None:
    rows = site.reads(*(message(number, number) for number in range(1, 101)))
    assert len(rows) == 100
    assert site.state == BlockState(
        position=SourcePosition("EVENTS", PAST, 100, START + 100 * SECOND),
        policy=POLICY,
        observed_since=START + SECOND,
        observed_through=START + 100 * SECOND,
        source_clock=START + 100 * SECOND,
        mode="copy",
        counters={"forwarded": {"copy": 100}},
    )


def test_counts_add_up_over_commits(site: CopySite) -> None:
    site.reads(message(1, 1), message(2, 2))
    site.reads(message(3, 3), too_old=True)
    site.reads(message(4, 4, subject="a" * SUBJECT_LIMIT))
    site.reads(message(5, 5))
    assert site.state.counters == {
        "forwarded": {"copy": 3},
        "withheld": {"max_age": 1},
        "rejected": {"subject_not_usable": 1},
    }


def test_time_never_runs_back_but_a_step_back_shows(site: CopySite) -> None:
    site.reads(message(1, 30), message(2, 25))
    assert site.state.observed_through == START + 30 * SECOND
    draft = site.copier.draft()
    assert [draft.steps_back(START + at * SECOND) for at in (19, 20)] == [True, False]


def test_what_only_advances_time_needs_no_commit(site: CopySite) -> None:
    site.reads(message(1, 1))
    draft = site.copier.draft()
    assert draft.prove(START + 5 * SECOND, 9)
    assert draft.changes_nothing
    site.copier.adopt(draft)
    assert (site.state.observed_through, site.state.examined_sequence) == (START + 5 * SECOND, 9)


def test_changed_thresholds_are_committed(site: CopySite) -> None:
    changed = Policy(sample_interval=MINUTE, stale_after=MINUTE, retire_after=DAY, blind_after=SECOND, max_age=DAY)
    draft = site.copier.draft()
    assert draft.change_policy(changed)
    assert not draft.changes_nothing
    assert draft.state().policy == changed


def test_gap_ends_what_was_read_without_one_and_is_counted(site: CopySite) -> None:
    site.reads(message(1, 1))
    draft = site.copier.draft()
    draft.lose(BlindCause.GAP)
    draft.lose(BlindCause.GAP)
    site.copier.adopt(draft)
    site.reads(message(9, 60))
    assert (site.state.observed_since, site.state.pending_blind) == (START + 60 * SECOND, None)
    assert site.state.counters == {"blind": {"gap": 1}, "forwarded": {"copy": 2}}


def test_changed_past_begins_an_epoch_and_copies_are_named_by_it(site: CopySite) -> None:
    site.reads(message(5, 50))
    draft = site.copier.draft()
    assert draft.begin_epoch(LATER_PAST, 2)
    assert draft.recorded == [EpochBegun(LATER_PAST, START + 50 * SECOND, 5)]
    site.copier.adopt(draft)
    assert site.state.position == SourcePosition("EVENTS", LATER_PAST, 2)
    assert site.state.last_stored_at == START + 50 * SECOND
    (row,) = site.reads(message(3, 10))
    assert row.headers["Muster-Origin"] == f"eu-west.dub1.all.{LATER_PAST}.3"
    assert not site.copier.draft().steps_back(START + 5 * SECOND)


def test_id_of_a_copy_tells_messages_apart_and_outlives_a_lost_store(site: CopySite) -> None:
    (first,) = site.reads(message(1, 1))
    rebuilt = CopySite(CopySubject(BELOW))
    rebuilt.copier.state = msgspec.structs.replace(rebuilt.state, position=SourcePosition("EVENTS", LATER_PAST, 0))
    (again, other) = rebuilt.reads(message(1, 1), message(1, 2))
    ids = [row.headers["Nats-Msg-Id"] for row in (first, again, other)]
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)

"""What may be said at the hub follows from what was said before, and means whom the topology names."""

import os
import socket
from pathlib import Path

import pytest

from aggregator.policy.book import (
    Book,
    OrderRefused,
    cancelled_maintenance,
    changed_thresholds,
    declared_maintenance,
)
from aggregator.policy.commands import policy, scope_of
from aggregator.policy.pages import show
from shared.command_line.tables import UNWRAPPED
from shared.identifiers import BlockId
from shared.instants import EARLIEST, HOUR, LATEST, MINUTE
from shared.policy import (
    CancelMaintenance,
    DeclareMaintenance,
    ForwardSender,
    Order,
    Revision,
    Scope,
    ScopedRevision,
    SetThresholds,
    encode_revision,
    parse_policy_subject,
    read_scoped_revision,
)
from shared.thresholds import Thresholds
from tests.support.topology.topologies import topology

EU, DUB1, NODES = Scope("eu-west"), Scope("eu-west", "dub1"), Scope("eu-west", "dub1", "nodes")
SITES = '[[site]]\nname = "dub1"\nregion = "eu-west"\n[[site]]\nname = "lon1"\nregion = "eu-west"\n'


def said(*orders: tuple[Scope, Order]) -> Book:
    return Book(
        ScopedRevision(
            scope, Revision(revision=number, stream_created_us=1, given_at_us=number, author="ops", order=order)
        )
        for number, (scope, order) in enumerate(orders, start=1)
    )


def test_a_smaller_scope_outranks_a_larger_one_key_by_key() -> None:
    book = said(
        (NODES, SetThresholds(Thresholds(stale_after=20 * MINUTE))),
        (EU, SetThresholds(Thresholds(sample_interval=HOUR, stale_after=10 * MINUTE))),
    )
    wanted = book.wanted_of(BlockId("eu-west", "dub1", "nodes"))
    assert wanted == Thresholds(sample_interval=HOUR, stale_after=20 * MINUTE)
    assert book.wanted_of(BlockId("eu-west", "lon1", "nodes")).stale_after == 10 * MINUTE


def test_setting_one_threshold_keeps_the_others_of_the_scope() -> None:
    book = said((DUB1, SetThresholds(Thresholds(sample_interval=HOUR))))
    changed = changed_thresholds(book, DUB1, {"stale_after": MINUTE}, ())
    assert changed == SetThresholds(Thresholds(sample_interval=HOUR, stale_after=MINUTE))
    assert changed_thresholds(book, DUB1, {}, ("sample_interval",)) == SetThresholds(Thresholds())


@pytest.mark.parametrize(
    ("scope", "changes", "line"),
    [
        (
            DUB1,
            {"retire_after": 5 * MINUTE},
            r"eu-west\.dub1: stale_after \(10m\) must be shorter than retire_after \(5m\)",
        ),
        (EU, {"retire_after": 15 * MINUTE}, r"eu-west\.dub1\.nodes: stale_after \(20m\) must be shorter"),
        (NODES, {"blind_after": 10 * MINUTE}, r"blind_after \(10m\) must be shorter than half of stale_after \(20m\)"),
        (EU, {"stale_after": 10 * MINUTE}, "eu-west: nothing changes, this holds already"),
    ],
)
def test_what_contradicts_is_refused_in_one_line(scope: Scope, changes: dict[str, int], line: str) -> None:
    book = said(
        (EU, SetThresholds(Thresholds(stale_after=10 * MINUTE))),
        (NODES, SetThresholds(Thresholds(stale_after=20 * MINUTE))),
    )
    with pytest.raises(OrderRefused, match=line):
        changed_thresholds(book, scope, changes, ())


def test_maintenance_is_taken_back_once() -> None:
    window = declared_maintenance(EARLIEST, EARLIEST + HOUR, "new switch", ("web1", "web1"))
    assert window == DeclareMaintenance(EARLIEST, EARLIEST + HOUR, "new switch", ("web1",))
    book = said((DUB1, window))
    assert cancelled_maintenance(book, 1) == (DUB1, CancelMaintenance(1))
    cancel_all = said((DUB1, window), (DUB1, CancelMaintenance(1)))
    with pytest.raises(OrderRefused, match="revision 1 is cancelled already, by revision 2"):
        cancelled_maintenance(cancel_all, 1)
    with pytest.raises(OrderRefused, match="revision 2 declares no maintenance; those that do: none"):
        cancelled_maintenance(cancel_all, 2)
    with pytest.raises(OrderRefused, match="must end after it starts"):
        declared_maintenance(20, 20, "why", ())


def test_maintenance_that_the_tables_would_not_take_is_refused() -> None:
    assert declared_maintenance(EARLIEST, LATEST, "why", ()) == DeclareMaintenance(EARLIEST, LATEST, "why")
    for started_at, ended_at in ((EARLIEST - 1, LATEST), (EARLIEST, LATEST + 1)):
        with pytest.raises(
            OrderRefused, match="must lie between 2000-01-01T00:00:00Z and 2200-01-01T00:00:00Z: the tables"
        ):
            declared_maintenance(started_at, ended_at, "why", ())


@pytest.mark.parametrize(
    ("whom", "scope"),
    [
        (("", "dub1", ""), DUB1),
        (("eu-west", "", ""), EU),
        (("", "dub1", "nodes"), NODES),
        (("us-east", "nyc1", ""), None),
    ],
)
def test_a_site_tells_its_region(whom: tuple[str, str, str], scope: Scope | None) -> None:
    assert scope_of(topology(SITES), *whom) == (scope or Scope("us-east", "nyc1"))


@pytest.mark.parametrize(
    ("whom", "line"),
    [
        (("", "", ""), "say for whom: --region, or --site"),
        (("eu-west", "", "nodes"), "say --site too"),
        (("us-east", "dub1", ""), "site dub1 is in region eu-west, not in us-east"),
        (("", "dub2", ""), "site 'dub2' is not in the topology, did you mean dub1?"),
        (("eu-west", "par1", ""), "site 'par1' is not in the topology: dub1, lon1"),
        (("", "dub1", "switches"), "block 'switches' is not in the topology: nodes"),
        (("eu-wets", "", ""), "region 'eu-wets' is not in the topology, did you mean eu-west?"),
        (("us-east", "a.b", ""), "site 'a.b' is not usable in a subject"),
    ],
)
def test_whoever_is_not_known_is_said_in_one_line(whom: tuple[str, str, str], line: str) -> None:
    with pytest.raises(OrderRefused) as refused:
        scope_of(topology(SITES), *whom)
    assert line in str(refused.value)


@pytest.mark.parametrize("scope", [EU, DUB1, NODES, Scope("eu-west", "region"), Scope("eu-west", "site", "site")])
def test_a_subject_tells_its_scope(scope: Scope) -> None:
    assert parse_policy_subject(scope.subject) == scope


def test_a_revision_keeps_its_bytes() -> None:
    revision = Revision(
        revision=7,
        stream_created_us=1700000000000000,
        given_at_us=1700000001000000,
        author="ops@hub",
        order=SetThresholds(Thresholds(stale_after=720_000_000)),
    )
    golden = (
        b'{"protocol":"muster:policy:1","revision":7,"stream_created_us":1700000000000000,'
        b'"given_at_us":1700000001000000,"author":"ops@hub",'
        b'"order":{"kind":"thresholds","thresholds":{"stale_after":720000000}}}'
    )
    assert encode_revision(revision) == golden
    assert read_scoped_revision(DUB1.subject, golden, 7) == ScopedRevision(DUB1, revision)
    assert read_scoped_revision(DUB1.subject, golden, 8) is None, "published by hand: its number is not its place"
    assert read_scoped_revision("muster.policy.eu-west.dub1", golden, 7) is None
    assert read_scoped_revision(DUB1.subject, golden.replace(b"thresholds", b"enlighten"), 7) is None


def test_the_page_tells_what_is_planned() -> None:
    book = said((EU, DeclareMaintenance(10, 20, "new switch")), (DUB1, ForwardSender("web1")))
    assert show(book, [], now=15, width=UNWRAPPED).splitlines()[2:5] == [
        "MAINTENANCE  FOR      SENDERS  FROM                  TO                    STATE      REASON",
        "          1  eu-west  all      1970-01-01T00:00:00Z  1970-01-01T00:00:00Z  under way  new switch",
        "",
    ]


def test_who_has_no_name_on_this_machine_speaks_by_number(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    (tmp_path / "aggregator.toml").touch()
    command = policy.commands["set"]
    context = command.make_context("set", ["--config", str(tmp_path / "aggregator.toml"), "--site", "dub1"])
    assert context.params["author"] == f"uid 3999999999@{socket.gethostname()}"

"""Servers that are too old are refused or warned of in one line, and are not asked for what they do not know."""

import pytest

from aggregator.topology.desired.streams import desired
from aggregator.topology.observed.state import Found
from aggregator.topology.plan.changes import plan
from aggregator.topology.report.checks import Limits, check
from aggregator.topology.report.evidence import HubFacts
from aggregator.topology.report.findings import CheckKind, CheckStatus
from shared.nats.server_version import PAIRS, Release, doubts, parse_release, unusable
from tests.support.topology.topologies import EU, HUB_PLACE, US, as_applied, topology

POLICY = "[policy]\n"
TOO_OLD = "is too old: its streams do not tell the time; upgrade it to 2.14.4 or newer"
HOLES = "has known security holes (2.11.15 and 2.12.6 are the oldest without): upgrade it"
NEVER = (
    "never delivers its policy to regions with accounts of their own, as render writes them: "
    "upgrade it to 2.14.4 or newer"
)


def found_with(hub: Release, region: Release) -> Found:
    found = as_applied(desired(topology(POLICY)))
    found.releases.update({HUB_PLACE: hub, EU: region, US: (2, 15, 1)})
    return found


@pytest.mark.parametrize(
    ("hub", "region", "refused", "warned"),
    [
        ((2, 15, 1), (2, 14, 0), [], []),
        ((2, 15, 1), (2, 9, 10), [f"eu-west: nats-server 2.9.10 {TOO_OLD}"], []),
        ((2, 15, 1), (2, 12, 5), [], [f"eu-west: nats-server 2.12.5 {HOLES}"]),
        ((2, 15, 1), (2, 12, 6), [], []),
        ((2, 15, 1), (2, 11, 14), [], [f"eu-west: nats-server 2.11.14 {HOLES}"]),
        ((2, 15, 1), (2, 11, 15), [], []),
        ((2, 14, 3), (2, 15, 1), [], [f"hub: the hub's nats-server 2.14.3 {NEVER}"]),
        ((2, 14, 4), (2, 15, 1), [], []),
    ],
)
def test_old_servers_are_refused_or_warned_of(
    hub: Release, region: Release, refused: list[str], warned: list[str]
) -> None:
    found, settings = found_with(hub, region), topology(POLICY)
    todo = plan(desired(settings), found)
    assert (list(todo.refused), list(todo.warnings)) == (refused, warned)
    checked = check(settings, desired(settings), found, HubFacts(), Limits())
    said = [(each.severity, f"{each.place}: {each.text}") for each in checked if each.kind is CheckKind.SERVER_TOO_OLD]
    assert said == [
        *((CheckStatus.CRITICAL, text) for text in refused),
        *((CheckStatus.WARNING, text) for text in warned),
    ]


def test_a_hub_without_policy_loses_none() -> None:
    wanted = desired(topology())
    found = as_applied(wanted)
    found.releases[HUB_PLACE] = 2, 14, 0
    assert plan(wanted, found).warnings == ()


def test_a_field_that_a_server_does_not_know_is_not_wanted_of_it() -> None:
    wanted = desired(topology())
    found = as_applied(wanted)
    del found.streams[EU, "FLEET"].config["allow_atomic"]

    def is_wanted(level: int) -> bool:
        found.levels[EU] = level
        return "allow_atomic" in [field.field for each in plan(wanted, found).changes for field in each.fields]

    assert is_wanted(level=2)
    assert not is_wanted(level=1)


def test_every_pair_of_the_table_is_judged_as_it_was_tried() -> None:
    for pair in PAIRS:
        hub, region = parse_release(pair.hub), parse_release(pair.region)
        assert not unusable(hub) + unusable(region)
        assert any("policy" in text for text in doubts(hub, is_policys_hub=True)) is not pair.policy

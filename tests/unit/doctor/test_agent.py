"""What the agent says points above only where a line above says the same, or names what it needs."""

import pytest

from edge_agent.doctor.agent import is_explained
from edge_agent.doctor.finding import Finding, bad, good, warning
from edge_agent.observability import conditions as kinds
from edge_agent.observability.conditions import Kind

PAUSED = bad("source of nodes", "paused", "resume it", kinds.CONSUMER_PAUSED)
EXPIRES = warning("source of nodes", "expires", "let it stay", kinds.CONSUMER_EXPIRES)


@pytest.mark.parametrize(
    ("kind", "subject", "above", "expected"),
    [
        (kinds.CONSUMER_PAUSED, "stream nodes", [PAUSED], True),
        (kinds.CONSUMER_PAUSED, "stream events", [PAUSED], False),
        (kinds.CONSUMER_EXPIRES, "stream nodes", [EXPIRES], True),
        (kinds.CONSUMER_EXPIRES, "stream nodes", [PAUSED], False),
        (kinds.TOO_LARGE_DROPPED, "stream nodes", [PAUSED, EXPIRES], False),
        (kinds.TIME_UNPROVEN, "stream nodes", [PAUSED], True),
        (kinds.TIME_UNPROVEN, "stream nodes", [EXPIRES, good("source of nodes", "")], False),
        (kinds.PROBE_NOT_STORED, "probe of nodes", [bad("source of nodes", "", "", kinds.LINK_DOWN)], True),
        (kinds.REGION_REFUSES, "upstream", [bad("region", "", "", kinds.REGION_UNREACHABLE)], True),
        (kinds.REGION_REFUSES, "upstream", [warning("region", "", "")], False),
        (kinds.DISK_FULL, "stream nodes", [bad("disk", "", "", kinds.DISK_FULL)], True),
    ],
)
def test_a_remedy_points_above_only_where_something_above_explains_it(
    kind: Kind, subject: str, above: list[Finding], expected: bool
) -> None:
    stream = subject.rpartition(" ")[2] if " " in subject else ""
    assert is_explained(kind.of(subject, "what", stream=stream), above) is expected

"""A stream's subjects cover what a fleet publishes, or the fleet says so before it begins."""

import pytest

from edge_agent.simulator.site_stream import covers


@pytest.mark.parametrize(
    ("pattern", "subject", "answer"),
    [
        ("registration.dub1", "registration.dub1", True),
        ("registration.*", "registration.dub1", True),
        ("registration.*", "registration.*", True),
        ("registration.>", "registration.dub1.*", True),
        ("fleet.eu.>", "fleet.eu.dub1.nodes.>", True),
        (">", "registration.dub1", True),
        ("registration.dub1", "registration.*", False),
        ("registration.>", "registration", False),
        ("registration.*", "registration.dub1.n1", False),
        ("registration.*.n1", "registration.dub1", False),
        ("registration.*", "registration.>", False),
        ("registration.lon1", "registration.dub1", False),
    ],
)
def test_a_pattern_covers_every_subject_that_it_matches_and_no_other(pattern: str, subject: str, answer: bool) -> None:
    assert covers(pattern, subject) is answer

"""Sentences say of a silent sender no more than is known."""

import pytest

from edge_agent.inspection.decisions import LoggedDecision
from edge_agent.inspection.explanation_page import Sentences
from shared.identifiers import AdvisoryKind
from tests.support.core.watched_site import POLICY, instant


def said(*kinds: AdvisoryKind) -> str:
    sentences, found = Sentences(POLICY), ""
    for number, kind in enumerate(kinds):
        decided = LoggedDecision(number, "nodes", "a", kind, instant(20 + number), instant(0), 1, "acknowledged")
        _, found = sentences.with_heading(decided)
    return found


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ((AdvisoryKind.NEW,), "not heard, since the stream may not take what it sends; whether it lives is not known"),
        ((AdvisoryKind.NEW, AdvisoryKind.STALE), "forgotten"),
        ((), "forgotten"),
    ],
)
def test_who_is_retired_without_having_been_stale_could_not_be_heard(
    before: tuple[AdvisoryKind, ...], why: str
) -> None:
    assert f": {why}. Its next word makes it new." in said(*before, AdvisoryKind.RETIRED)

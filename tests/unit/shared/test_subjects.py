"""Subjects are a contract: they are golden, they read back, and what is not ours is not taken for ours."""

import pytest

from shared.identifiers import AdvisoryKind, BlockId
from shared.subjects import (
    FleetSubject,
    RecordType,
    advisory_subject,
    copy_prefix,
    covers,
    is_publishable,
    is_readable,
    parse_subject,
    registration_subject,
    watermark_subject,
)

BLOCK = BlockId("eu-west", "dub1", "nodes")


def test_subjects_are_golden() -> None:
    assert registration_subject(BLOCK) == "fleet.eu-west.dub1.nodes.registration"
    assert watermark_subject(BLOCK) == "fleet.eu-west.dub1.nodes.watermark"
    assert copy_prefix(BLOCK) == "fleet.eu-west.dub1.nodes.copy"
    assert [advisory_subject(BLOCK, kind) for kind in AdvisoryKind] == [
        "fleet.eu-west.dub1.nodes.advisory.stale",
        "fleet.eu-west.dub1.nodes.advisory.retired",
        "fleet.eu-west.dub1.nodes.advisory.recovered",
        "fleet.eu-west.dub1.nodes.advisory.new",
    ]


def test_prefix_takes_the_place_of_the_sites_own_subjects() -> None:
    assert registration_subject(BLOCK, "choria.fleet") == "choria.fleet.registration"
    assert watermark_subject(BLOCK, "choria.fleet") == "choria.fleet.watermark"
    assert advisory_subject(BLOCK, AdvisoryKind.NEW, "choria.fleet") == "choria.fleet.advisory.new"


@pytest.mark.parametrize(
    ("subject", "answer"),
    [
        ("fleet", True),
        ("a.b-c.$KV.d_e", True),
        ("a*.>b", True),
        ("", False),
        ("a..b", False),
        (".a", False),
        ("a.", False),
        ("a.*", False),
        ("a.>", False),
        ("a b", False),
        ("a\tb", False),
    ],
)
def test_subject_without_wildcards_blanks_and_holes_can_be_published_on(subject: str, answer: bool) -> None:
    assert is_publishable(subject) is answer


@pytest.mark.parametrize("pattern", ["a", "a.*.b", "a.>", ">", "*", "a*.b"])
def test_subject_with_wildcards_for_whole_tokens_can_be_read_on(pattern: str) -> None:
    assert is_readable(pattern)


@pytest.mark.parametrize("pattern", ["", "a..b", ".a", "a.", "a.>.b", ">.a", "a b", "a.*\t"])
def test_subject_with_blanks_holes_or_more_behind_the_rest_cannot_be_read_on(pattern: str) -> None:
    assert not is_readable(pattern)


def test_every_subject_reads_back() -> None:
    assert parse_subject(registration_subject(BLOCK)) == FleetSubject(BLOCK, RecordType.REGISTRATION)
    assert parse_subject(watermark_subject(BLOCK)) == FleetSubject(BLOCK, RecordType.WATERMARK)
    assert parse_subject(f"{copy_prefix(BLOCK)}.a.b") == FleetSubject(BLOCK, RecordType.COPY)
    for kind in AdvisoryKind:
        assert parse_subject(advisory_subject(BLOCK, kind)) == FleetSubject(BLOCK, RecordType.ADVISORY, kind)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "fleet",
        "fleet.eu-west.dub1.nodes",
        "other.eu-west.dub1.nodes.registration",
        "fleet.eu-west.dub1.nodes.registration.more",
        "fleet.eu-west.dub1.nodes.watermark.more",
        "fleet.eu-west.dub1.nodes.advisory",
        "fleet.eu-west.dub1.nodes.advisory.timeout",
        "fleet.eu-west.dub1.nodes.advisory.stale.more",
        "fleet.eu-west.dub1.nodes.copy",
        "fleet.eu-west.dub1.nodes.copy.",
        "fleet.eu-west..nodes.registration",
        "fleet.eu-west.dub1.nodes.inventory",
        "FLEET.eu-west.dub1.nodes.registration",
    ],
)
def test_a_subject_that_is_not_ours_is_none(subject: str) -> None:
    assert parse_subject(subject) is None


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

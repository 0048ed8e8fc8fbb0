"""The demo succeeds where every promise was kept, and names the promise that was not, and what breaks it."""

import msgspec
import pytest

from aggregator.demo.comparison import Figures, Interval
from aggregator.demo.outcome import Evidence, judge_all, promises
from aggregator.demo.records import Audit
from aggregator.demo.scenario import SITES, STOPPED_SITE, Scenario
from aggregator.demo.tables import Published, Times
from shared.instants import SECOND
from shared.truth import Truth, TruthHeader, UpInterval

END = 100 * SECOND
STOPPED = (60 * SECOND, 70 * SECOND)
FIRST_WORD = 2 * SECOND


def evidence() -> Evidence:
    """One sender at each site, always up; a server that was away for ten seconds; nothing wrong."""
    header = TruthHeader(
        seed=0, registration_interval=3 * SECOND, jitter=0, started_at_us=0, ended_at_us=END, script=""
    )
    truths, figures, known, unknown, sites = {}, {}, {}, {}, {}
    for site in SITES:
        truths[site] = Truth(header, END, [UpInterval(site=site, sender="n1", up_from_us=0, up_to_us=None)])
        unknown[site] = [STOPPED] if site == STOPPED_SITE else []
        known[site] = [(0, STOPPED[0]), (STOPPED[1], END)] if site == STOPPED_SITE else [(0, END)]
        away = 10 * SECOND if site == STOPPED_SITE else 0
        sites[site] = Times(END - FIRST_WORD - away, 0, away)
        lives = (Interval("up", FIRST_WORD, END, FIRST_WORD),)
        figures[site, "n1"] = Figures(lives, up=sites[site].up, unknown=away)
    counts = {"advisories": 3, "watermarks": 150, "registrations": 21}
    published = Published(
        known_through=END,
        figures=figures,
        known=known,
        unknown=unknown,
        sites=sites,
        fleet=Times(sum(times.up for times in sites.values()), 0, 10 * SECOND),
        record_counts=dict(counts),
        quarantined=0,
        uneven_days=0,
    )
    return Evidence(truths, published, Audit(counts, 1 << 20, (), (), ()), STOPPED)


def broken(found: Evidence) -> list[tuple[str, ...]]:
    kept = promises(judge_all(Scenario(), found.truths, found.published), found)
    return [promise.broken_by for promise in kept if promise.broken_by]


def with_published(**changes: object) -> Evidence:
    found = evidence()
    return msgspec.structs.replace(found, published=msgspec.structs.replace(found.published, **changes))


def with_audit(**changes: object) -> Evidence:
    found = evidence()
    return msgspec.structs.replace(found, audit=msgspec.structs.replace(found.audit, **changes))


def test_every_promise_is_kept_where_nothing_is_wrong() -> None:
    assert broken(evidence()) == []


def test_a_rebuked_sender_is_named() -> None:
    found = evidence()
    wrong = (Interval("up", FIRST_WORD, END, FIRST_WORD), Interval("down", 20 * SECOND, 40 * SECOND, 30 * SECOND))
    found.published.figures["dub1", "n1"] = Figures(wrong, up=78 * SECOND, down=20 * SECOND)
    texts = [text for group in broken(found) for text in group]
    assert "n1 at dub1: called stale 30.00 s after the start while it was registering" in texts
    assert any(text.startswith("n1 at dub1: Muster says down for 20.00 s, the truth is 0.00 s") for text in texts)


def test_a_sender_that_never_was_is_named() -> None:
    found = evidence()
    found.published.figures["dub1", "ghost"] = Figures(())
    assert broken(found) == [("ghost at dub1: in the tables, but there was no such sender",)]


def test_time_that_nobody_observed_must_be_unknown() -> None:
    found = evidence()
    found.published.known[STOPPED_SITE] = [(0, END)]
    assert (f"{STOPPED_SITE}: 10.00 s of them are called known",) in broken(found)


def test_too_little_known_time_proves_nothing() -> None:
    found = evidence()
    found.published.known["dub1"] = [(0, 40 * SECOND)]
    found.published.unknown["dub1"] = [(40 * SECOND, END)]
    assert ("dub1: only 40% of the time is known",) in broken(found)


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (with_published(quarantined=2), "2 rows were quarantined: see the table quarantine"),
        (
            with_published(record_counts={"advisories": 4, "watermarks": 150, "registrations": 21}),
            "advisories: 4 rows, but 3 records in the archive",
        ),
        (with_published(uneven_days=1), "1 days of senders do not add up"),
        (with_audit(altered=("dub1: 1 registrations arrived with other bytes",)), "dub1: 1 registrations arrived with"),
        (with_audit(missing=("dub1: 3 advisories were issued, 2 have arrived",)), "dub1: 3 advisories were issued"),
        (with_audit(strange=("a message on fleet.x cannot be read",)), "a message on fleet.x cannot be read"),
    ],
)
def test_a_record_that_is_not_as_it_should_be_is_named(found: Evidence, words: str) -> None:
    texts = broken(found)
    assert len(texts) == 1
    assert texts[0][0].startswith(words)


def test_tables_that_contradict_each_other_are_named() -> None:
    texts = broken(with_published(fleet=Times(1, 0, 0)))
    assert len(texts) == 1
    assert texts[0][0].startswith("the fleet's days hold (1, 0, 0) of up, down and unknown, the senders' days (")

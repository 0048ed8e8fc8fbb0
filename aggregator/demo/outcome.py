"""Decide whether the demo has shown what Muster promises: each promise once, with what breaks it, if anything. Pure."""

from collections.abc import Iterable, Mapping

import msgspec

from aggregator.demo.comparison import Verdict
from aggregator.demo.records import Audit
from aggregator.demo.scenario import STALE_AFTER, STOPPED_SITE, Scenario
from aggregator.demo.spans import Span, common, total
from aggregator.demo.tables import Published
from aggregator.demo.tables import verdicts as verdicts_of
from shared.sizes import format_size
from shared.truth import Truth

_LEAST_COVERAGE = 0.5


class Promise(msgspec.Struct, frozen=True):
    """One promise, in words, and what breaks it: nothing, where it was kept."""

    text: str
    broken_by: tuple[str, ...]


class Evidence(msgspec.Struct, frozen=True):
    """What is compared: the truth by site, the tables, what was found in the archive, when the server was away."""

    truths: dict[str, Truth]
    published: Published
    audit: Audit
    stopped: Span


def judge_all(played: Scenario, truths: Mapping[str, Truth], published: Published) -> tuple[Verdict, ...]:
    """Compare every sender that ever was."""
    stale_after, through = played.length(STALE_AFTER), published.known_through
    return tuple(each for truth in truths.values() for each in verdicts_of(truth, published, stale_after, through))


def promises(verdicts: tuple[Verdict, ...], evidence: Evidence) -> tuple[Promise, ...]:
    """Hold everything that was found against what is promised."""
    published, audit = evidence.published, evidence.audit
    seconds = total([evidence.stopped]) / 1e6
    return (
        Promise(
            f"all of {len(verdicts)} senders: up and down agree with the truth within the bound",
            _named((each, each.beyond) for each in verdicts),
        ),
        Promise(
            "nobody was called stale who registered, or whom nobody could hear",
            _named((each, each.accused) for each in verdicts),
        ),
        Promise(
            f"the {seconds:.0f} s without {STOPPED_SITE}'s server are unknown, neither up nor down",
            _falsely_known(evidence),
        ),
        Promise("every sender was met within one registration interval, and nobody else", _met(verdicts, evidence)),
        Promise(
            f"{audit.record_counts['registrations']:,} registrations ({format_size(audit.compared_bytes)}) arrived,"
            " each byte as the sender published it; none was lost",
            audit.altered,
        ),
        Promise(f"{audit.record_counts['advisories']:,} advisories arrived; none was lost", audit.missing),
        Promise("the tables hold every record once, and quarantined none", _miscounted(published, audit)),
        Promise("up + down + unknown + maintenance + absent make up each sender's every day", _uneven(published)),
    )


def _named(found: Iterable[tuple[Verdict, tuple[str, ...]]]) -> tuple[str, ...]:
    return tuple(f"{verdict.sender} at {verdict.site}: {text}" for verdict, texts in found for text in texts)


def _met(verdicts: tuple[Verdict, ...], evidence: Evidence) -> tuple[str, ...]:
    named = evidence.published.figures.keys()
    real = {sender for truth in evidence.truths.values() for sender in truth.senders}
    strangers = (f"{sender} at {site}: in the tables, but there was no such sender" for site, sender in named - real)
    return (*_named((each, each.unmet) for each in verdicts), *strangers)


def _falsely_known(evidence: Evidence) -> tuple[str, ...]:
    """See that what nobody observed is unknown, and that enough is known for the rest to mean something."""
    published = evidence.published
    wrong = []
    for site, known in published.known.items():
        share = total(known) / (total(known) + total(published.unknown.get(site, [])))
        if share < _LEAST_COVERAGE:
            wrong.append(f"{site}: only {share:.0%} of the time is known")
    known_meanwhile = total(common(published.known[STOPPED_SITE], [evidence.stopped]))
    if known_meanwhile:
        wrong.append(f"{STOPPED_SITE}: {known_meanwhile / 1e6:.2f} s of them are called known")
    return tuple(wrong)


def _miscounted(published: Published, audit: Audit) -> tuple[str, ...]:
    wrong = [
        f"{table}: {published.record_counts[table]:,} rows, but {count:,} records in the archive"
        for table, count in audit.record_counts.items()
        if published.record_counts[table] != count
    ]
    if published.quarantined:
        wrong.append(f"{published.quarantined:,} rows were quarantined: see the table quarantine")
    return (*wrong, *audit.strange)


def _uneven(published: Published) -> tuple[str, ...]:
    wrong = [f"{published.uneven_days:,} days of senders do not add up"] if published.uneven_days else []
    figures = published.figures.values()
    sums = (sum(f.up for f in figures), sum(f.down for f in figures), sum(f.unknown for f in figures))
    for name, times in (("the fleet's days", [published.fleet]), ("the sites' hours", published.sites.values())):
        found = (sum(t.up for t in times), sum(t.down for t in times), sum(t.unknown for t in times))
        if found != sums:
            wrong.append(f"{name} hold {found} of up, down and unknown, the senders' days {sums}")
    return tuple(wrong)
